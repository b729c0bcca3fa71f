"""Drafts from the MTP layers: made when a decode row asks for them, from what its slot keeps.

By slot the drafter keeps the first draft and the *tail*, the MTP layers' outputs of the last confirmed row.
Both are renewed whenever rows are confirmed: all rows of every chunk, and of a decode row those whose tokens
were accepted. Further drafts are made only when a decode row carries them, at the beginning of its own step.
So a row always has its own drafts, however long it was absent; a row that was cut to one token costs none;
and what a draft writes lies in blocks that its step was given: the rows confirmed afterwards overwrite it, or
the next step's do, before anything reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.model.cache import GroupedCache
from hocket.model.dispatch import DecodeDispatch, Extent, PrefillDispatch
from hocket.model.mtp import MtpLayers
from hocket.runner.api import RunnerError


class SlotRows(NamedTuple):
    """The rows of a step: the slot and epoch of each, and its length, which the host knows.

    on_device: `slots` there, int64 [N].
    """

    slots: NDArray[np.int64]
    on_device: Tensor
    epochs: Sequence[int]
    lengths: Sequence[int]


class Drafter:
    """Keyed by slot and epoch: what an earlier owner of a slot left is never a draft of a later one.

    num_speculative_tokens: drafts of a row at most. Draft i comes from layer i mod the number of layers.
    """

    def __init__(
        self, mtp: MtpLayers, cache: GroupedCache, max_num_seqs: int, num_speculative_tokens: int
    ) -> None:
        self.mtp = mtp
        self._cache = cache
        config, model = mtp.config, mtp.model
        layers = min(len(mtp.layers), num_speculative_tokens)
        shape = (max_num_seqs, layers, config.hc_mult, config.hidden_size)
        self.epochs = np.full(max_num_seqs, -1, dtype=np.int64)
        """`[slots]`: the epoch that the slot's draft and tail belong to."""
        self.first_drafts = torch.zeros(max_num_seqs, dtype=torch.int64, device=model.device)
        self.tails = torch.zeros(shape, dtype=model.dtype, device=model.device)

    def propose(self, rows: SlotRows, dispatch: DecodeDispatch) -> Tensor:
        """The drafts of a step's rows, int64 [N, most]: `rows.lengths` are 1 + the drafts of each; entries
        past a row's own are valid ids without meaning.
        """
        for slot, epoch, length in zip(rows.slots.tolist(), rows.epochs, rows.lengths, strict=True):
            if length > 1 and self.epochs[slot] != epoch:
                raise RunnerError(f"slot {slot}: drafts of epoch {self.epochs[slot]} for a row of {epoch}")
        index = rows.on_device
        streams, drafts = self.tails[index, 0], [self.first_drafts[index]]
        most, layers = max(rows.lengths) - 1, len(self.mtp.layers)
        for step in range(1, most):
            layer = step % layers
            row = DecodeDispatch(
                token_ids=drafts[-1].unsqueeze(1),
                starts=dispatch.starts + (step - 1),
                num_tokens=(dispatch.num_tokens > step + 1).to(torch.int64),
                block_tables=dispatch.block_tables,
                extent=_ahead(dispatch.extent, rows.lengths, step),
            )
            # A layer whose turn comes again reads this row too: it takes the input of the layer in turn.
            for other in {later % layers for later in range(step + 1, most)} - {layer}:
                self.mtp.draft(other, row, streams, self._cache)
            streams = self.mtp.draft(layer, row, streams, self._cache)
            drafts.append(self.mtp.logits(layer, streams).argmax(dim=-1))
        return torch.stack(drafts, dim=1)

    def follow_prefill(
        self, rows: SlotRows, dispatch: PrefillDispatch, streams: Tensor, next_ids: Tensor
    ) -> None:
        """The chunks of `dispatch` were computed: `streams` [T, n, h] of the main model, `next_ids` int64 [T]
        the token after each row.
        """
        tails = self.tails[rows.on_device]
        # Where a request begins, they are an earlier owner's, if anybody's.
        tails.masked_fill_((dispatch.chunk_starts == 0).view(-1, 1, 1, 1), 0)
        follows = replace(dispatch, token_ids=next_ids)
        outputs = self.mtp.prefill(follows, streams, tails, self._cache)
        self._keep(rows, outputs[dispatch.query_start_loc[1:].to(torch.int64) - 1])

    def follow_decode(self, rows: SlotRows, confirmed: DecodeDispatch, streams: Tensor) -> None:
        """Rows of a decode step were confirmed: `confirmed.token_ids` [N, Q] are the tokens that they gave,
        num_tokens of each request; `streams`: [N, Q, n, h] of the main model.
        """
        outputs = self.mtp.decode(confirmed, streams, self.tails[rows.on_device], self._cache)
        each = torch.arange(len(rows.slots), device=outputs.device)
        self._keep(rows, outputs[each, confirmed.num_tokens - 1])

    def _keep(self, rows: SlotRows, tails: Tensor) -> None:
        self.tails[rows.on_device] = tails
        self.first_drafts[rows.on_device] = self.mtp.logits(0, tails[:, 0]).argmax(dim=-1)
        self.epochs[rows.slots] = rows.epochs


def _ahead(extent: Extent | None, lengths: Sequence[int], step: int) -> Extent | None:
    """Of the rows that draft `step` of each request writes, one where there is such a draft."""
    if extent is None:
        return None
    starts = tuple(start + step - 1 for start in extent.starts)
    return Extent(starts, tuple(int(length > step + 1) for length in lengths), extent.exact)
