"""Drafts that are right at most positions and wrong at some, whatever the MTP layers are worth.

With a random MTP layer no draft is ever accepted, so nothing shows whether accepted drafts are handled well.
Where a request's text is known from a run without drafts, its drafts can be taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hocket.engine.engine import Engine
from hocket.model.dispatch import DecodeDispatch
from hocket.runner.drafts import Drafter, SlotRows
from hocket.runner.model_runner import ModelRunner

WRONG_EVERY = 5
"""A draft for a position that is a multiple of it is wrong."""


class GuidedDrafter(Drafter):
    """Stands in for the drafter of `runner`, which must have made no draft yet. What it proposes replaces
    what the MTP layers do, after they have: all else of them goes on.

    texts: prompt and outputs of each request. One that is not in it, and what comes after a text's end, gets
        the drafts of the MTP layers.
    """

    def __init__(
        self, runner: ModelRunner, num_speculative_tokens: int, texts: Mapping[str, Sequence[int]]
    ) -> None:
        assert runner.drafter is not None, "drafts need MTP layers"
        super().__init__(runner.drafter.mtp, runner.cache, len(runner.slots.epochs), num_speculative_tokens)
        self._slots, self._vocab_size = runner.slots, runner.vocab_size
        self._texts = {
            name: torch.tensor(tokens, dtype=torch.int64, device=runner.model.device)
            for name, tokens in texts.items()
        }

    def propose(self, rows: SlotRows, dispatch: DecodeDispatch) -> Tensor:
        """As `Drafter.propose`. Nothing is looked at: where a row starts, only the device knows."""
        drafts = super().propose(rows, dispatch)
        names = {self._slots.slot_of(name): name for name in self._slots.request_ids}
        ahead = torch.arange(1, 1 + drafts.shape[1], device=drafts.device)
        guided = []
        for line, slot in enumerate(rows.slots.tolist()):
            text = self._texts.get(names[slot])
            own = drafts[line]
            if text is not None:
                positions = dispatch.starts[line] + ahead
                told = text[positions.clamp(max=len(text) - 1)]
                told = (told + (positions % WRONG_EVERY == 0)) % self._vocab_size
                own = torch.where(positions < len(text), told, own)
            guided.append(own)
        return torch.stack(guided)


def guide(engine: Engine, texts: Mapping[str, Sequence[int]]) -> None:
    """Make a fresh engine with drafts propose guided ones. texts: as `GuidedDrafter` takes them."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    runner.drafter = GuidedDrafter(runner, engine.scheduler.config.num_speculative_tokens, texts)
