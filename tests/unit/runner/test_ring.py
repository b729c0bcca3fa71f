"""The staging buffers of an accelerator's runtime: which step gets which one. No accelerator is needed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hocket.runner import device
from hocket.runner.device import AcceleratorRuntime
from hocket.runner.ring_rules import buffer_of, ring_size

CPU = torch.device("cpu")


class Buffer:
    """Memory that is not pinned. It notes the step that fills it."""

    def __init__(self, log: list[tuple["Buffer", str]]) -> None:
        self._log = log

    def acquire(self) -> None:
        self._log.append((self, "acquire"))

    def release(self, where: torch.device) -> None:
        assert where == CPU
        self._log.append((self, "release"))

    def room(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        self._log.append((self, "room"))
        return torch.empty(count, dtype=dtype)


def filled(monkeypatch: pytest.MonkeyPatch, steps: int, count: int) -> tuple[list[int], int]:
    """The number of the buffer of each of `count` steps in turn, and how many buffers there are."""
    made: list[Buffer] = []
    log: list[tuple[Buffer, str]] = []

    def make() -> Buffer:
        made.append(Buffer(log))
        return made[-1]

    monkeypatch.setattr(device, "_StagingBuffer", make)
    monkeypatch.setattr(torch, "Stream", lambda where: None)
    runtime = AcceleratorRuntime(CPU, steps)
    found = []
    for step in range(count):
        log.clear()
        there = runtime.put({"a": np.array([step, 7]), "b": np.array([0.5], np.float32)})
        assert (there["a"].tolist(), there["b"].tolist()) == ([step, 7], [0.5])
        assert [what for _, what in log] == ["acquire", "room", "room", "release"]
        assert len({id(buffer) for buffer, _ in log}) == 1
        found.append(made.index(log[0][0]))
    return found, len(made)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_steps_in_flight_have_buffers_of_their_own(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    found, buffers = filled(monkeypatch, steps, 4 * steps + 3)
    for step in range(len(found)):
        assert len(set(found[max(0, step - steps) : step + 1])) == min(step, steps) + 1
    assert buffers == steps + 1


Rule = Callable[[int, int], int]


@pytest.mark.parametrize("rule", [buffer_of, lambda step, buffers: -step % buffers], ids=["shipped", "other"])
def test_the_runtime_asks_the_rule(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    monkeypatch.setattr(device, "buffer_of", rule)
    found, buffers = filled(monkeypatch, 2, 9)
    assert buffers == ring_size(2)
    assert found == [rule(step, buffers) for step in range(9)]
