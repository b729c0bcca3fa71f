"""The grouped, paged KV cache: one tensor per group, rows addressed by block id and absolute position.

What each group stores is in `kv_geometry.group_geometry`. A state row is float32 [kv | score + ape]. All
layers of a group share its block table: block b is page b in each layer's plane of the group's tensor; block
0 is the null block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hocket.core.config import KVCacheConfig
from hocket.model.config import DeepseekV4Config
from hocket.model.kv_geometry import MTP_SWA, SWA, group_geometry


class GroupedCache:
    """The cache tensors of all groups.

    Group names not of this model, missing ones, and block sizes that are no multiple of the group's ratio are
    a `ValueError`, and so are tensors that the device has no memory for. Tensors are not cleared between
    owners: a row is readable only once its owner has written it. Groups that share a pool get tensors of
    their own, each of the pool's size.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        kv_cache_config: KVCacheConfig,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        specs = {g.name: g for g in kv_cache_config.groups}
        self.layouts = group_geometry(config, drafts=MTP_SWA in specs)
        if set(specs) != set(self.layouts):
            raise ValueError(
                f"KVCacheConfig.groups must be {sorted(self.layouts)} for this model, got {sorted(specs)}"
            )
        pool_sizes = list(kv_cache_config.pool_blocks.values())
        pool_of = dict(zip(specs, kv_cache_config.pool_of_group, strict=True))
        self.block_sizes = {name: specs[name].block_size for name in self.layouts}
        self.tensors: dict[str, Tensor] = {}
        self._rows: dict[tuple[str, int], Tensor] = {}
        for name, layout in self.layouts.items():
            if specs[name].block_size % layout.ratio:
                raise ValueError(
                    f"KVGroupSpec({name!r}).block_size must be a multiple of {layout.ratio}, "
                    f"its compression ratio, got {specs[name].block_size}"
                )
            rows = (pool_sizes[pool_of[name]] + 1) * self.rows_per_block(name)
            shape = (len(layout.layers), rows, layout.width)
            tensor = _zeros(name, shape, torch.float32 if layout.is_state else dtype, device)
            self.tensors[name] = tensor
            self._rows.update({(name, layer): tensor[i] for i, layer in enumerate(layout.layers)})

    def rows_per_block(self, group: str) -> int:
        """Physical rows of one block: block size in source tokens / source tokens per row."""
        return self.block_sizes[group] // self.layouts[group].ratio

    def rows(self, group: str, layer: int) -> Tensor:
        """The plane of one layer, [(usable blocks + 1) * rows_per_block, width]: slot = block id * rows +
        offset.
        """
        return self._rows[group, layer]

    def window_group(self, layer: int) -> str:
        """The group that holds the sliding window of a layer: MTP layers have one of their own."""
        return SWA if (SWA, layer) in self._rows else MTP_SWA

    def fill_(self, value: float) -> None:
        """Overwrite every row of every group, the null block's too (tests fill with NaN)."""
        for tensor in self.tensors.values():
            tensor.fill_(value)


def _zeros(group: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """The tensor of a group; `ValueError` says its size if there is no memory for it."""
    try:
        return torch.zeros(shape, dtype=dtype, device=device)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # each device has its own kind
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"kv_cache_memory must fit into the memory of {device}, got {math.prod(shape) * dtype.itemsize} "
            f"bytes for group {group!r}: {why}"
        ) from error
