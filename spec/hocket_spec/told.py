"""What a scheduler tells a runner, row by row and in notices, and what a runner remembers of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

NULL = 0  # the null block: never handed out, fills columns that a window returned
Block = tuple[int, int]  # (pool, id)


class Told(Protocol):
    """The part of a scheduler output that a runner obeys."""

    @property
    def phase(self) -> int | None: ...
    @property
    def request_ids(self) -> Sequence[str]: ...
    @property
    def epochs(self) -> Sequence[int]: ...
    @property
    def num_computed_tokens(self) -> Sequence[int]: ...
    @property
    def num_scheduled_tokens(self) -> Sequence[int]: ...
    @property
    def samples(self) -> Sequence[bool]: ...
    @property
    def new_block_ids(self) -> Sequence[Mapping[str, Sequence[int]]]: ...
    @property
    def preempted_request_ids(self) -> Sequence[str]: ...
    @property
    def finished_request_ids(self) -> Sequence[str]: ...
    @property
    def resumed_request_ids(self) -> Sequence[str]: ...


class Slot(NamedTuple):
    """computed: rows that exist once all dispatches ran, drafts included; certain: rows that exist
    whatever is
    rejected; processed: rows whose results the scheduler has. last: a token was sampled that decode can go
    on from.
    """

    epoch: int
    computed: int
    certain: int
    processed: int
    tables: tuple[tuple[int, ...], ...]
    last: bool


class Flown(NamedTuple):
    """A row in flight, the first token that it may write, and the blocks: block -> token past its end."""

    name: str
    epoch: int
    length: int
    first: int
    writes: Mapping[Block, int]
