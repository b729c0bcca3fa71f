"""Faults of the glue between runner and model. Recorded runs of a real small model find them; torch is loaded
only when one is put in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hocket_proofs.refuted.fault import MODEL, Fault, Patch


def stale_drafts_after_a_gap(patch: Patch) -> None:
    """Drafts are kept by row of the last step, so a request that was absent from it gets another's."""
    import torch

    from hocket.runner.drafts import Drafter

    def keep(real: Any) -> Any:
        def kept(self: Any, rows: Any, tails: Any) -> None:
            real(self, rows, tails)
            self.last_step = rows.on_device

        return kept

    def propose(real: Any) -> Any:
        def proposed(self: Any, rows: Any, dispatch: Any) -> Any:
            mine, last = rows.on_device, self.last_step
            owners = last[torch.arange(len(mine)) % len(last)]
            own = self.first_drafts[mine].clone(), self.tails[mine].clone()
            self.first_drafts[mine], self.tails[mine] = self.first_drafts[owners], self.tails[owners]
            drafts = real(self, rows, dispatch)
            self.first_drafts[mine], self.tails[mine] = own
            return drafts

        return proposed

    patch.wrap(Drafter, "_keep", keep)
    patch.wrap(Drafter, "propose", propose)


def rejected_row_left_in_a_state(patch: Patch) -> None:
    """What a rejected draft wrote into a compressor state is taken for the row that follows instead of it."""
    from hocket.model import attention

    def make(real: Any) -> Any:
        written: dict[tuple[int, str, int, int], int] = {}  # cache, group, layer, slot -> position

        def compress(w: Any, x: Any, step: Any, cache: Any, layer: int, *given: Any) -> None:
            group = given[-1]
            rows, slots = cache.rows(group, layer), step.write_slots[group]
            here = [(id(cache), group, layer, slot) for slot in slots.tolist()]
            at = step.positions.tolist()
            again = [i for i, key in enumerate(here) if written.get(key) == at[i]]
            before = rows[slots[again]].clone()
            real(w, x, step, cache, layer, *given)
            rows[slots[again]] = before
            written.update(zip(here, at, strict=True))

        return compress

    patch.wrap(attention, "_compress", make)


def mtp_reads_the_row_itself(patch: Patch) -> None:
    """The MTP layers are given each row's own token instead of the one after it, past the end of a chunk."""
    from hocket.runner.drafts import Drafter

    def make(real: Any) -> Any:
        def follow(self: Any, rows: Any, dispatch: Any, streams: Any, next_ids: Any) -> None:
            ids, lasts = next_ids.clone(), dispatch.query_start_loc[1:].long() - 1
            ids[lasts] = dispatch.token_ids[lasts]
            real(self, rows, dispatch, streams, ids)

        return follow

    patch.wrap(Drafter, "follow_prefill", make)


def mtp_cache_dropped_at_a_boundary(patch: Patch) -> None:
    """Each chunk begins with an empty cache of the MTP layers."""
    from hocket.model.kv_geometry import MTP_SWA
    from hocket.model.mtp import MtpLayers

    def make(real: Any) -> Any:
        def prefill(self: Any, dispatch: Any, streams: Any, tails: Any, cache: Any) -> Any:
            size = cache.rows_per_block(MTP_SWA)
            for row, start in enumerate(dispatch.chunk_starts.tolist()):
                for block in dispatch.block_tables[MTP_SWA][row].tolist() if start else ():
                    cache.tensors[MTP_SWA][:, block * size : (block + 1) * size] = 0
            return real(self, dispatch, streams, tails, cache)

        return prefill

    patch.wrap(MtpLayers, "prefill", make)


def accepted_drafts_are_not_told(patch: Patch) -> None:
    """Of a decode row the MTP layers hear the first token only, however many were accepted."""
    from hocket.runner.drafts import Drafter

    def make(real: Any) -> Any:
        def follow(self: Any, rows: Any, confirmed: Any, streams: Any) -> None:
            first = replace(confirmed, num_tokens=confirmed.num_tokens.clamp(max=1))
            real(self, rows, first, streams)

        return follow

    patch.wrap(Drafter, "follow_decode", make)


def ring_of_one_tile(patch: Patch) -> None:
    """The states of ratio 4 keep one tile: the overlap reads the tile before it as well."""
    from hocket.model import kv_geometry

    def make(real: Any) -> Any:
        def geometry(*given: Any, **named: Any) -> Any:
            found = real(*given, **named)
            short = {n: g._replace(window=1) for n, g in found.items() if g.is_state and g.ratio == 1}
            return found | short

        return geometry

    patch.wrap(kv_geometry, "group_geometry", make)


FAULTS = (
    Fault("model: stale drafts after a gap", "a row that was absent comes back with another's draft", MODEL,
          "drafts", stale_drafts_after_a_gap),
    Fault("model: rejected row left in a compressor state",
          "the next entry is made from a token that was never said", MODEL, "logits of",
          rejected_row_left_in_a_state),
    Fault("model: wrong boundary token of MTP", "the last row of a chunk is told its own token",
          MODEL, "drafts", mtp_reads_the_row_itself),
    Fault("model: MTP cache dropped at a boundary", "each chunk drafts as if it were the prompt's beginning",
          MODEL, "drafts", mtp_cache_dropped_at_a_boundary),
    Fault("model: accepted drafts are not told", "after a good guess the next one continues an older text",
          MODEL, "drafts", accepted_drafts_are_not_told),
    Fault("model: ring of one tile", "the state is given back while an overlap still reads it", MODEL,
          "R1 schedule-invariance", ring_of_one_tile),
)  # fmt: skip
