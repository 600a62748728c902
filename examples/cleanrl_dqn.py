"""DQN in the style of CleanRL, with synthetic replay. Only the lines that end in 1, 2 and 3 were changed."""

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
    env_id: str = "CartPole-v1"
    seed: int = 0
    total_timesteps: int = 10_000
    learning_starts: int = 500
    buffer_size: int = 100_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    gamma: float = 0.99
    target_network_frequency: int = 200
    start_e: float = 1.0
    end_e: float = 0.05
    exploration_fraction: float = 0.3
    updates: int = 1
    refresh_every: int = 2_000
    samples: int = 20_000
    fit_steps: int = 1_500


args = tyro.cli(Args, description=__doc__)
np.random.seed(args.seed)  # noqa: NPY002 - the buffer draws from it
torch.manual_seed(args.seed)
envs = SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))], autoreset_mode=AutoresetMode.SAME_STEP
)
envs.action_space.seed(args.seed)
observations, choices = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
q_network = nn.Sequential(
    nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, choices)
)
target_network = copy.deepcopy(q_network)
optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
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
    explored = min(1.0, global_step / (args.exploration_fraction * args.total_timesteps))
    if np.random.random() < args.start_e + explored * (args.end_e - args.start_e):  # noqa: NPY002
        chosen = envs.action_space.sample()
    else:
        chosen = q_network(torch.as_tensor(obs)).argmax(1).numpy()
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
            best = target_network(data.next_observations).max(1).values
            target = data.rewards.flatten() + args.gamma * best * (1 - data.dones.flatten())
        value = q_network(data.observations).gather(1, data.actions).squeeze(1)
        loss = F.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if updates % args.target_network_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())
envs.close()
