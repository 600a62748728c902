from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from threadpoolctl import threadpool_info, threadpool_limits

from synther import compute
from synther.errors import ConfigError

CPU = torch.device("cpu")


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute.pick_device() == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute.pick_device("auto").type == "cuda"


def test_a_device_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert compute.pick_device("cpu") == CPU
    assert compute.pick_device("cuda") == torch.device("cuda")
    assert compute.pick_device("cuda:1") == torch.device("cuda", 1)
    for name in ("cuda:2", "", "gpu", "CPU!", "meta", "mps", "cuda:x", "cuda:-1"):
        with pytest.raises(ConfigError, match=f"'{name}'"):
            compute.pick_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="'cuda'"):
        compute.pick_device("cuda")


def test_precision():
    gpu = torch.device("cuda")
    assert compute.pick_precision("auto", CPU) == "float32"
    assert compute.pick_precision("auto", gpu) == "bf16"
    for name in ("float32", "tf32", "bf16"):
        assert compute.pick_precision(name, CPU) == compute.pick_precision(name, gpu) == name
    assert compute.working_dtype("bf16") == torch.bfloat16
    assert compute.working_dtype("tf32") == compute.working_dtype("float32") == torch.float32
    with pytest.raises(ConfigError, match="precision"):
        compute.pick_precision("fp16", CPU)


@pytest.mark.parametrize("before", ["highest", "medium"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_matmul_precision_is_restored(before, precision):
    ambient = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(before)
        with compute.matmul_precision(precision):
            assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
        assert torch.get_float32_matmul_precision() == before
        with pytest.raises(KeyError), compute.matmul_precision(precision):
            raise KeyError
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(ambient)


def test_a_key_has_one_stream():
    one, same = compute.generator(CPU, 3, 1, 7), compute.generator(CPU, 3, 1, 7)
    first = torch.rand(100, generator=one)
    assert torch.equal(first, torch.rand(100, generator=same))
    assert torch.equal(first, torch.rand(100, generator=compute.reseed(one, 3, 1, 7)))
    large = [torch.rand(1, generator=compute.generator(CPU, seed)).item() for seed in (0, 2**31, 2**32, 2**64 - 1)]
    assert len(set(large)) == 4
    for wrong in (-1, None, 0.5, "1"):
        with pytest.raises(ConfigError, match=f"seed .*{wrong!r}"):
            compute.generator(CPU, wrong, 0)


def test_streams_of_different_keys_have_nothing_in_common():
    keys = [(seed, purpose, number) for seed in range(5) for purpose in range(4) for number in range(5)]
    drawn = torch.stack([torch.randn(2000, generator=compute.generator(CPU, *key)) for key in keys])
    correlations = torch.corrcoef(drawn) - torch.eye(len(keys))
    # 4,950 pairs, each N(0, 1/2000): chance passes six standard deviations once in a hundred thousand such tests.
    assert correlations.abs().max() < 6 / 2000**0.5


def test_main_memory_that_runs_out_is_an_error_with_advice():
    message = "not enough memory on cpu: lower the capacity"
    with pytest.raises(ConfigError, match=message), compute.working_on(CPU, "lower the capacity"):
        torch.empty(10**15)
    with pytest.raises(RuntimeError, match="something else"), compute.working_on(CPU, "lower the capacity"):
        raise RuntimeError("something else")


@pytest.mark.cuda
def test_capture_leaves_the_state_and_replays_the_update():
    device = torch.device("cuda")
    state, given = torch.ones(1000, device=device), torch.zeros((), device=device)
    calls = []

    def update() -> None:
        calls.append(1)
        state.mul_(2).add_(given)

    replay = compute.capture(update, device, [state])
    rehearsals = len(calls)
    assert torch.equal(state, torch.ones_like(state))
    expected = 1.0
    for step in range(5):
        given.fill_(step)
        replay()
        expected = 2 * expected + step
    assert torch.equal(state, torch.full_like(state, expected))
    assert len(calls) == rehearsals, "a replay does not run the function"


def _work_aside(device: torch.device, size: int) -> torch.Tensor:
    """What comes of work that takes long before, aside and after it."""
    lane = compute.Lane(device)
    large = torch.eye(size, device=device)
    start = torch.zeros(size, size, device=device)
    for _ in range(20):
        start = start @ large + 1  # 20 everywhere
    with lane.aside():
        found = start
        for _ in range(20):
            found = found @ large + 1  # 40
    beside = start * 3  # 60, meanwhile
    lane.join()
    return found + beside


def test_work_aside_on_a_cpu_is_done_at_once():
    assert torch.equal(_work_aside(CPU, 4), torch.full((4, 4), 100.0))


@pytest.mark.cuda
def test_work_aside_begins_after_what_came_before_and_is_done_when_joined():
    device = torch.device("cuda")
    for _ in range(5):
        assert torch.equal(_work_aside(device, 1500), torch.full((1500, 1500), 100.0, device=device))
    out = torch.zeros(1500, 1500, device=device)
    replay = compute.capture(lambda: out.copy_(_work_aside(device, 1500)), device, [out])
    for _ in range(5):
        out.zero_()
        replay()
        assert torch.equal(out, torch.full_like(out, 100.0))


@pytest.mark.cuda
def test_fetched_is_what_the_tensor_was_and_not_what_came_after():
    large, out = torch.eye(3000, device="cuda"), []
    tensor = torch.zeros(3000, 3000, device="cuda")
    for number in range(5):
        for _ in range(20):
            tensor = tensor @ large + 1
        out.append(compute.fetch(tensor))
        if number:
            assert (out[number - 1]() == 20 * number).all()
    assert (out[-1]() == 100).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_what_is_put_sent_and_fetched_does_not_change_with_what_comes_after(device):
    array, target = np.arange(6, dtype=np.float32).reshape(2, 3), torch.zeros(2, 5, device=device)
    compute.put(array, target[:, 1:4])
    found = compute.fetch(target)
    array += 10
    target += 100
    assert found().tolist() == [[0, 0, 1, 2, 0], [0, 3, 4, 5, 0]]
    there = compute.sent(array[:, 1], torch.device(device))
    assert there.device.type == device
    assert there.tolist() == [11, 14]


MPS = """#!/bin/sh
if [ "$1" = "-d" ]; then echo start >> "$MPS_LOG"; [ ! -e "$MPS_LOG.running" ]; else cat >> "$MPS_LOG"; fi
"""


def test_mps_is_started_where_it_is_and_stopped_by_whoever_started_it(tmp_path, monkeypatch):
    told, program = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    monkeypatch.setenv("MPS_LOG", str(told))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cuda = torch.device("cuda")
    with compute.shared_by_processes(cuda):  # there is no such program
        pass
    program.write_text(MPS)
    program.chmod(0o755)
    with compute.shared_by_processes(torch.device("cpu")):
        pass
    assert not told.exists()
    with compute.shared_by_processes(cuda):
        assert told.read_text() == "start\n"
    assert told.read_text() == "start\nquit\n"
    told.with_suffix(".running").touch()
    with compute.shared_by_processes(cuda):
        pass
    assert told.read_text() == "start\nquit\nstart\n"


@pytest.fixture
def three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("three_threads")
def test_threads_side_by_side_use_one_core_each_and_the_caller_keeps_its_own():
    with compute.side_by_side(2) as pool:
        inside = list(pool.map(lambda _: torch.get_num_threads(), range(8)))
    assert set(inside) == {1}
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 3
    with compute.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def numpy_threads() -> set[int]:
    """Those of the library that comes with NumPy."""
    return {one["num_threads"] for one in threadpool_info() if "numpy" in one["filepath"]}


@pytest.mark.skipif(not numpy_threads(), reason="NumPy has its linear algebra from elsewhere here")
def test_numpy_has_one_thread_until_the_last_one_that_wants_so_has_left():
    with threadpool_limits(2, "blas"):
        first, second = compute.one_thread(), compute.one_thread()
        first.__enter__()
        second.__enter__()
        assert numpy_threads() == {1}
        first.__exit__(None, None, None)
        assert numpy_threads() == {1}
        second.__exit__(None, None, None)
        assert numpy_threads() == {2}


@pytest.mark.usefixtures("three_threads")
def test_answers_come_in_turn_and_no_more_are_begun_than_wanted():
    begun = []

    def square(number: int) -> int:
        begun.append(number)
        time.sleep(0.001 * (number % 3))
        return number**2

    answers = compute.in_turn(square, count(), 3)
    assert [next(answers) for _ in range(10)] == [number**2 for number in range(10)]
    assert max(begun) < 10 + 2 * 3
    with pytest.raises(ZeroDivisionError):
        list(compute.in_turn(lambda number: 1 // number, range(2, -1, -1), 2))


def test_products_are_as_precise_as_before_when_the_last_thread_has_left():
    torch.set_float32_matmul_precision("high")
    try:
        first, second = compute.matmul_precision("float32"), compute.matmul_precision("float32")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"
        with compute.matmul_precision("tf32"):
            assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_float32_matmul_precision() == "highest"
        second.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("arm", [True, False])
def test_a_right_factor_is_transposed_and_on_arm_contiguous(arm, monkeypatch):
    monkeypatch.setattr(compute, "ARM", arm)
    weight = torch.arange(24.0).view(2, 3, 4)
    factor = compute.right_factor(weight)
    assert torch.equal(factor, weight.mT)
    assert factor.is_contiguous() == arm


def test_tensors_of_a_file_are_where_those_of_a_fit_would_be(tmp_path):
    """Products of matrices differ in the last digit if a matrix starts elsewhere."""
    stored = {"first": torch.arange(3.0), "second": torch.rand(7, 9), "third": torch.rand(64, 64)}
    save_file(stored, tmp_path / "file.safetensors")
    with safe_open(tmp_path / "file.safetensors", "pt") as file:
        assert {file.get_tensor(name).data_ptr() % 64 for name in stored} != {0}
        read, two = compute.read_tensors(file), compute.read_tensors(file, ["third", "first"])
    assert [*two] == ["third", "first"]
    for name, tensor in stored.items():
        assert torch.equal(read[name], tensor)
        assert read[name].data_ptr() % 64 == torch.empty(100).data_ptr() % 64 == 0
