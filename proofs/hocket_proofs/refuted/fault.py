"""What a seeded fault is, and how it is put in and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hocket_spec import rules, walk
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.state import Config, Group

LOCK_STEP, EXPLORER, PACKS, SIMULATION, MODEL = "lock-step", "explorer", "packs", "simulation", "model"


class Patch:
    """Attributes exchanged for a while."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Exchange an attribute of a module or class."""
        self._undo.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Exchange it for what `make` makes of it."""
        self.set(owner, name, make(owner.__dict__[name]))

    def undo(self) -> None:
        """As it was."""
        while self._undo:
            setattr(*self._undo.pop())


class Fault(NamedTuple):
    """name: what is wrong, in a few words. story: why somebody would write it, or what it leads to.

    layer: the cheapest check that must refute it. shows: what that check must say. apply: puts it in.
    where: the instance in which it shows soonest (for lock-step and explorer).
    """

    name: str
    story: str
    layer: str
    shows: str
    apply: Callable[[Patch], None]
    where: Instance | None = None


@contextmanager
def seeded(fault: Fault | None) -> Iterator[None]:
    """The fault is in while the block runs. What the model remembers from before or within is forgotten."""
    patch = Patch()
    forget()
    try:
        if fault is not None:
            fault.apply(patch)
        yield
    finally:
        patch.undo()
        forget()


def forget() -> None:
    """Clear the model's memories: they outlive a patch, and must not."""
    for memory in (walk.attempt, rules.hold):
        getattr(memory, "cache_clear", lambda: None)()


# Instances in which faults show soon: small, and tight in one respect each.
PLAIN = Instance(
    Config((Group(2),), (4,), reserve=False),
    (Traffic(4, 2), Traffic(4, 2), Traffic(2, 2)),
    aborts=True,
    preempts=1,
)
TWO = (Traffic(4, 2), Traffic(4, 2))
DRAFTING = Instance(Config((Group(1),), (8,), drafts=2), (Traffic(2, 4), Traffic(1, 4)), aborts=True)
WINDOWED = Instance(Config((Group(2), Group(1, 1, 1)), (3, 4)), TWO)
HOLDING = Instance(Config((Group(2),), (3,), chunk=3, reserve=False), (Traffic(2, 3), Traffic(3, 2)))
ALIGNED = Instance(Config((Group(2),), (4,), budget=3, alignment=2), TWO)
TRIO = (Traffic(2, 2), Traffic(4, 2), Traffic(3, 2))
TIGHT = Instance(Config((Group(2),), (3,), reserve=False), TRIO)
OWN_WINDOW = Instance(Config((Group(2), Group(1, 1, 1)), (3, 3)), TRIO)
TALKS = Instance(Config((Group(2),), (8,)), (Traffic(1, 5), Traffic(6, 1)))
MARKED = Instance(Config((Group(2),), (3,), watermark=(1,)), TWO)
PROMISING = Instance(
    Config((Group(2),), (5,), decode_steps=3, depth=1), (Traffic(4, 2), Traffic(2, 2), Traffic(1, 3))
)


def on(ins: Instance, **options: Any) -> Instance:
    """The instance with other options of its configuration, or of its own."""
    own = {key: options.pop(key) for key in tuple(options) if key in Instance._fields}
    return ins._replace(config=ins.config._replace(**options), **own)
