"""A device "npu" whose memory is the host's: torch_npu on the fake CANN runtime (`fake_acl.c`).

torch_npu's own allocator, streams, events, pinned memory and copies run as they are. Compute has no kernels
here: `FakeDevice`, a dispatch mode, queues every operation on the current (fake) stream, where it runs on CPU
kernels over the same bytes when the stream gets there. Only its shapes are worked out at once.

What would make the host wait on a real device is recorded, with the line of hocket that asked for it; what a
real device would refuse (a tensor of the CPU among its own) is an error.

    with fake_device() as device:
        ...
        with device.watched() as syncs:
            ...
        assert syncs == []
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch_npu.npu import _stream_check

aten = torch.ops.aten
acl = ctypes.CDLL("libascendcl.so")
acl.fake_acl_count.restype = ctypes.c_long
acl.fake_acl_no_op_calls.restype = ctypes.c_long
acl.fake_acl_no_op_name.restype = ctypes.c_char_p

COUNTS = (
    "sync_stream", "sync_event", "sync_device", "blocking_copy", "async_copy", "record", "wait", "job",
    "malloc", "pending",
)  # fmt: skip

# torch_npu's own: memory, and what only looks at it. (Reading a value is a copy to the host that waits.)
NATIVE = {
    aten.empty.memory_format, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.empty_like.default, aten.record_stream.default,
    aten.is_pinned.default, aten._pin_memory.default,
    aten.set_.source_Storage, aten.set_.source_Tensor, aten.resize_.default, aten.detach.default,
    aten._reshape_alias.default, aten._local_scalar_dense.default,
}  # fmt: skip


class Sync(NamedTuple):
    """The host waited: how ("sync_stream", ...), or for which operation's shape, and who asked for it."""

    what: str
    origin: str
    """"runner/sampling.py:31", or "" if no line of hocket is on the stack."""


class _Output(NamedTuple):
    """A result of an operation: an input that it returns, a new tensor, or a plain value."""

    source: int | None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    value: Any = None


def origin() -> str:
    """The innermost line of hocket's own code on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        for package in ("/impl/hocket/", "/kernels/hocket_kernels/"):
            if package in name:
                return f"{name.partition(package)[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the bytes of one of the device."""
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    flat = torch.frombuffer((ctypes.c_uint8 * size).from_address(storage.data_ptr()), dtype=torch.uint8)
    return torch.empty(0, dtype=tensor.dtype).set_(
        flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


class FakeDevice(TorchDispatchMode):
    """See the module; `fake_device()` makes and enters one."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[Sync] = []
        self.failures: list[BaseException] = []
        """What operations raised when their time had come; a real device would have failed there."""
        self._jobs: dict[int, Callable[[], object]] = {}
        self._number = 0
        # The C side keeps no reference to these two.
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_long)(self._run_job)
        self._hear = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._heard)

    def defer(self, on: bool) -> None:
        """Run queued work as late as a device may (True), or when it is queued."""
        acl.fake_acl_defer(int(on))

    def counts(self) -> dict[str, int]:
        """Calls of the runtime so far, and tasks that have not run."""
        return {name: acl.fake_acl_count(i) for i, name in enumerate(COUNTS)}

    @contextmanager
    def watched(self) -> Iterator[list[Sync]]:
        """The times that the host waits in here."""
        before, self.syncs = self.syncs, []
        try:
            yield self.syncs
        finally:
            before += self.syncs
            self.syncs = before

    def raise_failure(self) -> None:
        """Raise what an operation raised, if one did."""
        if self.failures:
            error = self.failures[0]
            raise RuntimeError(f"on the device: {type(error).__name__}: {error}") from error

    # --- The runtime's calls ----------------------------------------------------------------------

    def _heard(self, kind: int) -> None:
        self.syncs.append(Sync(COUNTS[kind], origin()))

    def _run_job(self, number: int) -> None:
        try:
            # Tensors made in inference mode may be written only there.
            with _disable_current_modes(), torch.inference_mode():
                self._jobs.pop(number)()
        except BaseException as error:  # noqa: BLE001 - nothing can be raised through the C code
            self.failures.append(error)

    def _launch(self, job: Callable[[], object]) -> None:
        self._number += 1
        self._jobs[self._number] = job
        acl.fake_acl_launch(_current_stream(), self._run, ctypes.c_long(self._number))

    # --- Operations -------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.raise_failure()
        kwargs = kwargs or {}
        tensors: list[torch.Tensor] = []
        _changed((args, kwargs), lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None)
        asked = kwargs.get("device")
        here = any(t.device.type == "npu" for t in tensors)
        if not here and (asked is None or torch.device(asked).type != "npu"):
            return func(*args, **kwargs)
        if _has_kernel(func, "CompositeImplicitAutograd"):
            with self:  # in inference mode these come whole; a device gets their parts
                return func.decompose(*args, **kwargs)
        if func in NATIVE or func.is_view:
            return func(*args, **kwargs)
        if func in (aten.copy_.default, aten._to_copy.default):
            ends = [t.device.type for t in tensors]
            if func is aten._to_copy.default and asked is not None:
                ends.append(torch.device(asked).type)
            if "cpu" in ends:
                return self._transfer(func, args, kwargs)
        if any(t.device.type == "cpu" and t.dim() for t in tensors):
            raise RuntimeError(f"{func}: a tensor of the CPU among those of the device")
        if func.namespace == "npu" and not _has_kernel(func, "CPU"):
            raise NotImplementedError(f"{func} has no implementation on the CPU")
        return self._compute(func, args, kwargs, tensors)

    def _transfer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A copy between host and device goes through torch_npu; a conversion on the way is the device's."""
        if func is aten.copy_.default or kwargs.get("dtype") in (None, args[0].dtype):
            return func(*args, **kwargs)
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        with self:
            converted = func(*args, **rest)
            return converted.to(kwargs["device"], non_blocking=kwargs.get("non_blocking", False))

    def _compute(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Queue the operation; its results are tensors whose values come later."""
        given = _changed((args, kwargs), _on_host_too)
        outputs = None if _waits_for_values(func, tensors, args) else self._outputs(func, given)
        if outputs is None:
            return self._compute_now(func, given)
        made: list[Any] = []
        targets: list[torch.Tensor | None] = []
        for output in outputs[0]:
            new = output.dtype is not None
            if new:
                made.append(
                    torch.empty_strided(output.shape, output.strides, dtype=output.dtype, device="npu")
                )
            else:
                made.append(output.value if output.source is None else tensors[output.source])
            targets.append(on_host(made[-1]) if new and made[-1].numel() else None)

        def job() -> None:
            results: list[Any] = []
            _changed(func(*given[0], **given[1]), results.append)
            for target, result in zip(targets, results, strict=True):
                if target is not None:
                    target.copy_(result)

        self._launch(job)
        left = iter(made)
        return _changed(outputs[1], lambda _: next(left))

    def _compute_now(self, func: Any, given: Any) -> Any:
        """The shape depends on values, so the host waits for them."""
        self.syncs.append(Sync(str(func), origin()))
        acl.fake_acl_drain(_current_stream())

        def there(result: Any) -> Any:
            if not isinstance(result, torch.Tensor):
                return result
            own = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="npu")
            if result.numel():
                on_host(own).copy_(result)
            return own

        with _disable_current_modes(), torch.inference_mode():
            return _changed(func(*given[0], **given[1]), there)

    def _outputs(self, func: Any, given: Any) -> tuple[list[_Output], Any] | None:
        """What the operation returns, by shapes alone, flat and as a tree; None if they depend on values.
        Worked out once.
        """
        key = (func, _key(given))
        if key not in _SHAPES:
            _SHAPES[key] = self._worked_out(func, given)
        return _SHAPES[key]

    def _worked_out(self, func: Any, given: Any) -> tuple[list[_Output], Any] | None:
        sources: dict[int, int] = {}

        def faked(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            fake = mode.from_tensor(leaf)
            sources[id(fake)] = len(sources)
            kept.append(fake)
            return fake

        kept: list[torch.Tensor] = []
        try:
            with FakeTensorMode() as mode:
                args, kwargs = _changed(given, faked)
                results = func(*args, **kwargs)
        except Exception:
            if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags):
                return None
            raise

        def looked(x: Any) -> None:
            if id(x) in sources:
                outputs.append(_Output(sources[id(x)]))
            elif isinstance(x, torch.Tensor):
                outputs.append(_Output(None, tuple(x.shape), tuple(x.stride()), x.dtype))
            else:
                outputs.append(_Output(None, value=x))

        outputs: list[_Output] = []
        return outputs, _changed(results, looked)


def _current_stream() -> ctypes.c_void_p:
    stream = torch.accelerator.current_stream()
    if stream.stream_id not in _HANDLES:
        _HANDLES[stream.stream_id] = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
    return _HANDLES[stream.stream_id]


_HANDLES: dict[int, ctypes.c_void_p] = {}

_SHAPES: dict[Any, tuple[list[_Output], Any] | None] = {}
"""Operation and shapes of its inputs -> its outputs."""


@functools.cache
def _has_kernel(func: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree of tuples, lists and dicts with every leaf changed."""
    kind = type(value)
    if kind is tuple:
        return tuple([_changed(v, change) for v in value])
    if kind is list:
        return [_changed(v, change) for v in value]
    if kind is dict:
        return {k: _changed(v, change) for k, v in value.items()}
    return change(value)


def _key(value: Any) -> Any:
    """What results' shapes may depend on, as a key."""
    kind = type(value)
    if kind is tuple or kind is list:
        return tuple([_key(v) for v in value])
    if kind is dict:
        return tuple([(k, _key(v)) for k, v in value.items()])
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    return kind, value


def _on_host_too(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return on_host(leaf) if leaf.device.type == "npu" else leaf.clone()
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _waits_for_values(func: Any, tensors: list[torch.Tensor], args: Any) -> bool:
    """Operations whose shapes are plain here and not on a device: a mask as index is turned into numbers
    first, unless one value is filled in.
    """
    if func not in (aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default):
        return False
    masked = any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return masked and args[2].numel() > 1


@functools.cache
def _sanitizer() -> Any:
    """torch_npu's own stream sanitizer: who reads what another stream writes without waiting for it, who
    frees what another stream still uses. Once switched on in a process it stays on.
    """
    os.environ["TORCH_NPU_SANITIZER"] = "1"  # it looks at it when it is imported
    from torch_npu.npu import _sanitizer as sanitizer

    sanitizer.enable_npu_sanitizer()
    sanitizer.npu_sanitizer.dispatch.__exit__(None, None, None)
    return sanitizer.npu_sanitizer.event_handler


@contextmanager
def fake_device(sanitized: bool = True) -> Iterator[FakeDevice]:
    """The device, for one block in one thread, in deferred mode.

    What operations raised on the device is raised at the end of the block, and, where `sanitized`, what
    torch_npu's sanitizer has found.
    """
    device = FakeDevice()
    torch.npu.set_device(0)
    acl.fake_acl_on_sync(device._hear)
    acl.fake_acl_defer(1)
    try:
        with ExitStack() as stack:
            stack.enter_context(device)
            if sanitized:
                # Entered last, so that it sees the operations on tensors of the device.
                handler = _sanitizer()
                handler.__init__()  # it must not remember what stood at an address in another test
                stack.enter_context(_stream_check.NPUSanitizerDispatchMode(handler))
            yield device
            torch.accelerator.synchronize()
    finally:
        acl.fake_acl_defer(0)
        torch.accelerator.synchronize()
        acl.fake_acl_on_sync(None)
    device.raise_failure()
    if sanitized:
        _sanitizer().flush_record_stream_warnings()
        if _sanitizer().record_stream_errors:
            raise _sanitizer().record_stream_errors[0]
