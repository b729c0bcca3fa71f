"""The grouped, paged KV cache: one tensor per group, rows addressed by block id and absolute position.

Seven groups (D = head_dim, Di = index_head_dim):

    group             layers         one row per   row width    dtype
    swa               all, and MTP   token         D            model
    c4                ratio 4        4 tokens      D            model
    c4_indexer        ratio 4        4 tokens      Di           model
    c128              ratio 128      128 tokens    D            model
    c4_state          ratio 4        token         2 * 2D       float32
    c4_indexer_state  ratio 4        token         2 * 2Di      float32
    c128_state        ratio 128      token         2 * D        float32

A state row is [kv | score + ape]. Groups that no layer needs do not exist. All layers of a group share its block
table: block b is page b in each layer's plane of the group's tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hocket.core.config import KVCacheConfig
from hocket.model.config import DeepseekV4Config

SWA, C4, C4_INDEXER, C128 = "swa", "c4", "c4_indexer", "c128"
C4_STATE, C4_INDEXER_STATE, C128_STATE = "c4_state", "c4_indexer_state", "c128_state"


class GroupLayout(NamedTuple):
    """What one group stores: for `layers` (model layer indices; MTP layers follow the main ones), a row of `width`
    values for every `ratio` source tokens, in float32 if `is_state`, else in the model's dtype."""

    layers: tuple[int, ...]
    ratio: int
    width: int
    is_state: bool


def group_layouts(config: DeepseekV4Config) -> dict[str, GroupLayout]:
    """The groups that a model of this configuration needs, in the order above."""
    drafts = config.num_nextn_predict_layers if config.draft_kind == "mtp" else 0
    every = tuple(range(config.num_hidden_layers + drafts))
    r4, r128 = config.layers_with_ratio(4), config.layers_with_ratio(128)
    d, di = config.head_dim, config.index_head_dim
    layouts = {
        SWA: GroupLayout(every, 1, d, False),
        C4: GroupLayout(r4, 4, d, False),
        C4_INDEXER: GroupLayout(r4, 4, di, False),
        C128: GroupLayout(r128, 128, d, False),
        C4_STATE: GroupLayout(r4, 1, 4 * d, True),
        C4_INDEXER_STATE: GroupLayout(r4, 1, 4 * di, True),
        C128_STATE: GroupLayout(r128, 1, 2 * d, True),
    }
    return {name: layout for name, layout in layouts.items() if layout.layers}


class GroupedCache:
    """The cache tensors of all groups.

    Group names not of this model, missing ones, and block sizes that are no multiple of the group's ratio are a
    `ValueError`. Tensors are not cleared between owners: a row is readable only once its owner has written it.
    Groups that share a pool get tensors of their own, each of the pool's size.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        kv_cache_config: KVCacheConfig,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layouts = group_layouts(config)
        specs = {g.name: g for g in kv_cache_config.groups}
        if set(specs) != set(self.layouts):
            raise ValueError(f"KVCacheConfig.groups must be {sorted(self.layouts)} for this model, got {sorted(specs)}")
        pool_sizes = list(kv_cache_config.pool_blocks.values())
        pool_of = dict(zip(specs, kv_cache_config.pool_of_group, strict=True))
        self.block_sizes = {name: specs[name].block_size for name in self.layouts}
        self.tensors: dict[str, Tensor] = {}
        self._rows: dict[tuple[str, int], Tensor] = {}
        for name, layout in self.layouts.items():
            if specs[name].block_size % layout.ratio:
                raise ValueError(
                    f"KVGroupSpec({name!r}).block_size must be a multiple of the compression ratio {layout.ratio}, "
                    f"got {specs[name].block_size}"
                )
            rows = (pool_sizes[pool_of[name]] + 1) * self.rows_per_block(name)
            tensor = torch.zeros(
                len(layout.layers), rows, layout.width, dtype=torch.float32 if layout.is_state else dtype, device=device
            )
            self.tensors[name] = tensor
            self._rows.update({(name, layer): tensor[i] for i, layer in enumerate(layout.layers)})

    def rows_per_block(self, group: str) -> int:
        """Physical rows of one block: block size in source tokens / source tokens per row."""
        return self.block_sizes[group] // self.layouts[group].ratio

    def rows(self, group: str, layer: int) -> Tensor:
        """The plane of one layer, [(usable blocks + 1) * rows_per_block, width]: slot = block id * rows + offset."""
        return self._rows[group, layer]

    def fill_(self, value: float) -> None:
        """Overwrite every row of every group, the null block's too (tests fill with NaN)."""
        for tensor in self.tensors.values():
            tensor.fill_(value)
