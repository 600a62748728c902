"""TD3 in the style of CleanRL, with synthetic replay. Only the lines that end in 1, 2 and 3 were changed."""

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.nn import functional as F

from synther import preset
from synther.integrations.sb3 import SyntheticReplayBuffer as ReplayBuffer  # 1


@dataclasses.dataclass
class Args:
    env_id: str = "Pendulum-v1"
    seed: int = 0
    total_timesteps: int = 5_000
    learning_starts: int = 500
    buffer_size: int = 100_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005
    policy_noise: float = 0.2
    exploration_noise: float = 0.1
    noise_clip: float = 0.5
    policy_frequency: int = 2
    updates: int = 2
    refresh_every: int = 1_000
    samples: int = 20_000
    fit_steps: int = 1_500


class QNetwork(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(observations + actions, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, x, a):
        return self.net(torch.cat([x, a], 1)).view(-1)


class Actor(nn.Module):
    def __init__(self, observations, space):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(observations, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, space.shape[0])
        )
        self.scale, self.middle = (
            torch.tensor(part) for part in ((space.high - space.low) / 2, (space.high + space.low) / 2)
        )

    def forward(self, x):
        return self.net(x).tanh() * self.scale + self.middle


args = tyro.cli(Args, description=__doc__)
np.random.seed(args.seed)  # noqa: NPY002 - the buffer draws from it
torch.manual_seed(args.seed)
envs = SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))], autoreset_mode=AutoresetMode.SAME_STEP
)
envs.action_space.seed(args.seed)
space = envs.single_action_space
low, high = torch.tensor(space.low), torch.tensor(space.high)
observations = envs.single_observation_space.shape[0]
actor, (qf1, qf2) = Actor(observations, space), (QNetwork(observations, space.shape[0]) for _ in range(2))
target_actor, qf1_target, qf2_target = (copy.deepcopy(net) for net in (actor, qf1, qf2))
q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=args.learning_rate)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.learning_rate)
rb = ReplayBuffer(
    args.buffer_size,
    envs.single_observation_space,
    envs.single_action_space,
    "cpu",
    handle_timeout_termination=False,
    preset=preset("laptop", network={"width": 128, "depth": 3}, fit={"steps": args.fit_steps}),  # 2
    refresh_every=args.refresh_every,
    samples=args.samples,  # 3
)

obs, _ = envs.reset(seed=args.seed)
updates = 0
for global_step in range(args.total_timesteps):
    if global_step < args.learning_starts:
        chosen = envs.action_space.sample()
    else:
        with torch.no_grad():
            wanted = actor(torch.as_tensor(obs))
            noise = torch.randn_like(wanted) * actor.scale * args.exploration_noise
            chosen = (wanted + noise).clamp(low, high).numpy()
    next_obs, rewards, terminations, truncations, infos = envs.step(chosen)
    if "episode" in infos.get("final_info", {}):
        print(f"global_step={global_step}, return={infos['final_info']['episode']['r'][0]:.0f}", flush=True)
    real_next_obs = next_obs.copy()
    for index, truncated in enumerate(truncations):
        if truncated:
            real_next_obs[index] = infos["final_obs"][index]
    rb.add(obs, real_next_obs, chosen, rewards, terminations, infos)
    obs = next_obs
    for _ in range(args.updates if global_step > args.learning_starts else 0):
        updates += 1
        data = rb.sample(args.batch_size)
        with torch.no_grad():
            noise = (torch.randn_like(data.actions) * args.policy_noise).clamp(-args.noise_clip, args.noise_clip)
            next_actions = (target_actor(data.next_observations) + noise * actor.scale).clamp(low, high)
            after = [target(data.next_observations, next_actions) for target in (qf1_target, qf2_target)]
            target = data.rewards.flatten() + (1 - data.dones.flatten()) * args.gamma * torch.min(*after)
        q_loss = sum(F.mse_loss(qf(data.observations, data.actions), target) for qf in (qf1, qf2))
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        if updates % args.policy_frequency == 0:
            actor_loss = -qf1(data.observations, actor(data.observations)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            for net, frozen in ((actor, target_actor), (qf1, qf1_target), (qf2, qf2_target)):
                for weight, slow in zip(net.parameters(), frozen.parameters(), strict=True):
                    slow.data.lerp_(weight.data, args.tau)
envs.close()
