"""What `hocket validate` asks of a round: one verdict for each check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hocket.cli.main_job import LIVE, NEEDLE, Job, Observed, chunk_size, interleaving, is_right, shortened
from hocket.cli.text_checks import first_difference, garbled, is_stuck
from hocket.core.config import SchedulerConfig
from hocket.core.phase import Phase
from hocket.engine.results import RequestResult


class Verdict(NamedTuple):
    """check: its name. detail: what was found, for a reader."""

    check: str
    passed: bool
    detail: str


def judge(
    job: Job,
    alone: Mapping[str, RequestResult],
    together: Observed,
    plain: Mapping[str, Sequence[int]] | None,
) -> list[Verdict]:
    """All checks of a round. plain: what both requests said together without drafts; None in that round."""
    verdicts = [
        _answer(alone, together),
        _isolated(alone, together),
        _chunks(job, together),
        _phases(together),
        Verdict("interleaved", *interleaving(job.config, together)),
        _text(alone, together),
    ]
    if plain is not None:
        verdicts += [_same_as_plain(together, plain), _drafts(job, together)]
    return verdicts


def expected_chunks(prompt_tokens: int, config: SchedulerConfig) -> list[tuple[int, int]]:
    """(start, tokens) of the chunks of a prompt that is never preempted and has its steps to itself."""
    chunk = chunk_size(config)
    return [(start, min(chunk, prompt_tokens - start)) for start in range(0, prompt_tokens, chunk)]


def _answer(alone: Mapping[str, RequestResult], together: Observed) -> Verdict:
    wrong = [
        f"{run}: {result.text!r} ({result.error or result.finish_reason})"
        for run, result in (("alone", alone[NEEDLE]), ("together", together.results[NEEDLE]))
        if not is_right(result)
    ]
    return Verdict("answer", not wrong, "; ".join(wrong) or together.results[NEEDLE].text.strip())


def _isolated(alone: Mapping[str, RequestResult], together: Observed) -> Verdict:
    differences = [
        f"{name} differs from token {at} on"
        for name in (NEEDLE, LIVE)
        if (at := first_difference(alone[name].token_ids, together.results[name].token_ids)) is not None
    ]
    return Verdict("isolated", not differences, "; ".join(differences) or "both say what they say alone")


def _chunks(job: Job, together: Observed) -> Verdict:
    """Exact offsets and lengths, and more than one of them."""
    wanted = expected_chunks(len(job.needle.prompt_token_ids), job.config)
    found = [
        (output.num_computed_tokens[row], output.num_scheduled_tokens[row])
        for output in together.outputs
        if output.phase == Phase.PREFILL
        for row, name in enumerate(output.request_ids)
        if name == NEEDLE
    ]
    starts = shortened([start for start, _ in found])
    if found == wanted and len(found) > 1:
        return Verdict("chunks", True, starts)
    return Verdict("chunks", False, f"found {found}, expected {wanted}, at least two")


def _phases(together: Observed) -> Verdict:
    """Every decode row is of a request whose prompt is computed, and every prefill row of one that is not."""
    computed: dict[str, int] = {}
    for output in together.outputs:
        for name, tokens in zip(output.request_ids, output.num_scheduled_tokens, strict=True):
            prompt = len(together.results[name].prompt_token_ids)
            before = computed.get(name, 0)
            if (output.phase == Phase.DECODE) != (before >= prompt):
                return Verdict(
                    "phases", False, f"step {output.step_id}: a {output.phase} row of {name} at {before}"
                )
            if output.phase == Phase.PREFILL:
                computed[name] = before + tokens
    return Verdict("phases", True, f"{len(together.outputs)} steps, each of one phase")


def _text(alone: Mapping[str, RequestResult], together: Observed) -> Verdict:
    """Neither stuck nor garbled, in all four texts."""
    found = []
    for run, results in (("alone", alone), ("together", together.results)):
        for name in (NEEDLE, LIVE):
            result = results[name]
            if not result.token_ids:
                found.append(f"{name} {run} says nothing")
            if is_stuck(result.token_ids):
                found.append(f"{name} {run} repeats itself")
            found += [f"{name} {run} has {what} at {at}" for at, what in garbled(result.text)[:1]]
    return Verdict("text", not found, "; ".join(found) or "no repetition, no garble")


def _same_as_plain(together: Observed, plain: Mapping[str, Sequence[int]]) -> Verdict:
    differences = [
        f"{name} differs from token {at} on"
        for name in (NEEDLE, LIVE)
        if (at := first_difference(plain[name], together.results[name].token_ids)) is not None
    ]
    return Verdict("as AR", not differences, "; ".join(differences) or "drafts do not show in the text")


def _drafts(job: Job, together: Observed) -> Verdict:
    """Drafts were made; of guided ones some were accepted and some were not."""
    accepted, made = together.stats.num_accepted_tokens, together.stats.num_draft_tokens
    passed = made > 0 if job.texts is None else 0 < accepted < made
    return Verdict("drafts", passed, f"{accepted} of {made} drafts accepted")
