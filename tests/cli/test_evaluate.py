"""`synther evaluate`: what it prints, what it refuses."""

from __future__ import annotations

import json

QUICK = ("--device", "cpu", "--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "8", "--seeds", "2")


def test_a_table_for_a_person_and_an_object_for_a_machine(synther, no_processes, tmp_path):
    command = ("train", "bc", "hopper-sac", "--fraction", "0.05", "--updates", "20", "--no-evaluate", *QUICK)
    assert synther(*command, "--out", tmp_path / "run").code == 0
    short = ("--env-id", "Hopper-v5", "--env-options", '{"max_episode_steps": 4}')
    command = ("evaluate", tmp_path / "run", "--episodes", "2", "--workers", "1", *short)
    code, out, err = synther(*command)
    assert code == 0
    assert "evaluate: 100 % of 4" in err
    title, *lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert title == f"{tmp_path / 'run' / 'checkpoint.safetensors'}, 2 episodes each, 2 seeds: mean ± std"
    code, out, err = synther(*command, "--json", "--quiet")
    found = json.loads(out)
    assert (code, err, found["env_options"]) == (0, "", {"max_episode_steps": 4})
    stands = found["arms"]["real"]
    mean, std = (stands["return"][name] for name in ("mean", "std"))
    assert lines[0].split() == ["environment", "Hopper-v5"]
    assert lines[1].split(maxsplit=2)[2] == f"{mean:,.1f} ± {std:,.1f} after 20 updates"
    assert lines[2].split(maxsplit=2)[2] == ", ".join(f"{value:,.1f}" for value in stands["returns"])
    assert found["returns"] != json.loads(synther(*command, "--json", "--seed", "1").out)["returns"]
