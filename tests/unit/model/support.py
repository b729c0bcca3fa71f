"""What the model tests share: small models, block pools that scatter and poison, and a driver for
dispatches.
"""

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hocket import KVCacheConfig, KVGroupSpec
from hocket.model.cache import GroupedCache
from hocket.model.config import DeepseekV4Config
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, PrefillDispatch
from hocket.model.kv_geometry import group_geometry
from hocket.model.random_checkpoint import tiny_config

torch.set_num_threads(1)  # test processes share the cores already

TOLERANCE = 2e-4  # absolute, float32, logits of standard deviation about 2

# Every layer kind and both routers in three layers. The narrow limit makes the clamps of the experts act.
MODELS: Mapping[str, DeepseekV4Config] = {
    "W128": tiny_config(compress_ratios=(0, 4, 128), num_hash_layers=1, swiglu_limit=1.0),
    "W16": tiny_config(
        compress_ratios=(4, 128, 4), num_hash_layers=2, sliding_window=16, index_topk=8, swiglu_limit=1.0
    ),
    "all entries": tiny_config(
        compress_ratios=(4, 0, 128), num_hash_layers=0, sliding_window=33, index_topk=512, swiglu_limit=1.0
    ),
}

# Source tokens per block. "tiny" has an edge after every row, "engine" is that of a 128-row block.
_GROUPS = ("swa", "c4", "c4_indexer", "c128", "c4_state", "c4_indexer_state", "c128_state")
GEOMETRIES: Mapping[str, Mapping[str, int]] = {
    "tiny": dict(zip(_GROUPS, (1, 4, 4, 128, 1, 1, 1), strict=True)),
    "odd": dict(zip(_GROUPS, (7, 12, 20, 256, 3, 5, 33), strict=True)),
    "engine": dict(zip(_GROUPS, (128, 512, 512, 16384, 8, 8, 32), strict=True)),
}


def cache_config(config: DeepseekV4Config, geometry: str, tokens: int, spare: int = 4) -> KVCacheConfig:
    """Pools that hold `tokens` tokens in every group, windows ignored, and `spare` blocks more."""
    return KVCacheConfig(
        groups=tuple(
            KVGroupSpec(name, size, num_blocks=-(-tokens // size) + spare, window=group.window)
            for name, group in group_geometry(config).items()
            for size in [GEOMETRIES[geometry][name]]
        )
    )


class Pages:
    """Block tables of several requests, from pools handed out at random.

    Blocks that a window returned leave the table (null block) and go to others. With `poison` a block is NaN
    whenever nobody has written it since it was handed out; without, it keeps what its last owner wrote.
    """

    def __init__(self, cache: GroupedCache, config: KVCacheConfig, poison: bool, seed: int = 0) -> None:
        self.cache, self.config, self.poison = cache, config, poison
        self.specs = {g.name: g for g in config.groups}
        self.random = random.Random(seed)
        self.free = {g.name: list(range(1, (g.num_blocks or 0) + 1)) for g in config.groups}
        self.tables: dict[str, dict[str, list[int]]] = {}

    def grow(self, request: str, computed: int, tokens: int) -> None:
        """Return what fell out of the windows at `computed`, then map `tokens` more."""
        tables = self.tables.setdefault(request, {name: [] for name in self.specs})
        for name, spec in self.specs.items():
            table, size = tables[name], spec.block_size
            if spec.window is not None:
                for column in range(min(len(table), max(0, computed - spec.window) // size)):
                    self._return(name, table[column])
                    table[column] = 0
            while len(table) * size < computed + tokens:
                table.append(self._take(name))

    def release(self, request: str) -> None:
        """Give back all blocks."""
        for name, table in self.tables.pop(request).items():
            for block in table:
                self._return(name, block)

    def block_tables(self, requests: Sequence[str]) -> dict[str, Tensor]:
        """int32 [N, columns of the longest], null-padded."""
        found = {}
        for name in self.specs:
            rows = [self.tables[r][name] for r in requests]
            width = max(map(len, rows))
            found[name] = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows], dtype=torch.int32)
        return found

    def _take(self, name: str) -> int:
        pool = self.free[name]
        block = pool.pop(self.random.randrange(len(pool)))
        if self.poison:
            rows = self.cache.rows_per_block(name)
            self.cache.tensors[name][:, block * rows : (block + 1) * rows] = float("nan")
        return block

    def _return(self, name: str, block: int) -> None:
        if block:
            self.free[name].append(block)


class Driver:
    """Runs requests through a model by packed prefill and batched decode, and collects logits per request."""

    def __init__(
        self,
        model: DeepseekV4Model,
        geometry: str = "odd",
        tokens: int = 4096,
        poison: bool = True,
        seed: int = 0,
        spare: int = 4,
    ) -> None:
        config = cache_config(model.config, geometry, tokens, spare)
        self.model = model
        self.cache = GroupedCache(model.config, config, model.dtype)
        self.cache.fill_(float("nan"))
        self.pages = Pages(self.cache, config, poison, seed)
        self.computed: dict[str, int] = {}

    def prefill(self, chunks: Mapping[str, Sequence[int]], all_rows: bool = True) -> dict[str, Tensor]:
        """One dispatch; logits [rows, V] of each request: all rows, or the last."""
        starts = [self.computed.setdefault(r, 0) for r in chunks]
        for (request, chunk), start in zip(chunks.items(), starts, strict=True):
            self.pages.grow(request, start, len(chunk))
        sizes = [len(c) for c in chunks.values()]
        dispatch = PrefillDispatch.pack(
            list(chunks.values()),
            starts,
            self.pages.block_tables(list(chunks)),
            sample_rows=range(sum(sizes)) if all_rows else None,
        )
        logits = self.model.prefill(dispatch, self.cache).logits
        for request, chunk in chunks.items():
            self.computed[request] += len(chunk)
        return dict(zip(chunks, logits.split(sizes if all_rows else 1), strict=True))

    def decode(
        self, rows: Mapping[str, Sequence[int]], accept: Mapping[str, int], width: int
    ) -> dict[str, Tensor]:
        """One dispatch of 1 + K = `width` rows each; only the first `accept` rows of a request count."""
        for request, tokens in rows.items():
            self.pages.grow(request, self.computed[request], len(tokens))
        dispatch = DecodeDispatch(
            token_ids=torch.tensor([[*t, *[0] * (width - len(t))] for t in rows.values()]),
            starts=torch.tensor([self.computed[r] for r in rows]),
            num_tokens=torch.tensor([len(t) for t in rows.values()]),
            block_tables=self.pages.block_tables(list(rows)),
        )
        logits = self.model.decode(dispatch, self.cache).logits
        for request in rows:
            self.computed[request] += accept[request]
        return {r: logits[i, : accept[r]] for i, r in enumerate(rows)}

    def run(self, prompts: Mapping[str, Tensor], chunk: int) -> dict[str, Tensor]:
        """Prefill all prompts side by side in chunks, all rows' logits; each dispatch takes those left."""
        done: dict[str, list[Tensor]] = {r: [] for r in prompts}
        offsets = {r: self.computed.get(r, 0) for r in prompts}
        while True:
            at = {r: self.computed.get(r, 0) - offsets[r] for r in prompts}
            chunks = {
                r: ids[at[r] : at[r] + chunk].tolist() for r, ids in prompts.items() if at[r] < len(ids)
            }
            if not chunks:
                return {r: torch.cat(parts) for r, parts in done.items()}
            for request, logits in self.prefill(chunks).items():
                done[request].append(logits)

    def finish(self, request: str) -> None:
        """Release a request."""
        self.pages.release(request)
        del self.computed[request]


def token_ids(count: int, seed: int, vocab: int = 128) -> Tensor:
    """Random ids >= 2, int64 [count]."""
    return torch.randint(2, vocab, (count,), generator=torch.Generator().manual_seed(seed))


def difference(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; infinity where a value is not a number (an unwritten row was read)."""
    return float((a - b).abs().nan_to_num(nan=float("inf")).max())
