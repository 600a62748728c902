"""SAC in one file, on Pendulum, with synthetic replay. The lines that end in 1, 2 and 3 replace your own buffer."""

import argparse
from copy import deepcopy

import gymnasium
import torch
from torch.nn import Linear, ModuleList, ReLU, Sequential

from synther import SyntheticReplay, preset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
known = {"steps": (3000, "environment steps"), "updates": (4, "updates per step"), "refresh": (500, "rows per refit")}
for name, (default, about) in {**known, "samples": (20_000, "synthetic rows"), "fit": (1500, "steps of a fit")}.items():
    parser.add_argument(f"--{name}", type=int, default=default, help=about)
chosen = parser.parse_args()
torch.manual_seed(0)
small = preset("laptop", network={"width": 128, "depth": 3}, fit={"steps": chosen.fit})
replay = SyntheticReplay(100_000, refresh_every=chosen.refresh, samples=chosen.samples, preset=small, device="cpu")  # 1
sizes = ((3, 2), (4, 1), (4, 1))
actor, *twins = [Sequential(Linear(i, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, o)) for i, o in sizes]
critics, targets, log_alpha = ModuleList(twins), ModuleList(deepcopy(twins)), torch.zeros(1, requires_grad=True)
optimizers = [torch.optim.Adam(weights, 1e-3) for weights in (critics.parameters(), actor.parameters(), [log_alpha])]


def act(seen):  # returns actions in (-1, 1), and their log probabilities
    mean, log_std = actor(seen).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    return raw.tanh(), (normal.log_prob(raw) - torch.log(1 - raw.tanh() ** 2 + 1e-6)).sum(-1)


def losses(batch):  # yields the losses of critics, actor and temperature, each after the update with the one before
    values = lambda nets, *pair: torch.stack([net(torch.cat(pair, -1))[:, 0] for net in nets])  # noqa: E731
    alpha, following, (action, density) = log_alpha.exp().detach(), batch.next_observation, act(batch.next_observation)
    after = 0.99 * (1 - batch.terminal) * (values(targets, following, action).amin(0) - alpha * density).detach()
    yield (values(critics, batch.observation, batch.action) - batch.reward - after).pow(2).sum(0).mean()
    action, density = act(batch.observation)
    yield (alpha * density - values(critics, batch.observation, action).amin(0)).mean()
    yield -(log_alpha * (density.detach() - 1)).mean()


env = gymnasium.make("Pendulum-v1")
observation, total = env.reset(seed=0)[0], 0.0
for step in range(1, chosen.steps + 1):
    action = act(torch.as_tensor(observation))[0].detach().numpy()
    following, reward, terminated, truncated, _ = env.step(2 * action)
    replay.add(observation, action, reward, following, terminated, truncated)  # 2
    observation, total = following, total + reward
    for _ in range(chosen.updates if step > 250 else 0):
        for optimizer, loss in zip(optimizers, losses(replay.sample(128)), strict=True):  # 3
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for target, weight in zip(targets.parameters(), critics.parameters(), strict=True):
            target.data.lerp_(weight.data, 0.005)
    if terminated or truncated:
        print(f"step {step}: return {total:.0f}", flush=True)
        observation, total = env.reset()[0], 0.0
