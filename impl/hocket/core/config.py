"""Configuration.

Frozen, checked at construction, every bad value a `ValueError` with field, value and range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from hocket.core.checks import (
    require_bool,
    require_int,
    require_number,
    require_optional_int,
    require_str,
    require_unique,
    shown,
)


class WaitingBound(NamedTuple):
    """Upper bounds that the scheduler keeps, in `schedule()` calls with room in the pipeline."""

    prefill: int
    """How often prefill can be passed over while serviceable, between two prefill dispatches."""
    decode: int
    """How often decode can be passed over while serviceable, between two decode dispatches."""
    admission: int
    """How often a waiting head that fits at every call can be passed over."""
    senior_progress: int
    """How often the most senior running request with tokens left can be passed over, where a step holds every
    ready row of its phase and no junior ends with a row in flight meanwhile. In narrower steps rows take
    turns instead (L3), the senior too; a junior that ends so has the senior wait for results once more."""


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """One KV cache group: a set of layers whose cache rows share block tables.

    `block_size` is in source tokens. `window=None` keeps the full history; an int keeps the last `window`
    tokens (blocks wholly older are returned once the progress that outdates them is processed). A group has
    its own pool of `num_blocks` usable blocks, or draws on the shared pool named `pool`; exactly one of the
    two is given.
    """

    name: str
    block_size: int
    num_blocks: int | None = None
    window: int | None = None
    pool: str | None = None

    def __post_init__(self) -> None:
        require_str("KVGroupSpec.name", self.name)
        prefix = f"KVGroupSpec({self.name!r})"
        require_int(f"{prefix}.block_size", self.block_size, 1)
        require_optional_int(f"{prefix}.num_blocks", self.num_blocks, 1)
        require_optional_int(f"{prefix}.window", self.window, 1)
        if self.pool is not None:
            require_str(f"{prefix}.pool", self.pool)
        if (self.num_blocks is None) == (self.pool is None):
            raise ValueError(
                f"{prefix} must have exactly one of num_blocks (a pool of its own) and pool (a shared one), "
                f"got num_blocks={self.num_blocks!r} and pool={self.pool!r}"
            )


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The KV cache groups of a model and the shared pools (name -> usable blocks) that they draw on.

    Block ids run from 1 to the pool's usable blocks; id 0 is the pool's null block and is never handed out.
    """

    groups: tuple[KVGroupSpec, ...]
    pools: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: object = self.groups
        groups = tuple(given) if isinstance(given, (list, tuple)) else ()
        if not groups or not all(isinstance(g, KVGroupSpec) for g in groups):
            raise ValueError(
                f"KVCacheConfig.groups must be a non-empty sequence of KVGroupSpec, got {shown(self.groups)}"
            )
        object.__setattr__(self, "groups", groups)
        require_unique("KVCacheConfig.groups names", [g.name for g in groups])
        if not isinstance(self.pools, Mapping):
            raise ValueError(
                f"KVCacheConfig.pools must map pool names to block counts, got {shown(self.pools)}"
            )
        for name, blocks in self.pools.items():
            require_str("KVCacheConfig.pools key", name)
            require_int(f"KVCacheConfig.pools[{name!r}]", blocks, 1)
        object.__setattr__(self, "pools", MappingProxyType(dict(self.pools)))
        used = {g.pool for g in groups if g.pool is not None}
        for group in groups:
            if group.pool is not None and group.pool not in self.pools:
                raise ValueError(
                    f"KVGroupSpec({group.name!r}).pool must be one of the pools {sorted(self.pools)}, "
                    f"got {group.pool!r}"
                )
            if group.pool is None and group.name in self.pools:
                raise ValueError(
                    "KVCacheConfig.pools must not be named like a group with a pool of its own, "
                    f"got {group.name!r}"
                )
        for name in self.pools:
            if name not in used:
                raise ValueError(
                    f"KVCacheConfig.pools[{name!r}] must be used by a group, got no group that names it"
                )

    def __reduce__(self) -> tuple[type[KVCacheConfig], tuple[tuple[KVGroupSpec, ...], dict[str, int]]]:
        """Pickle by value: a mapping proxy cannot be pickled."""
        return KVCacheConfig, (self.groups, dict(self.pools))

    @property
    def pool_blocks(self) -> dict[str, int]:
        """Usable blocks of every pool.

        Own pools under their group's name, in group order, shared ones at first use.
        """
        blocks: dict[str, int] = {}
        for group in self.groups:
            if group.pool is not None:
                blocks.setdefault(group.pool, self.pools[group.pool])
            else:
                assert group.num_blocks is not None
                blocks[group.name] = group.num_blocks
        return blocks

    @property
    def pool_of_group(self) -> tuple[int, ...]:
        """For each group the index of its pool in `pool_blocks`."""
        names = list(self.pool_blocks)
        return tuple(names.index(g.pool if g.pool is not None else g.name) for g in self.groups)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Every knob of the scheduler. Token counts are per step; `async_depth` is the number of unprocessed
    dispatches.

    max_num_seqs: running requests at most (both phases together).
    max_num_batched_tokens: tokens of one dispatch at most; a decode row with drafts counts 1 + drafts.
    prefill_chunk_size: tokens of one prefill row at most; floored to `chunk_alignment`.
    max_model_len: prompt plus outputs of one request at most.
    async_depth: 1 is synchronous.
    num_speculative_tokens: drafts of a decode row (K).
    prefill_steps_per_turn, decode_steps_per_turn: dispatches of the owed phase before the other one is owed.
    chunk_alignment: ends of non-final chunks are multiples of it.
    reserve_full_prompt: admit a request only if its whole replay fits, and promise it those blocks.
    watermark: fraction of each pool that an admission must leave free, waived when nothing runs.
    max_num_queued_reqs: refuse `add_request` when so many wait (None: no limit).
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 8192
    prefill_chunk_size: int = 2048
    max_model_len: int = 16384
    async_depth: int = 2
    num_speculative_tokens: int = 0
    prefill_steps_per_turn: int = 1
    decode_steps_per_turn: int = 1
    chunk_alignment: int = 1
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    enable_prefix_caching: bool = False
    max_num_queued_reqs: int | None = None

    def __post_init__(self) -> None:
        require_int("num_speculative_tokens", self.num_speculative_tokens, 0)
        require_int("max_num_seqs", self.max_num_seqs, 1)
        # A decode row of full length must fit into a step.
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1 + self.num_speculative_tokens)
        require_int("prefill_chunk_size", self.prefill_chunk_size, 1)
        require_int("max_model_len", self.max_model_len, 2)
        require_int("async_depth", self.async_depth, 1)
        require_int("prefill_steps_per_turn", self.prefill_steps_per_turn, 1)
        require_int("decode_steps_per_turn", self.decode_steps_per_turn, 1)
        largest_chunk = min(self.prefill_chunk_size, self.max_num_batched_tokens)
        require_int("chunk_alignment", self.chunk_alignment, 1, largest_chunk)
        require_bool("reserve_full_prompt", self.reserve_full_prompt)
        require_number("watermark", self.watermark, 0.0, 1.0)
        require_bool("enable_prefix_caching", self.enable_prefix_caching)
        if self.enable_prefix_caching:
            raise ValueError(
                "enable_prefix_caching must be False, got True: grouped prefix caching is not available yet"
            )
        require_optional_int("max_num_queued_reqs", self.max_num_queued_reqs, 1)

    @property
    def aligned_chunk_size(self) -> int:
        """`prefill_chunk_size` floored to a multiple of `chunk_alignment`, in tokens."""
        return self.prefill_chunk_size - self.prefill_chunk_size % self.chunk_alignment

    @property
    def max_row_len(self) -> int:
        """The longest row of either phase, in tokens: max(chunk size, 1 + K)."""
        return max(self.aligned_chunk_size, 1 + self.num_speculative_tokens)

    def waiting_bound(self) -> WaitingBound:
        """The bounds L1, L4 and L7 for this configuration."""
        p, d = self.prefill_steps_per_turn, self.decode_steps_per_turn
        return WaitingBound(
            prefill=d,
            decode=p,
            admission=2 * d + 1 if p == 1 else d + 1,
            senior_progress=self.async_depth - 1 + max(p, d),
        )
