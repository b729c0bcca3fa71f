"""From a model configuration to a `KVCacheConfig`: groups, windows, block sizes, bytes and block counts.

Eight groups at most (D = head_dim, Di = index_head_dim); one is there only if some layer needs it, the last
one only if drafts are made:

    group             layers             one row per   values in a row   window (source tokens)
    swa               all main layers    token         D                 sliding_window
    c4                ratio 4            4 tokens      D                 full history
    c4_indexer        ratio 4            4 tokens      Di                full history
    c128              ratio 128          128 tokens    D                 full history
    c4_state          ratio 4            token         4 D, float32      8
    c4_indexer_state  ratio 4            token         4 Di, float32     8
    c128_state        ratio 128          token         2 D, float32      128
    mtp_swa           MTP layers         token         D                 sliding_window

Everything here counts in source tokens: a block of `block_size` tokens holds block_size / (tokens per row)
rows in each layer of its group. No torch: the scheduler's side uses this too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hocket.core.checks import require_int
from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.model.config import DeepseekV4Config

SWA, C4, C4_INDEXER, C128 = "swa", "c4", "c4_indexer", "c128"
C4_STATE, C4_INDEXER_STATE, C128_STATE = "c4_state", "c4_indexer_state", "c128_state"
MTP_SWA = "mtp_swa"
GROUP_NAMES = (SWA, C4, C4_INDEXER, C128, C4_STATE, C4_INDEXER_STATE, C128_STATE)
SHARED_POOL = "main"

# The overlap of ratio 4 reads the previous window too: 4 closed tokens and up to 4 open ones.
STATE_WINDOWS = {C4_STATE: 8, C4_INDEXER_STATE: 8, C128_STATE: 128}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


class GroupGeometry(NamedTuple):
    """What one group stores: a row of `width` values for every `ratio` source tokens, in each of `layers`.

    `layers` are model layer indices; MTP layers follow the main ones. States are float32 whatever the cache's
    dtype.
    """

    layers: tuple[int, ...]
    ratio: int
    width: int
    window: int | None
    is_state: bool

    def bytes_per_block(self, block_size: int, dtype: str = "float32") -> int:
        """Bytes that one block of `block_size` source tokens takes over all layers of the group."""
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
        itemsize = 4 if self.is_state else DTYPE_BYTES[dtype]
        return len(self.layers) * (block_size // self.ratio) * self.width * itemsize


def group_geometry(model: DeepseekV4Config, drafts: bool = False) -> dict[str, GroupGeometry]:
    """The groups that a model of this configuration needs, in the order of the table above.

    `drafts`: the MTP layers run too. They have a group of their own, so that who makes no drafts pays
    nothing.
    """
    main = model.num_hidden_layers
    layers = tuple(range(main))
    mtp = tuple(range(main, main + model.num_nextn_predict_layers)) if drafts else ()
    r4, r128 = model.layers_with_ratio(4), model.layers_with_ratio(128)
    d, di = model.head_dim, model.index_head_dim
    table = {
        SWA: GroupGeometry(layers, 1, d, model.sliding_window, False),
        C4: GroupGeometry(r4, 4, d, None, False),
        C4_INDEXER: GroupGeometry(r4, 4, di, None, False),
        C128: GroupGeometry(r128, 128, d, None, False),
        C4_STATE: GroupGeometry(r4, 1, 4 * d, STATE_WINDOWS[C4_STATE], True),
        C4_INDEXER_STATE: GroupGeometry(r4, 1, 4 * di, STATE_WINDOWS[C4_INDEXER_STATE], True),
        C128_STATE: GroupGeometry(r128, 1, 2 * d, STATE_WINDOWS[C128_STATE], True),
        MTP_SWA: GroupGeometry(mtp, 1, d, model.sliding_window, False),
    }
    return {name: group for name, group in table.items() if group.layers}


def default_block_sizes(
    model: DeepseekV4Config, block_size: int = 128, drafts: bool = False
) -> dict[str, int]:
    """Block sizes in source tokens, group by group, for a base of `block_size` physical rows (a multiple of
    16).

    Row groups hold `block_size` rows a block: block_size, 4 and 128 times as many tokens. State rows are
    wide, so their blocks hold 1/16 (ratio 4) and 1/4 (ratio 128) as many. 128 gives 128, 512, 512, 16384, 8,
    8 and 32 tokens, and 128 for MTP.
    """
    require_int("block_size", block_size, 16, 1 << 20)
    if block_size % 16:
        raise ValueError(f"block_size must be a multiple of 16, got {block_size}")
    sizes = {C4_STATE: block_size // 16, C4_INDEXER_STATE: block_size // 16, C128_STATE: block_size // 4}
    groups = group_geometry(model, drafts)
    return {name: sizes.get(name, block_size * group.ratio) for name, group in groups.items()}


def blocks_per_request(block_size: int, window: int | None, tokens: int, row: int) -> int:
    """The most blocks of one group that a request of `tokens` tokens ever needs, with rows of at most `row`
    tokens.

    The maximum over progress 0 <= q < tokens of ceil(min(q + row, tokens) / block_size), minus, in a windowed
    group, the floor(max(0, q - window) / block_size) blocks that were returned.
    """
    require_int("tokens", tokens, 1)
    if window is None:
        return -(-tokens // block_size)
    # While rows are whole the count grows up to q = window and is periodic in block_size from there; from the
    # first row on that is cut at `tokens` it only falls. So the first period holds the maximum.
    most: int = max(
        -(-min(q + row, tokens) // block_size) - max(0, q - window) // block_size
        for q in range(min(tokens, window + block_size + 1))
    )
    return most


def build_kv_cache_config(
    model: DeepseekV4Config,
    scheduler: SchedulerConfig,
    *,
    budget_bytes: int,
    budget_field: str = "budget_bytes",
    dtype: str = "float32",
    block_size: int = 128,
    block_sizes: Mapping[str, int] | None = None,
    request_tokens: int | None = None,
    shared_pool: bool = False,
) -> KVCacheConfig:
    """Groups and block counts that fill at most `budget_bytes`, null blocks included.

    The budget is split so that every group can serve the same load: requests of `request_tokens` tokens each
    (default: `scheduler.max_model_len`), all decoding but for the rows that prefill dispatches in flight may
    hold. At most `scheduler.max_num_seqs` requests of full length are provided for; what is left of the
    budget then stays unused. `block_sizes` overrides `default_block_sizes(model, block_size)` group by group.
    The group of the MTP layers is there if `scheduler.num_speculative_tokens` is not 0.

    With `shared_pool` all groups draw on one pool, "main": a block id is a page in every group's tensors, so
    a block costs the sum of the groups' bytes. ValueError if the budget cannot hold one request of full
    length; it calls the budget `budget_field`, the caller's own name for it.
    """
    groups = group_geometry(model, scheduler.num_speculative_tokens > 0)
    sizes = _block_sizes(model, block_size, block_sizes)
    require_int(budget_field, budget_bytes, 1)
    typical = scheduler.max_model_len if request_tokens is None else request_tokens
    require_int("request_tokens", typical, 1, scheduler.max_model_len)
    per_block = {name: group.bytes_per_block(sizes[name], dtype) for name, group in groups.items()}
    load = _Load(groups, sizes, scheduler, typical)

    def cost(blocks: Mapping[str, int]) -> int:
        if shared_pool:
            return (sum(blocks.values()) + 1) * sum(per_block.values())
        return sum((count + 1) * per_block[name] for name, count in blocks.items())

    smallest = load.blocks(0)
    if cost(smallest) > budget_bytes:
        raise ValueError(
            f"{budget_field} must be at least {cost(smallest)} for one request of max_model_len = "
            f"{scheduler.max_model_len} tokens, got {budget_bytes}"
        )
    low, high = 0, scheduler.max_num_seqs * scheduler.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(load.blocks(middle)) <= budget_bytes else (low, middle - 1)
    blocks = load.blocks(low)
    return _config(groups, sizes, blocks, shared_pool)


class _Load(NamedTuple):
    """How many blocks each group needs for a load of so many tokens in all requests together."""

    groups: Mapping[str, GroupGeometry]
    sizes: Mapping[str, int]
    scheduler: SchedulerConfig
    request_tokens: int

    def blocks(self, tokens: int) -> dict[str, int]:
        """Blocks by group for `tokens` tokens in requests of `request_tokens`, one long request at least."""
        out: dict[str, int] = {}
        s = self.scheduler
        prefills = s.async_depth * -(-s.max_num_batched_tokens // s.max_row_len)
        for name, group in self.groups.items():
            size, window = self.sizes[name], group.window
            longest = blocks_per_request(size, window, s.max_model_len, s.max_row_len)
            steady = blocks_per_request(size, window, self.request_tokens, 1 + s.num_speculative_tokens)
            need = -(-tokens * steady // self.request_tokens)
            if window is not None:
                chunk = blocks_per_request(size, window, self.request_tokens, s.max_row_len)
                covered = min(prefills * self.request_tokens, tokens)
                need += -(-covered * (chunk - steady) // self.request_tokens)
            out[name] = max(longest, need)
        return out


def _block_sizes(
    model: DeepseekV4Config, block_size: int, overrides: Mapping[str, int] | None
) -> dict[str, int]:
    """Sizes of all groups that the model may have: one set of options serves with and without drafts."""
    groups = group_geometry(model, drafts=True)
    sizes = default_block_sizes(model, block_size, drafts=True)
    for name, size in (overrides or {}).items():
        if name not in groups:
            raise ValueError(
                f"block_sizes must name groups of this model ({', '.join(groups)}), got {name!r}"
            )
        require_int(f"block_sizes[{name!r}]", size, 1, 1 << 27)
        if size % groups[name].ratio:
            raise ValueError(f"block_sizes[{name!r}] must be a multiple of {groups[name].ratio}, got {size}")
        sizes[name] = size
    return sizes


def _config(
    groups: Mapping[str, GroupGeometry],
    sizes: Mapping[str, int],
    blocks: Mapping[str, int],
    shared_pool: bool,
) -> KVCacheConfig:
    specs = tuple(
        KVGroupSpec(name, sizes[name], window=group.window, pool=SHARED_POOL)
        if shared_pool
        else KVGroupSpec(name, sizes[name], num_blocks=blocks[name], window=group.window)
        for name, group in groups.items()
    )
    return KVCacheConfig(groups=specs, pools={SHARED_POOL: sum(blocks.values())} if shared_pool else {})


def kv_cache_bytes(model: DeepseekV4Config, cache: KVCacheConfig, dtype: str = "float32") -> int:
    """Bytes of the tensors that hold `cache` for `model`, null blocks included."""
    pools, names = cache.pool_blocks, list(cache.pool_blocks)
    geometry = group_geometry(model, drafts=True)
    return sum(
        (pools[names[pool]] + 1) * geometry[spec.name].bytes_per_block(spec.block_size, dtype)
        for spec, pool in zip(cache.groups, cache.pool_of_group, strict=True)
    )
