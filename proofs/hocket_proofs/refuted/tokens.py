"""Faults in rows, results, epochs and replays (S2, S8, S9, S10)."""

from __future__ import annotations

from typing import Any

from hocket.sched import kernel
from hocket.sched.in_flight import InFlightLedger
from hocket.sched.live import LiveRequest
from hocket.sched.scheduler import Scheduler
from hocket_proofs.refuted.fault import ALIGNED, DRAFTING, LOCK_STEP, PLAIN, Fault, Patch, on
from hocket_spec.check.instances import Traffic


def ended_epochs_count(patch: Patch) -> None:
    """The epoch is compared, not whether it has ended."""
    patch.set(kernel, "is_current", lambda row, request, running: row == request)


def everything_is_stale_after_preemption(patch: Patch) -> None:
    """A request that was once preempted never gets a result again."""
    patch.set(kernel, "is_current", lambda row, request, running: running and row == request and row < 3)


def stale_rows_give_back(patch: Patch) -> None:
    """A stale result is not applied, but its placeholders are taken off the new incarnation."""

    def make(real: Any) -> Any:
        def process_oldest(self: InFlightLedger) -> Any:
            step = real(self)
            for row in step.rows:
                if not row.is_current:
                    p = row.live.progress
                    row.live.progress = p._replace(placeholders=p.placeholders - row.reserved)
            return step

        return process_oldest

    patch.wrap(InFlightLedger, "process_oldest", make)


def epoch_survives_preemption(patch: Patch) -> None:
    """Re-admission goes on in the old epoch."""

    def make(real: Any) -> Any:
        def start_row(self: Scheduler, row: Any, step_id: int) -> Any:
            epoch = row.live.epoch
            blocks = real(self, row, step_id)
            row.live.epoch = epoch
            return blocks

        return start_row

    patch.wrap(Scheduler, "_start_row", make)


def resumption_not_told(patch: Patch) -> None:
    """The runner is not told that a request starts again."""

    def make(real: Any) -> Any:
        def dispatch(self: Scheduler, plan: Any) -> Any:
            for row in plan.rows:
                if row.live.status == "preempted":
                    row.live.epoch, self._next_epoch = kernel.epochs_at_arrival(self._next_epoch)
                    row.live.status = "waiting"
            return real(self, plan)

        return dispatch

    patch.wrap(Scheduler, "_dispatch", make)


def rejected_stay_computed(patch: Patch) -> None:
    """Rejected drafts are taken for tokens."""
    patch.wrap(kernel, "progress_decode_processed", lambda real: lambda progress, length, accepted: real(
        progress, length, accepted)._replace(computed=progress.computed))  # fmt: skip


def rejected_keep_placeholders(patch: Patch) -> None:
    """Only the accepted tokens are given back."""
    patch.wrap(kernel, "progress_decode_processed", lambda real: lambda progress, length, accepted: real(
        progress, length, accepted)._replace(placeholders=progress.placeholders - accepted))  # fmt: skip


def replay_of_the_prompt_only(patch: Patch) -> None:
    """Emitted tokens are not computed again."""
    patch.set(LiveRequest, "num_tokens", property(lambda self: len(self.request.prompt_token_ids)))


def replay_judged_by_prompt_length(patch: Patch) -> None:
    """A replay samples as soon as the prompt is through."""

    def make(real: Any) -> Any:
        def advance(self: Scheduler, phase: int, row: Any) -> Any:
            replay, row.live.replay_len = row.live.replay_len, len(row.live.request.prompt_token_ids)
            try:
                return real(self, phase, row)
            finally:
                row.live.replay_len = replay

        return advance

    patch.wrap(Scheduler, "_advance", make)


def placeholder_for_a_non_final_chunk(patch: Patch) -> None:
    """Every row reserves a token."""
    patch.wrap(kernel, "reserved_tokens", lambda real: lambda phase, length, samples: real(
        phase, length, True))  # fmt: skip


def no_drafts(patch: Patch) -> None:
    """Drafts are configured and never carried."""
    patch.set(kernel, "decode_len", lambda allowed, drafts: 1)


def drafts_past_the_limit(patch: Patch) -> None:
    """A phantom step past max_tokens."""
    patch.set(kernel, "decode_len", lambda allowed, drafts: 1 + drafts)


def own_limit_of_drafts_ignored(patch: Patch) -> None:
    """What is configured goes for everybody."""
    patch.set(kernel, "row_drafts", lambda drafts, wanted: drafts)


def alignment_ignored(patch: Patch) -> None:
    """Chunks end anywhere."""
    patch.wrap(kernel, "chunk_len", lambda real: lambda at, end, size, left, alignment: real(
        at, end, size, left, 1))  # fmt: skip


def alignment_of_lengths(patch: Patch) -> None:
    """The length is floored, not the end; the last chunk too."""
    patch.set(kernel, "chunk_len", lambda at, end, size, left, alignment: min(size, end - at, left)
              // alignment * alignment)  # fmt: skip


def chunk_of_nothing(patch: Patch) -> None:
    """A chunk that was floored to nothing is dispatched."""
    patch.set(kernel, "row_fits", lambda length, left: length <= left)


def goes_on_after_a_stop(patch: Patch) -> None:
    """The end of the text is a token like any other."""
    patch.wrap(kernel, "end_after_token", lambda real: lambda outputs, limit, least, ends: real(
        outputs, limit, least, False))  # fmt: skip


def ends_one_token_early(patch: Patch) -> None:
    """`>` for `>=`, the other way round."""
    patch.wrap(kernel, "end_after_token", lambda real: lambda outputs, limit, least, ends: real(
        outputs, limit - (limit > 1), least, ends))  # fmt: skip


def emits_past_the_end(patch: Patch) -> None:
    """Accepted drafts after a stop are part of the answer."""

    def emit(self: Scheduler, live: Any, tokens: tuple[int, ...]) -> Any:
        live.output_token_ids.extend(tokens)
        ends = kernel.end_after_token(
            len(live.output_token_ids), live.limit, live.min_tokens, bool(live.stop_tokens & set(tokens))
        )
        return tokens, ends

    patch.set(Scheduler, "_emit", emit)


def wrong_boundary_token(patch: Patch) -> None:
    """The draft layer's last input of a chunk is the chunk's own last token, not the one that follows."""
    patch.wrap(LiveRequest, "token_at", lambda real: lambda self, position: real(self, position - 1))


def preemption_keeps_progress(patch: Patch) -> None:
    """Blocks go, the count of computed tokens stays."""

    def make(real: Any) -> Any:
        def preempt(self: Scheduler, live: Any) -> None:
            progress = live.progress
            real(self, live)
            live.progress = progress

        return preempt

    patch.wrap(Scheduler, "_preempt", make)


def abort_without_notice(patch: Patch) -> None:
    """The runner keeps the slot of an aborted request."""

    def make(real: Any) -> Any:
        def end(self: Scheduler, live: Any) -> None:
            real(self, live)
            self._notices._finished.pop(live.request_id, None)

        return end

    patch.wrap(Scheduler, "_end", make)


FAULTS = (
    Fault("results of an ended epoch count", "a preempted request gets the token that it lost", LOCK_STEP,
          "told", ended_epochs_count, PLAIN),
    Fault("everything is stale after a preemption", "a filter that never opens again", LOCK_STEP, "differ",
          everything_is_stale_after_preemption, PLAIN),
    Fault("stale rows take off placeholders", "the token is dropped, its bookkeeping is not", LOCK_STEP,
          "differ", stale_rows_give_back, PLAIN),
    Fault("the epoch survives preemption", "status instead of epoch: old and new rows look alike", LOCK_STEP,
          "length", epoch_survives_preemption, PLAIN),
    Fault("a resumption is not told", "the runner goes on where there is nothing", LOCK_STEP, "resumed False",
          resumption_not_told, PLAIN),
    Fault("preemption keeps the progress", "computed tokens without blocks", LOCK_STEP, "differ",
          preemption_keeps_progress, PLAIN),
    Fault("rejected drafts stay computed", "holes in the cache", LOCK_STEP, "differ", rejected_stay_computed,
          DRAFTING),
    Fault("placeholders of rejected drafts stay", "the request ends early", LOCK_STEP, "differ",
          rejected_keep_placeholders, DRAFTING),
    Fault("replay of the prompt only", "emitted tokens are missing from the cache", LOCK_STEP, "differ",
          replay_of_the_prompt_only, PLAIN),
    Fault("replay judged by prompt length", "a resumed request emits twice", LOCK_STEP, "length",
          replay_judged_by_prompt_length, on(PLAIN, chunk=1)),
    Fault("placeholder for a non-final chunk", "counts a token that nobody samples", LOCK_STEP, "length",
          placeholder_for_a_non_final_chunk, PLAIN),
    Fault("never carries drafts", "speculation switched off without a word", LOCK_STEP, "drafts", no_drafts,
          DRAFTING),
    Fault("drafts past the limit", "a phantom step", LOCK_STEP, "length", drafts_past_the_limit, DRAFTING),
    Fault("a request's own limit of drafts is ignored", "speculation for those who declined it", LOCK_STEP,
          "length", own_limit_of_drafts_ignored,
          on(DRAFTING, traffic=(Traffic(2, 4, drafts=1), Traffic(1, 4, drafts=0)))),
    Fault("chunks ignore the alignment", "the compressor sees half a tile", LOCK_STEP, "alignment",
          alignment_ignored, ALIGNED),
    Fault("lengths are aligned, not ends", "the last chunk is never whole", LOCK_STEP,
          "empty, due is prefill", alignment_of_lengths, on(ALIGNED, traffic=(Traffic(3, 2), Traffic(3, 2)))),
    Fault("chunk floored to zero", "an empty row goes to the kernel", LOCK_STEP, "alignment",
          chunk_of_nothing, on(ALIGNED, traffic=(Traffic(6, 1), Traffic(4, 1)), pools=(6,))),
    Fault("goes on after a stop", "text after the end of the text", LOCK_STEP, "S10 one-terminal-event",
          goes_on_after_a_stop, PLAIN),
    Fault("ends one token early", "a comparison off by one", LOCK_STEP, "S10 one-terminal-event",
          ends_one_token_early, PLAIN),
    Fault("emits past the end", "drafts accepted after a stop are told", LOCK_STEP, "told",
          emits_past_the_end, DRAFTING),
    Fault("wrong boundary token of MTP", "the draft layer learns a chunk's last token twice", LOCK_STEP,
          "lookahead", wrong_boundary_token, PLAIN),
    Fault("abort without notice", "the runner's slots run out", LOCK_STEP, "notices", abort_without_notice,
          PLAIN),
)  # fmt: skip
