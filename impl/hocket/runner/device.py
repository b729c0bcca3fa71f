"""Where a model runs: the one place that knows of streams, events and pinned memory.

`DeviceRuntime` is the null form, for the CPU: host and device are one, nothing is staged and nothing waits.
`AcceleratorRuntime` is the same for whatever `torch.accelerator` stands for. What the runner asks of both:

* `put` takes a step's host inputs to the device. On an accelerator they go through a ring of pinned staging
  buffers, one more than steps are in flight, which take turns (`ring_rules`); an event says when a buffer was
  read and may be written again.
* `fetch` brings a step's results back, on a stream of their own, so that they do not wait for later steps.
  Nobody waits until somebody asks for the values.
* `largest` is the greatest value of a tensor where looking is free, else a bound that is known anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.runner.ring_rules import buffer_of, ring_size

Array = NDArray[Any]

_ALIGNED = 64
"""Elements between the starts of two arrays in a staging buffer: kernels like aligned inputs."""


class Device(NamedTuple):
    """A kind of device that can be asked for: the package that brings it, if any; what to do without it."""

    package: str | None
    hint: str


DEVICES: Mapping[str, Device] = {
    "cpu": Device(None, ""),
    "npu": Device(
        "torch_npu",
        "it needs the extra 'npu' (pip install 'hocket[npu]') and CANN, whose set_env.sh has to be sourced "
        "before Python starts; if importing torch itself fails, start with TORCH_DEVICE_BACKEND_AUTOLOAD=0",
    ),
    "cuda": Device(None, "it needs a build of torch for CUDA, and a GPU whose driver is running"),
}
"""By the name that `--device` takes."""


class DeviceUnavailableError(ValueError):
    """The device that was asked for is not there. Nothing else is taken in its place."""


def open_device(name: str) -> torch.device:
    """The device of that name, a key of `DEVICES`, ready to be used.

    Raises `DeviceUnavailableError` with the cause and what can be done about it.
    """
    device = DEVICES[name]
    if name == "cpu":
        return torch.device(name)
    try:
        if device.package is not None:
            import_module(device.package)
        found = torch.accelerator.current_accelerator(check_available=True)
    except (ImportError, RuntimeError, OSError) as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DeviceUnavailableError(f"device {name!r} cannot be used: {cause}; {device.hint}") from error
    if found is None or found.type != name:
        other = "no accelerator" if found is None else f"{found.type!r}"
        raise DeviceUnavailableError(
            f"device {name!r} cannot be used: torch {torch.__version__} finds {other}; {device.hint}"
        )
    torch.accelerator.set_device_index(0)
    return torch.device(name, 0)


class Fetched:
    """Tensors on their way to the host; on a CPU they are there."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(tensors)

    def ready(self) -> bool:
        """True if `wait` would not wait."""
        return True

    def wait(self) -> tuple[Tensor, ...]:
        """The values, on the host, in the order in which they were asked for. May be called again."""
        return self._tensors


class DeviceRuntime:
    """The null form: the device is the CPU."""

    asynchronous = False
    """Whether work is only queued when a call returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def put(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Copies on the device, by the same names. Called once a step."""
        return {name: torch.tensor(array) for name, array in arrays.items()}

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """Start bringing tensors to the host, as they are after all that was queued so far."""
        return Fetched(tensors)

    def largest(self, values: Tensor, bound: int) -> int:
        """The greatest of `values` (integers, not empty), or `bound`, which none exceeds."""
        return int(values.max())


class _Staged(Fetched):
    """On their way: pinned memory, and the event after which it holds the values."""

    def __init__(self, tensors: Sequence[Tensor], stream: torch.Stream) -> None:
        device = tensors[0].device
        computed, self._done = torch.Event(device), torch.Event(device)
        computed.record(torch.accelerator.current_stream())
        _follow(stream, computed)
        with stream:
            host = []
            for tensor in tensors:
                target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                host.append(target)
                if tensor.numel():  # a step without sampling rows says nothing
                    target.copy_(tensor, non_blocking=True)
                    # Whoever frees it must not hand its memory on before this stream has read it.
                    tensor.record_stream(stream)
            self._done.record(stream)
        super().__init__(host)

    def ready(self) -> bool:
        return bool(self._done.query())

    def wait(self) -> tuple[Tensor, ...]:
        self._done.synchronize()
        return self._tensors


def _follow(stream: torch.Stream, event: torch.Event) -> None:
    """What is queued on `stream` from now on comes after `event`; the host does not wait."""
    stream.wait_event(event)


class _StagingBuffer:
    """Pinned memory for one step's inputs, by dtype, and the event after which it may be written again."""

    def __init__(self) -> None:
        self._memory: dict[torch.dtype, Tensor] = {}
        self._read: torch.Event | None = None

    def acquire(self) -> None:
        """Wait until the device has read what the buffer held. In a pipeline of the planned depth it has."""
        if self._read is not None and not self._read.query():
            self._read.synchronize()

    def release(self, device: torch.device) -> None:
        """All copies from it are queued."""
        self._read = torch.Event(device)
        self._read.record(torch.accelerator.current_stream())

    def room(self, dtype: torch.dtype, count: int) -> Tensor:
        """`[count]` pinned values. It grows by doubling, so that a hot step allocates nothing."""
        memory = self._memory.get(dtype)
        if memory is None or memory.numel() < count:
            size = max(1024, 1 << (count - 1).bit_length())
            memory = self._memory[dtype] = torch.empty(size, dtype=dtype, pin_memory=True)
        return memory[:count]


class AcceleratorRuntime(DeviceRuntime):
    """See `DeviceRuntime`. steps: how many may be in flight at a time."""

    asynchronous = True

    def __init__(self, device: torch.device, steps: int) -> None:
        super().__init__(device)
        self._ring = [_StagingBuffer() for _ in range(ring_size(steps))]
        self._next_step = 0
        self._copies = torch.Stream(device)

    def put(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """One copy for each dtype."""
        buffer = self._ring[buffer_of(self._next_step, len(self._ring))]
        self._next_step += 1
        buffer.acquire()
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name, array in arrays.items():
            by_dtype.setdefault(torch.from_numpy(np.empty(0, array.dtype)).dtype, []).append(name)
        found: dict[str, Tensor] = {}
        for dtype, names in by_dtype.items():
            found.update(self._put_alike(buffer, dtype, {name: arrays[name] for name in names}))
        buffer.release(self.device)
        return {name: found[name] for name in arrays}

    def _put_alike(
        self, buffer: _StagingBuffer, dtype: torch.dtype, arrays: Mapping[str, Array]
    ) -> dict[str, Tensor]:
        """Arrays of one dtype, in one copy."""
        starts, end = {}, 0
        for name, array in arrays.items():
            starts[name] = end
            end += -(-array.size // _ALIGNED) * _ALIGNED
        staged = buffer.room(dtype, end)
        values = staged.numpy()
        for name, array in arrays.items():
            values[starts[name] : starts[name] + array.size] = np.ravel(array)
        there = torch.empty(end, dtype=dtype, device=self.device)
        there.copy_(staged, non_blocking=True)
        return {
            name: there[starts[name] : starts[name] + array.size].view(array.shape)
            for name, array in arrays.items()
        }

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """On a stream of its own."""
        return _Staged(tensors, self._copies)

    def largest(self, values: Tensor, bound: int) -> int:
        """`bound`: the values are not looked at."""
        return bound


def runtime_for(device: torch.device, steps: int) -> DeviceRuntime:
    """The form for `device`, with at most `steps` steps in flight at a time."""
    if device.type == "cpu":
        return DeviceRuntime(device)
    return AcceleratorRuntime(device, steps)
