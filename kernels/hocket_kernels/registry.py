"""The registry of ops: each has one schema, one reference, and implementations that a device may prefer.

An op is registered with torch once, as `torch.ops.hocket.NAME`. On CPU and CUDA it is its reference. On an
accelerator that plugs into torch (key PrivateUse1: an NPU) it is the first implementation, in the order of
`SOURCES`, that is loaded and takes the arguments; without one it is the reference there too, which is plain
torch. Nothing else decides: an op has one call site, and the caller does not know the device.

Nothing here has run on an NPU. What stands in an implementation is checked against the schemas and the shape
functions of the libraries it calls, not against what their kernels compute.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACE = "hocket"
SOURCES = ("stock", "custom", "triton", "reference")
"""Where an implementation comes from, in the order of preference: torch_npu's own ops (`torch.ops.npu`), a
custom CANN package that the process has loaded, a Triton kernel of ours, plain torch."""
CUSTOM_NAMESPACES = ("_C_ascend", "custom")
"""Under which the known CANN packages register their ops."""

_LIBRARY: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


class Implementation(NamedTuple):
    """One way to run an op on an accelerator.

    source: of `SOURCES`, not "reference". needs: names of the ops that it calls (stock and custom) or of its
    kernel (triton). run: same arguments and results as the reference, up to rounding. refuses: same
    arguments; why `run` cannot take them, "" if it can. It looks at dtypes, shapes and ints, never at values.
    """

    source: str
    needs: tuple[str, ...]
    run: Callable[..., Any]
    refuses: Callable[..., str]


class Choice(NamedTuple):
    """What an op would use. passed_over: (source, reason) of what is preferred and cannot be used."""

    source: str
    needs: tuple[str, ...]
    run: Callable[..., Any]
    passed_over: tuple[tuple[str, str], ...]


class Op(NamedTuple):
    """A registered op. overload: what callers call. fake: the shapes and dtypes of the results."""

    name: str
    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]
    overload: torch._ops.OpOverload
    implementations: tuple[Implementation, ...]


OPS: dict[str, Op] = {}

_num_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def op(
    schema: str, fake: Callable[..., Any], implementations: Sequence[Implementation] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register the decorated function, the reference, under its name; the result dispatches by device.

    schema: arguments and results, without the name. fake: same arguments; empty results of the right shapes.
    """

    def register(reference: Callable[P, R]) -> Callable[P, R]:
        name = reference.__name__
        assert name not in OPS, f"op {name!r} is registered twice"
        order = [SOURCES.index(i.source) for i in implementations]
        assert order == sorted(order), f"{name}: implementations stand in the order of SOURCES"
        _LIBRARY.define(name + schema)
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, reference, key)
        _LIBRARY.impl(name, _chooser(name), "PrivateUse1")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
        overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        OPS[name] = Op(name, name + schema, reference, fake, overload, tuple(implementations))

        @wraps(reference)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # The dispatcher could only find the reference here, and asking it costs more than some ops do.
            if args and type(args[0]) is Tensor and args[0].is_cpu and not _num_dispatch_modes():
                return reference(*args, **kwargs)
            return cast("R", overload(*args, **kwargs))

        return call

    return register


def _chooser(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: choose(name, *args, **kwargs).run(*args, **kwargs)


def choose(name: str, *args: Any, **kwargs: Any) -> Choice:
    """What op `name` uses on an accelerator for these arguments."""
    passed_over: list[tuple[str, str]] = []
    for candidate in OPS[name].implementations:
        reason = missing(candidate) or candidate.refuses(*args, **kwargs)
        if not reason:
            return Choice(*candidate[:3], tuple(passed_over))
        passed_over.append((candidate.source, reason))
    return Choice("reference", (), OPS[name].reference, tuple(passed_over))


def overview(device_type: str) -> list[tuple[str, str, str]]:
    """For each op what it would use on a device ("cpu", "cuda", "npu") and why: (op, use, reason).

    As far as it can be said without arguments: an implementation whose library is loaded may still refuse
    some; `choose` says it for given ones.
    """
    lines = []
    for entry in OPS.values():
        if device_type in ("cpu", "cuda"):
            lines.append((entry.name, "reference", f"on {device_type} every op is its reference"))
            continue
        absent = [(c, missing(c)) for c in entry.implementations]
        loaded = [c for c, reason in absent if not reason]
        reasons = [f"{c.source}: {reason}" for c, reason in absent if reason]
        if loaded:
            use = f"{loaded[0].source} {', '.join(loaded[0].needs)}"
            lines.append((entry.name, use, "; ".join(["where it takes the arguments", *reasons])))
        else:
            lines.append((entry.name, "reference", "; ".join(reasons) or "nothing else computes the same"))
    return lines


def missing(candidate: Implementation) -> str:
    """Why an implementation cannot be used at all in this process, "" if it can."""
    if candidate.source == "triton":
        return "" if _triton_is_usable() else "no Triton for this device"
    absent = [name for name in candidate.needs if find(candidate.source, name) is None]
    return f"{', '.join(absent)} is not loaded" if absent else ""


def find(source: str, name: str) -> Callable[..., Any] | None:
    """The op of a stock or custom library, or None if the process has not loaded it."""
    for namespace in ("npu",) if source == "stock" else CUSTOM_NAMESPACES:
        found = getattr(getattr(torch.ops, namespace), name, None)
        if found is not None:
            return cast("Callable[..., Any]", found)
    return None


def stock(name: str) -> Callable[..., Any]:
    """An op of torch_npu."""
    found = find("stock", name)
    assert found is not None, f"npu::{name} was called before it was looked for"
    return found


def custom(name: str) -> Callable[..., Any]:
    """An op of a custom CANN package."""
    found = find("custom", name)
    assert found is not None, f"{name} was called before it was looked for"
    return found


@cache
def _triton_is_usable() -> bool:
    """Triton for Ascend is installed, or kernels are to be interpreted (on any device, for tests)."""
    if importlib.util.find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    from triton.backends import backends

    return "ascend" in backends
