"""Compressors of ratio 4 and 128: state update by absolute position, then pooling of the windows that close.

Token s contributes a key-value vector and a score; entry j pools the window of `ratio` tokens that starts at
position ratio * j, with a softmax over the window taken separately in each channel. State rows are float32
[kv | score + ape], where ape is indexed by position mod ratio. A token's row is written where its absolute
position says, so that writing a rejected position again is idempotent and the window of an entry may have
been written by several dispatches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.kv_write import grouped_kv_write_
from hocket_kernels.registry import Implementation, op
from hocket_kernels.rms_norm import rms_norm
from hocket_kernels.rotary import partial_rotary


def _pool(kv: Tensor, scores: Tensor, norm_weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """kv, scores: [E, slots, D]. Entry = RoPE(RMS(sum over slots of softmax(scores) * kv))."""
    pooled = (scores.softmax(dim=1) * kv).sum(dim=1)
    return partial_rotary(rms_norm(pooled, norm_weight, eps), cos, sin, inverse=False)


def _update_(state: Tensor, slots: Tensor, kv_score: Tensor, ape: Tensor, positions: Tensor) -> None:
    kv, score = kv_score.chunk(2, dim=-1)
    phase = positions % ape.shape[0]  # in range for the -1 of a dropped row too
    grouped_kv_write_(state, slots, torch.cat((kv, score + ape[phase]), dim=-1))


def _fake(
    state: Tensor,
    kv_score: Tensor,
    ape: Tensor,
    positions: Tensor,
    slots: Tensor,
    window_slots: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    halves = 4 if ape.shape[0] == 4 else 2
    return state.new_empty(window_slots.shape[0], state.shape[1] // halves)


def _triton(
    state: Tensor,
    kv_score: Tensor,
    ape: Tensor,
    positions: Tensor,
    slots: Tensor,
    window_slots: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    from hocket_kernels.vector_kernels import compressor_pool, compressor_update_

    compressor_update_(state, slots, kv_score, ape, positions)
    pooled = compressor_pool(state, window_slots, 2 if ape.shape[0] == 4 else 1)
    return partial_rotary(rms_norm(pooled, norm_weight, eps), cos, sin, inverse=False)


def _refuses(
    state: Tensor,
    kv_score: Tensor,
    ape: Tensor,
    positions: Tensor,
    slots: Tensor,
    window_slots: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> str:
    return "" if state.is_contiguous() else "the state is not contiguous"


_SCHEMA = (
    "(Tensor(a!) state, Tensor kv_score, Tensor ape, Tensor positions, Tensor slots, Tensor window_slots,"
    " Tensor norm_weight, float eps, Tensor cos, Tensor sin) -> Tensor"
)
# The `compressor` of custom packages is another op: it holds the projection, another layout of the state and
# packs what closes in an order of its own.
_IMPLEMENTATIONS = [
    Implementation("triton", ("compressor_update_", "compressor_pool"), _triton, _refuses),
]


@op(_SCHEMA, _fake, _IMPLEMENTATIONS)
def compress_ratio4_(
    state: Tensor,
    kv_score: Tensor,
    ape: Tensor,
    positions: Tensor,
    slots: Tensor,
    window_slots: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Ratio 4 with overlap. Writes the T rows to `state` (in place), then returns the E closed entries.

    Entry j pools 8 slots: the FIRST halves (channels [0, D)) of tokens 4j - 4 .. 4j - 1 and the SECOND halves
    of tokens 4j .. 4j + 3, each with its own score. Entry 0 has no previous window: those slots count as kv 0
    and score -inf. Rotary at position 4j.

    state: float32 [P, 4D]. kv_score: float32 [T, 4D], [wkv x | wgate x]. ape: float32 [4, 2D]. positions:
    int64 [T]. slots: int64 [T], -1 to drop. window_slots: int64 [E, 8], state rows of tokens 4j - 4 .. 4j +
    3, -1 where there is none (an entry with 8 x -1 is a placeholder whose result is meaningless).
    norm_weight: float32 [D]. cos, sin: float32 [E, R / 2] at position 4j. Returns float32 [E, D].
    """
    _update_(state, slots, kv_score, ape, positions)
    entries, width = window_slots.shape[0], state.shape[1] // 4
    if not entries:
        return state.new_empty(0, width)
    # A state row is four pieces: kv first half, kv second half, score first half, score second half.
    half = torch.arange(8, device=state.device).div(4, rounding_mode="floor")
    piece = window_slots.clamp(min=0) * 4 + half
    gathered = state.view(-1, width).index_select(0, torch.cat((piece, piece + 2), dim=1).flatten())
    kv, scores = gathered.view(entries, 16, width).chunk(2, dim=1)
    missing = (window_slots < 0).unsqueeze(-1)
    kv, scores = kv.masked_fill(missing, 0.0), scores.masked_fill(missing, float("-inf"))
    return _pool(kv, scores, norm_weight, eps, cos, sin)


@op(_SCHEMA, _fake, _IMPLEMENTATIONS)
def compress_ratio128_(
    state: Tensor,
    kv_score: Tensor,
    ape: Tensor,
    positions: Tensor,
    slots: Tensor,
    window_slots: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Ratio 128 without overlap. Writes the T rows to `state` (in place), then returns the E closed entries.

    Entry j pools tokens 128j .. 128j + 127. Rotary at position 128j.

    state: float32 [P, 2D]. kv_score: float32 [T, 2D], [wkv x | wgate x]. ape: float32 [128, D]. positions:
    int64 [T]. slots: int64 [T], -1 to drop. window_slots: int64 [E, 128], state rows of the window (an entry
    with 128 x -1 is a placeholder whose result is meaningless). norm_weight: float32 [D]. cos, sin: float32
    [E, R / 2] at position 128j. Returns float32 [E, D].
    """
    _update_(state, slots, kv_score, ape, positions)
    entries, span = window_slots.shape
    if not entries:
        return state.new_empty(0, state.shape[1] // 2)
    gathered = state.index_select(0, window_slots.clamp(min=0).flatten())
    kv, scores = gathered.view(entries, span, state.shape[1]).chunk(2, dim=-1)
    return _pool(kv, scores, norm_weight, eps, cos, sin)
