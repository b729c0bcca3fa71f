"""`npu_sparse_attn_sharedkv` of the custom CANN packages: sparse attention at the sizes of DeepSeek-V4."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import custom

NEEDS = ("npu_sparse_attn_sharedkv", "npu_sparse_attn_sharedkv_metadata")

# What the kernel is built for.
_HEADS, _DIM, _WINDOW, _TOPK = 64, 512, 128, 512


def refuses_shared_kv(
    q: Tensor,
    window: int,
    swa_cache: Tensor,
    swa_block_size: int,
    ratio: int,
    entry_block_size: int,
    chosen: Tensor | None,
) -> str:
    """Why the kernel cannot take these arguments, "" if it can."""
    if q.shape[-2:] != (_HEADS, _DIM) or not q.numel():
        return f"q is {tuple(q.shape)}, not rows of [{_HEADS}, {_DIM}]"
    if q.dtype != torch.bfloat16 or swa_cache.dtype != q.dtype:
        return f"q is {q.dtype} and the cache {swa_cache.dtype}, not bfloat16"
    if window != _WINDOW:
        return f"a window of {window} rows, not {_WINDOW}"
    if chosen is not None and chosen.shape[-1] != _TOPK:
        return f"{chosen.shape[-1]} chosen entries a row, not {_TOPK}"
    blocks = [swa_block_size] + ([entry_block_size // ratio] if ratio else [])
    odd = [rows for rows in blocks if rows % 16 or rows > 1024]
    return f"a block of {odd[0]} rows, not a multiple of 16 up to 1024" if odd else ""


def _in_blocks(cache: Tensor, rows: int) -> Tensor:
    """[P, D] -> [blocks, rows, one head, D]."""
    return cache.view(-1, rows, 1, cache.shape[1])


def shared_kv_attention(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int,
    entry_cache: Tensor | None,
    entry_table: Tensor | None,
    entry_block_size: int,
    chosen: Tensor | None,
) -> Tensor:
    """Packed rows q [T, H, D]; query lengths cumulative from 0, sequence lengths one by one. -> [T, H, D]."""
    compressed = ratio > 0
    # What the two ops share; how the work is cut is computed on the device, by the first.
    shared = {
        "cu_seqlens_q": query_start_loc.to(torch.int32),
        "seqused_kv": seq_lens.to(torch.int32),
        "cmp_ratio": max(1, ratio),
        "ori_mask_mode": 4,
        "cmp_mask_mode": 3,
        "ori_win_left": window - 1,
        "ori_win_right": 0,
        "layout_q": "TND",
        "layout_kv": "PA_ND",
    }
    metadata = custom("npu_sparse_attn_sharedkv_metadata")(
        num_heads_q=q.shape[1],
        num_heads_kv=1,
        head_dim=q.shape[2],
        batch_size=seq_lens.shape[0],
        max_seqlen_q=max_query_len,
        max_seqlen_kv=max_seq_len,
        cmp_topk=0 if chosen is None else chosen.shape[-1],
        has_ori_kv=True,
        has_cmp_kv=compressed,
        device=str(q.device),
        **shared,
    )
    entries = None
    if compressed:
        assert entry_cache is not None, "compressed layers have a cache group"
        entries = _in_blocks(entry_cache, entry_block_size // ratio)
    out, _ = custom("npu_sparse_attn_sharedkv")(
        q.contiguous(),
        ori_kv=_in_blocks(swa_cache, swa_block_size),
        cmp_kv=entries,
        cmp_sparse_indices=None if chosen is None else chosen.to(torch.int32).unsqueeze(1),
        ori_block_table=swa_table,
        cmp_block_table=entry_table,
        sinks=sinks,
        metadata=metadata,
        softmax_scale=scale,
        **shared,
    )
    return out  # type: ignore[no-any-return]
