"""Devices, precision, threads, random generators and CUDA graphs.

All other code is written once, for tensors on any device. Only this module and `kernels` treat CPU and GPU differently.
Read `pick_device` and `pick_precision` first. `one_thread` and `spread` control threads on a CPU; `Lane` and `capture`
control streams and graphs on a GPU.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""Seconds to wait for the MPS daemon to end."""


def pick_device(name: str = "auto") -> torch.device:
    """Return the device with this name, as PyTorch names it. `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(
            f"device {name!r} is not available: PyTorch finds {torch.cuda.device_count()} CUDA devices. Choose one of "
            "them, or cpu or auto"
        )
    return device


@contextmanager
def shared_by_processes(device: torch.device) -> Iterator[None]:
    """Let processes that are started inside the block compute on a GPU at the same time, with CUDA's MPS.

    Without MPS (CUDA's multi-process service), the processes take turns. If its daemon is already running, it is used
    and left running.
    """
    control = shutil.which("nvidia-cuda-mps-control") if device.type == "cuda" else None
    is_ours = control is not None and subprocess.run([control, "-d"], capture_output=True).returncode == 0
    try:
        yield
    finally:
        if control is not None and is_ours:
            with suppress(subprocess.TimeoutExpired):  # other clients may still use the daemon
                subprocess.run([control], input=b"quit\n", capture_output=True, timeout=_MPS_PATIENCE)


def pick_precision(precision: Precision, device: torch.device) -> Precision:
    """Resolve `auto`: bf16 on a GPU, and float32 on a CPU, where bf16 is much slower than float32."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "float32"
    return precision


def working_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the network's weights and activations."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


_precision_lock = Lock()
_precisions: list[str] = []
"""PyTorch's setting before the first active `matmul_precision` block, then the setting of each active block."""


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Let float32 matrix products use tf32 inside the block if `precision` is tf32, else full float32.

    PyTorch has one setting for the whole process. If several threads use this block at the same time, the original
    setting is restored when the last of them leaves it.
    """
    wanted = "high" if precision == "tf32" else "highest"
    with _precision_lock:
        if not _precisions:
            _precisions.append(_current_precision())
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


def _current_precision() -> str:
    """Return PyTorch's present setting, or raise an error if it cannot be read."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        raise ConfigError(
            "torch.backends.cuda.matmul.fp32_precision was set, so PyTorch does not let SynthER change the precision: "
            "do not set it, and pass precision='tf32' or 'float32' to SynthER instead"
        ) from None


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch and NumPy on one thread inside the block.

    Products of small matrices, or of tall and narrow ones, are many times slower on several threads, because the
    threads wait for each other at every product. With one thread, sums also have the same order on every machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _NUMPY:
            yield
    finally:
        torch.set_num_threads(before)


class _OneThreadOfNumpy:
    """Limits NumPy's linear algebra to one thread while at least one `with` block is active.

    The number of threads is a setting of the whole process, so active blocks are counted.
    """

    def __init__(self) -> None:
        self._lock, self._active = Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._active += 1
            if self._active == 1:
                self._limit = _libraries().limit(limits=1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._active -= 1
            if not self._active:
                self._limit.restore_original_limits()


_NUMPY = _OneThreadOfNumpy()


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """Return the linear-algebra (BLAS) libraries of this process. The search is slow, so it is done once."""
    return ThreadpoolController().select(user_api="blas")


def right_factor(weight: Tensor) -> Tensor:
    """Transpose the weights of a layer (..., out, in) to (..., in, out), the right factor in `rows @ weight`.

    On 64-bit ARM CPUs the result is contiguous. With a transposed view, PyTorch would call the Arm Compute Library
    there, which uses all cores in spite of `one_thread`.
    """
    return weight.mT.contiguous() if ARM and weight.device.type == "cpu" else weight.mT


def side_by_side(count: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads. In each of them, PyTorch uses one core; other threads keep their setting.

    So the work is divided among cores once, instead of at every product, and no core waits for a busy one.
    """
    before, ready = torch.get_num_threads(), Barrier(count + 1)

    def begin() -> None:
        torch.set_num_threads(1)  # for this thread, and for threads that are started later
        torch.get_num_threads()  # without this call, PyTorch would read the number again at the first product
        ready.wait()

    pool = ThreadPoolExecutor(count, initializer=begin)
    for _ in range(count):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(before)
    return pool


def spread(function: Callable[[T], U], items: Iterable[T], device: torch.device) -> Iterator[U]:
    """Yield `function(item)` for each item, in order. On a CPU, its cores share the items."""
    count = torch.get_num_threads() if device.type == "cpu" else 1
    return in_turn(function, items, count) if count > 1 else map(function, items)


def in_turn(function: Callable[[T], U], items: Iterable[T], count: int) -> Iterator[U]:
    """Yield `function(item)` for each item, in order. `count` threads compute them at the same time."""
    with side_by_side(count) as pool:
        waiting: deque[Future[U]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def generator(device: torch.device, *key: int) -> torch.Generator:
    """Return a random generator with a stream that depends only on `key`, so that interrupted work can be repeated."""
    return reseed(torch.Generator(device), *key)


def reseed(source: torch.Generator, *key: int) -> torch.Generator:
    """Set `source` to the start of the stream of `key`."""
    for part in key:
        whole_seed(part)
    return source.manual_seed(int(np.random.SeedSequence([len(key), *key]).generate_state(1, np.uint64)[0]) >> 1)


def read_tensors(file: Any, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Return all tensors of a file opened with `safe_open`, or those with the given names.

    They are copied, because tensors inside a file start at any address. Matrix products of MKL depend on it in the last
    digit. So a model that was loaded would generate slightly different rows from the same model that was fitted.
    """
    return {name: file.get_tensor(name).clone() for name in (file.keys() if names is None else names)}


def named(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a part of a model by their names in the file of the model: PART.NAME."""
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each part of a model. This is the inverse of `named`."""
    parts: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        part, _, name = full_name.partition(".")
        parts.setdefault(part, {})[name] = tensor
    return parts


@contextmanager
def working_on(device: torch.device, advice: str) -> Iterator[None]:
    """Make `device` the current device inside the block. If its memory runs out, raise an error with `advice`.

    Autocast of the caller is switched off inside the block, because SynthER chooses the precision itself.
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
        raise ConfigError(f"not enough memory on {describe(device)}: {advice}") from None


def describe(device: torch.device) -> str:
    """Return the name of the device for messages: the model of the GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def put(array: NDArray[Any], tensor: Tensor) -> None:
    """Copy an array into a tensor. A GPU does it after its earlier work, which this call does not wait for."""
    tensor.copy_(_pinned(array, tensor.device), non_blocking=True)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on the device. Like `put`, this does not wait for a GPU."""
    return _pinned(array, device).to(device, non_blocking=True)


def _pinned(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor in main memory, from which copies to the device do not block."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def fetch(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Start to copy a tensor to main memory. Return a function that waits for the copy and returns the array.

    It does not wait for work that is given to the device after this call.
    """
    if tensor.device.type != "cuda":
        array = tensor.numpy().copy()
        return lambda: array
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)  # only copies to pinned memory do not block
    host.copy_(tensor, non_blocking=True)
    done = torch.cuda.current_stream(tensor.device).record_event()

    def arrived() -> NDArray[Any]:
        done.synchronize()
        return host.numpy()

    return arrived


def block_rows(device: torch.device) -> int:
    """Return the number of rows that are sampled together (a block).

    On a GPU, they are enough to use the whole device: 29,568 rows are seven full waves of 128 x 256 tiles at width 1024
    on the 132 multiprocessors of a Hopper GPU. On a CPU they are few, so that a few rows are sampled quickly.
    """
    return 29_568 if device.type == "cuda" else 512


class Lane:
    """A side stream on a GPU, for work that runs at the same time as later work. On a CPU it does nothing.

    Work in the block `aside` starts when all earlier work of the current stream is done. Its results may be used after
    `join`. All tensors that it uses must stay alive until `join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the block on the side stream."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the work on the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Lanes:
    """Several lanes, for blocks of work that do not depend on each other. Each block `aside` takes the next lane."""

    def __init__(self, device: torch.device, count: int = 4) -> None:
        self._lanes = [Lane(device) for _ in range(count)]
        self._taken = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the block on the next lane."""
        lane = self._lanes[self._taken % len(self._lanes)]
        self._taken += 1
        with lane.aside():
            yield

    def join(self) -> None:
        """Let the current stream wait for all blocks since the last `join`."""
        for lane in self._lanes[: self._taken]:
            lane.join()
        self._taken = 0


def capture(
    update: Callable[[], None],
    device: torch.device,
    state: Sequence[Tensor],
    generators: Sequence[torch.Generator] = (),
) -> Callable[[], None]:
    """Capture `update` as one CUDA graph and return a function that replays it. On a CPU, return `update` itself.

    `update` has no arguments and no result: it reads and writes tensors with fixed addresses. Capturing calls it a few
    times. Their effect on `state`, the tensors that `update` changes, is undone. A replay draws from `generators` with
    their state at that time, so seed them after capturing.
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
    # A new stream, because PyTorch's default one belongs to the device of the first capture in the process.
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        update()
    for tensor, old in zip(state, kept, strict=True):
        tensor.copy_(old)
    return graph.replay
