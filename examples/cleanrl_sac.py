"""SAC in the style of CleanRL, with synthetic replay. Only the lines that end in 1, 2 and 3 were changed."""

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
        self.net = nn.Sequential(nn.Linear(observations, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_std = (nn.Linear(64, space.shape[0]) for _ in range(2))
        self.scale, self.middle = (
            torch.tensor(part) for part in ((space.high - space.low) / 2, (space.high + space.low) / 2)
        )

    def get_action(self, x):
        hidden = self.net(x)
        normal = torch.distributions.Normal(self.mean(hidden), self.log_std(hidden).clamp(-5, 2).exp())
        raw = normal.rsample()
        squashed = raw.tanh()
        log_prob = normal.log_prob(raw) - torch.log(self.scale * (1 - squashed**2) + 1e-6)
        return squashed * self.scale + self.middle, log_prob.sum(1)


args = tyro.cli(Args, description=__doc__)
np.random.seed(args.seed)  # noqa: NPY002 - the buffer draws from it
torch.manual_seed(args.seed)
envs = SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))], autoreset_mode=AutoresetMode.SAME_STEP
)
envs.action_space.seed(args.seed)
observations, actions = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
actor = Actor(observations, envs.single_action_space)
qf1, qf2, qf1_target, qf2_target = (QNetwork(observations, actions) for _ in range(4))
qf1_target.load_state_dict(qf1.state_dict())
qf2_target.load_state_dict(qf2.state_dict())
q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=args.learning_rate)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.learning_rate)
log_alpha = torch.zeros(1, requires_grad=True)
a_optimizer = torch.optim.Adam([log_alpha], lr=args.learning_rate)
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
for global_step in range(args.total_timesteps):
    if global_step < args.learning_starts:
        chosen = envs.action_space.sample()
    else:
        chosen = actor.get_action(torch.as_tensor(obs))[0].detach().numpy()
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
        data = rb.sample(args.batch_size)
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            next_actions, next_log_prob = actor.get_action(data.next_observations)
            after = [target(data.next_observations, next_actions) for target in (qf1_target, qf2_target)]
            value = torch.min(*after) - alpha * next_log_prob
            target = data.rewards.flatten() + (1 - data.dones.flatten()) * args.gamma * value
        q_loss = sum(F.mse_loss(qf(data.observations, data.actions), target) for qf in (qf1, qf2))
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        pi, log_prob = actor.get_action(data.observations)
        actor_loss = (alpha * log_prob - torch.min(qf1(data.observations, pi), qf2(data.observations, pi))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        alpha_loss = (-log_alpha.exp() * (log_prob.detach() - actions)).mean()
        a_optimizer.zero_grad()
        alpha_loss.backward()
        a_optimizer.step()
        for qf, frozen in ((qf1, qf1_target), (qf2, qf2_target)):
            for weight, slow in zip(qf.parameters(), frozen.parameters(), strict=True):
                slow.data.lerp_(weight.data, args.tau)
envs.close()
