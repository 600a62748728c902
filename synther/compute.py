"""Where the work runs and how precisely, and how an update becomes one captured GPU graph.

Everything else is written once, for tensors, and asks for no device; only `kernels` choose a kernel by it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from threading import Barrier, Lock
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from synther.errors import ConfigError
from synther.plain import whole_seed

T = TypeVar("T")
U = TypeVar("U")
Precision = Literal["auto", "float32", "tf32", "bf16"]

ARM = platform.machine() == "aarch64"
_MPS_PATIENCE = 60.0
"""Seconds in which the daemon of MPS has to end."""


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU where there is one; anything else is PyTorch's own name of a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device {name!r} was asked for, but PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return device


@contextmanager
def shared_by_processes(device: torch.device) -> Iterator[None]:
    """Let processes that are started inside run on a GPU at the same time, by CUDA's multi-process service (MPS).

    A machine without it takes turns. A daemon that runs already is used and left running.
    """
    control = shutil.which("nvidia-cuda-mps-control") if device.type == "cuda" else None
    is_ours = control is not None and subprocess.run([control, "-d"], capture_output=True).returncode == 0
    try:
        yield
    finally:
        if control is not None and is_ours:
            with suppress(subprocess.TimeoutExpired):  # other clients of the daemon may still be at work
                subprocess.run([control], input=b"quit\n", capture_output=True, timeout=_MPS_PATIENCE)


def pick_precision(precision: Precision, device: torch.device) -> Precision:
    """`auto` is bf16 on a GPU and float32 on a CPU, where bf16 is far slower than float32."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "float32"
    return precision


def working_dtype(precision: Precision) -> torch.dtype:
    """The type in which the network's weights and activations are kept."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


_precision_lock = Lock()
_precisions: list[str] = []
"""What was found by the first of those who are at work, and what each of them has asked for."""


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Let float32 products use tf32 inside the block, where that was asked for.

    The setting is that of the whole process. So it is set back when the last of several threads has left.
    """
    wanted = "high" if precision == "tf32" else "highest"
    with _precision_lock:
        if not _precisions:
            _precisions.append(_found_precision())
        _precisions.append(wanted)
        torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        with _precision_lock:
            del _precisions[len(_precisions) - 1 - _precisions[::-1].index(wanted)]
            torch.set_float32_matmul_precision(_precisions[-1])
            if len(_precisions) == 1:
                _precisions.clear()


def _found_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        raise ConfigError(
            "torch.backends.cuda.matmul.fp32_precision was set, which PyTorch does not let SynthER change: "
            "leave it alone and pass precision='tf32' or 'float32' instead"
        ) from None


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch and NumPy on one thread. Products of small or of tall and narrow matrices are many times slower on
    several, which wait for each other at every product, and on one they are summed in one order, whatever the
    machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _NUMPY:
            yield
    finally:
        torch.set_num_threads(before)


class _OneThreadOfNumpy:
    """The linear algebra of NumPy on one thread, for as long as somebody wants it: the number is one of the process."""

    def __init__(self) -> None:
        self._lock, self._wanted = Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                self._limit = _libraries().limit(limits=1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                self._limit.restore_original_limits()


_NUMPY = _OneThreadOfNumpy()


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """Those of linear algebra. It takes a while to find them."""
    return ThreadpoolController().select(user_api="blas")


def right_factor(weight: Tensor) -> Tensor:
    """The weights of a layer (..., out, in) as (..., in, out), to multiply rows with.

    On 64-bit ARM they are contiguous. With a transposed view there, PyTorch calls the Arm Compute Library, which uses
    every core in spite of `one_thread`.
    """
    return weight.mT.contiguous() if ARM and weight.device.type == "cpu" else weight.mT


def side_by_side(count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads, in each of which PyTorch uses one core. Elsewhere it keeps its threads.

    So work is divided once, instead of at every product, and a busy core holds up no other.
    """
    before, ready = torch.get_num_threads(), Barrier(count + 1)

    def begin() -> None:
        torch.set_num_threads(1)  # this thread's, and that of threads that begin later
        torch.get_num_threads()  # without which PyTorch would ask for the number once more, at the first product
        ready.wait()

    pool = ThreadPoolExecutor(count, initializer=begin)
    for _ in range(count):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(before)
    return pool


def spread(function: Callable[[T], U], items: Iterable[T], device: torch.device) -> Iterator[U]:
    """`function` of each item, in order. The cores of a CPU share the items."""
    count = torch.get_num_threads() if device.type == "cpu" else 1
    return in_turn(function, items, count) if count > 1 else map(function, items)


def in_turn(function: Callable[[T], U], items: Iterable[T], count: int) -> Iterator[U]:
    """`function` of each item, in order, with `count` of them `side_by_side`."""
    with side_by_side(count) as pool:
        waiting: deque[Future[U]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def generator(device: torch.device, *key: int) -> torch.Generator:
    """A generator whose stream is a function of `key` alone, so that work can be cut anywhere and taken up again."""
    return reseed(torch.Generator(device), *key)


def reseed(source: torch.Generator, *key: int) -> torch.Generator:
    """Put `source` at the start of the stream of `key`."""
    for part in key:
        whole_seed(part)
    return source.manual_seed(int(np.random.SeedSequence([len(key), *key]).generate_state(1, np.uint64)[0]) >> 1)


@contextmanager
def working_on(device: torch.device, advice: str) -> Iterator[None]:
    """Make `device` the current one inside the block, and turn its running out of memory into `advice`.

    The caller's autocast ends at the door: precision is chosen in here.
    """
    try:
        with (
            torch.cuda.device(device) if device.type == "cuda" else nullcontext(),
            torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext(),
        ):
            yield
    except RuntimeError as error:
        if not (isinstance(error, torch.cuda.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)):
            raise
        raise ConfigError(f"the memory of {describe(device)} does not suffice: {advice}") from None


def describe(device: torch.device) -> str:
    """The device in words for a person."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fetch(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Begin to copy a tensor to main memory; the answer, called, waits for that, and for nothing asked for after it."""
    if tensor.device.type != "cuda":
        return tensor.numpy
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)  # others would be waited for at once
    here.copy_(tensor, non_blocking=True)
    done = torch.cuda.current_stream(tensor.device).record_event()

    def arrived() -> NDArray[Any]:
        done.synchronize()
        return here.numpy()

    return arrived


def block_rows(device: torch.device) -> int:
    """Rows sampled together: enough to fill a GPU, few enough that a CPU asked for a handful answers soon.

    29,568 rows are seven full waves of 128 x 256 tiles at width 1024 on the 132 multiprocessors of a Hopper GPU.
    """
    return 29_568 if device.type == "cuda" else 512


class Lane:
    """Work that need not wait for what comes after it: on a GPU a stream of its own, on a CPU nothing.

    What is done `aside` begins when all that was asked for before it is done. It must keep to tensors that stay alive
    until `join`, from where on its results may be used.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def aside(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Lanes:
    """Several of them, for pieces of work that need not wait for each other: each takes the next lane."""

    def __init__(self, device: torch.device, count: int = 4) -> None:
        self._lanes = [Lane(device) for _ in range(count)]
        self._taken = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        lane = self._lanes[self._taken % len(self._lanes)]
        self._taken += 1
        with lane.aside():
            yield

    def join(self) -> None:
        """Wait for all that was done aside since the last time."""
        for lane in self._lanes[: self._taken]:
            lane.join()
        self._taken = 0


def capture(
    update: Callable[[], None],
    device: torch.device,
    state: Sequence[Tensor],
    generators: Sequence[torch.Generator] = (),
) -> Callable[[], None]:
    """`update` as one CUDA graph, or itself on a CPU.

    `update` takes nothing and returns nothing: it reads and writes tensors that stay where they are. Capturing needs a
    few rehearsals, which are undone in `state`, the tensors that `update` changes. What it draws from `generators` goes
    on from where they stand when it is called; seed them after capturing.
    """
    if device.type != "cuda":
        return update
    kept = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(2):
            update()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for source in generators:
        graph.register_generator_state(source)
    # A stream of its own: the one that PyTorch would take belongs to the device of the first capture in the process.
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        update()
    for tensor, old in zip(state, kept, strict=True):
        tensor.copy_(old)
    return graph.replay
