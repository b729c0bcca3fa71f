"""A step that was launched, and what it says once the host has its values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from hocket.runner.api import RunnerOutput, TokenLogprobs
from hocket.runner.device import Fetched
from hocket.runner.inputs import StepPlan, settle
from hocket.runner.sampling import BROKEN, token_logprobs
from hocket.runner.slots import SlotTable


class Said(NamedTuple):
    """What a step says, on its way to the host.

    rows: the step's row of each line of logits, ascending. asked: per line the number of alternatives whose
    log probabilities are wanted, None without any. counted: whether rows may emit less than they have lines.
    fetched: tokens and whether logits were broken, by line; if `counted`, tokens emitted by row; if any line
    asks for it, the results of `rank`.
    """

    rows: Sequence[int]
    asked: Sequence[int | None]
    counted: bool
    fetched: Fetched


class LaunchedStep:
    """See `StepFuture`. It knows its rows' (request, epoch), so that it books nothing for others."""

    def __init__(self, slots: SlotTable, plan: StepPlan, said: Said) -> None:
        self._slots = slots
        self._plan = plan
        self._said = said
        self._tokens: list[tuple[int, ...]] | None = None

    def ready(self) -> bool:
        """True if `wait` would not wait."""
        return self._said.fetched.ready()

    def wait(self) -> RunnerOutput:
        """The step's result. A row that failed has no tokens in it."""
        said, output = self._said, self._plan.output
        assert output.step_id is not None
        chosen, broken, *rest = said.fetched.wait()
        counts = rest.pop(0).tolist() if said.counted else None
        found = token_logprobs(token_ids := chosen.tolist(), said.asked, rest)
        is_broken = broken.tolist()
        tokens: list[tuple[int, ...]] = [()] * len(output.request_ids)
        logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(tokens)
        failures: dict[int, str] = {}
        for row, group in groupby(range(len(said.rows)), key=said.rows.__getitem__):
            mine = list(group)[: 1 if counts is None else counts[row]]
            tokens[row] = tuple(token_ids[line] for line in mine)
            logprobs[row] = tuple(entry for line in mine if (entry := found[line]) is not None) or None
            if is_broken[mine[0]]:
                failures[row], logprobs[row] = BROKEN, None
        self._tokens = tokens
        emitted = tuple(() if row in failures else own for row, own in enumerate(tokens))
        return RunnerOutput(output.step_id, emitted, tuple(logprobs), failures)

    def settle(self) -> None:
        """Book the tokens of every row (of one that failed too: it goes on until its request is ended)."""
        assert self._tokens is not None, "wait comes first"
        settle(self._slots, self._plan, self._tokens)
