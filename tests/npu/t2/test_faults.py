"""Each fault that the tier is there to find turns it red, for its own reason."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hocket.runner import device, model_runner
from hocket.runner.slots import SlotTable
from tests.npu.t2.check import check

Patch = pytest.MonkeyPatch


def unguarded_staging_buffer(patch: Patch) -> None:
    """One buffer for all steps, written again without asking."""
    real = device.AcceleratorRuntime.__init__
    patch.setattr(device.AcceleratorRuntime, "__init__", lambda self, where, steps: real(self, where, 0))
    patch.setattr(device._StagingBuffer, "acquire", lambda self: None)


def early_read(patch: Patch) -> None:
    """The host looks at a result before its event."""
    patch.setattr(device._Staged, "wait", lambda self: self._tensors)


def missing_wait(patch: Patch) -> None:
    """The copy of a result does not wait for the step that computes it."""
    patch.setattr(device, "_follow", lambda stream, event: None)


def item(patch: Patch) -> None:
    """A value is looked at while a step is launched."""
    real = model_runner.sample

    def sample(*given: Any) -> Any:
        found = real(*given)
        found.broken.any().item()
        return found

    patch.setattr(model_runner, "sample", sample)


def unpinned_input(patch: Patch) -> None:
    """An input made by the host on the way, past the staging buffers."""
    real = model_runner.sample
    patch.setattr(
        model_runner,
        "sample",
        lambda logits, *given: real(logits + torch.tensor([0.0], device=logits.device), *given),
    )


def cpu_tensor(patch: Patch) -> None:
    """One of the inputs stays on the host."""
    real = device.AcceleratorRuntime.put

    def put(self: Any, arrays: Any) -> Any:
        return {**real(self, arrays), "slots": torch.from_numpy(arrays["slots"])}

    patch.setattr(device.AcceleratorRuntime, "put", put)


def stale_epoch(patch: Patch) -> None:
    """A result is booked by name, whatever epoch it is of."""

    def settled(self: SlotTable, request_id: str, epoch: int, more: int, fewer: int) -> bool:
        slot = self.slot_of(request_id)
        if slot is None:
            return False
        self.computed[slot] += more
        self.at_most[slot] -= fewer
        self.unsettled[slot] -= 1
        return True

    patch.setattr(SlotTable, "settled", settled)


def freed_early(patch: Patch) -> None:
    """The copy's stream is not known to the allocator."""
    patch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)


WRONG = r"values: |on the device: |sampled_token_ids"

FAULTS: dict[str, tuple[Callable[[Patch], None], str, dict[str, Any]]] = {
    "unguarded staging buffer": (unguarded_staging_buffer, WRONG, {"sanitized": False}),
    "early read": (early_read, WRONG, {"sanitized": False}),
    "missing wait": (missing_wait, WRONG, {"sanitized": False}),
    "missing wait, sanitized": (missing_wait, "possible data race", {}),
    "freed early, sanitized": (freed_early, "missing record_stream", {}),
    "item": (item, r"the host waits while a step is launched: .*sync_stream", {"sanitized": False}),
    "unpinned input": (unpinned_input, r"the host waits while .*blocking_copy", {"sanitized": False}),
    "CPU tensor": (cpu_tensor, "a tensor of the CPU among those of the device", {"sanitized": False}),
    "stale epoch": (stale_epoch, r"tokens, a decode row at|values", {"event": "again", "sanitized": False}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_turns_the_tier_red(
    fault: str, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    seed, reason, how = FAULTS[fault]
    seed(monkeypatch)
    with pytest.raises(Exception) as found:
        check(2, 0, **how)
    said = f"{found.value!r} {found.value} {capfd.readouterr().err}"
    assert re.search(reason, said), said
