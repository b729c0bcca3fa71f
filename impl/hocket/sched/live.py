"""The scheduler's record of one request between `add_request` and its terminal output."""

from __future__ import annotations

from hocket.core.records import RequestStatus
from hocket.core.request import Request
from hocket.kv.tables import BlockTable
from hocket.sched import kernel
from hocket.sched.kernel import Vector


class LiveRequest:
    """Mutable state of one request; only `Scheduler` changes it, and the planner only reads it.

    `seniority` orders requests: (priority, arrival), smaller is more senior; it survives preemption.
    """

    __slots__ = (
        "drafts",
        "epoch",
        "limit",
        "min_tokens",
        "output_token_ids",
        "overdue",
        "progress",
        "promise",
        "replay_len",
        "replay_promise",
        "request",
        "seniority",
        "served",
        "status",
        "stop_tokens",
        "tables",
    )

    # Set when the request starts to wait: blocks per pool that its whole replay needs at most.
    replay_promise: Vector
    # Set at its admission: what it is promised of them, until the replay has been dispatched; its tokens.
    promise: Vector
    replay_len: int
    # Set with each row: the step in which it last had one. The least recently served go first.
    served: int

    def __init__(
        self,
        request: Request,
        arrival: int,
        epoch: int,
        limit: int,
        drafts: int,
        tables: tuple[BlockTable, ...],
    ) -> None:
        params = request.sampling_params
        self.request = request
        self.seniority = (request.priority, arrival)
        self.limit = limit
        self.drafts = drafts
        self.min_tokens = params.min_tokens
        stop_tokens = set(params.stop_token_ids)
        if request.eos_token_id is not None and not params.ignore_eos:
            stop_tokens.add(request.eos_token_id)
        self.stop_tokens = frozenset(stop_tokens)
        self.tables = tables
        self.output_token_ids: list[int] = []
        # The epoch of the present incarnation; between preemption and re-admission the one that ended.
        self.epoch = epoch
        # None once the terminal output is out: rows still in flight find their epoch ended.
        self.status: RequestStatus | None = "waiting"
        self.progress = kernel.no_progress()
        # Head of the queue when a prefill dispatch went without it: goes first in the next one (L4).
        self.overdue = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def num_tokens(self) -> int:
        """Prompt plus outputs."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    @property
    def allowed(self) -> int:
        """Tokens that it may still be scheduled to emit."""
        return kernel.tokens_allowed(self.limit, len(self.output_token_ids), self.progress.placeholders)

    def token_at(self, position: int) -> int:
        """Token of the replay (prompt, then outputs) at `position`."""
        prompt = self.request.prompt_token_ids
        return prompt[position] if position < len(prompt) else self.output_token_ids[position - len(prompt)]
