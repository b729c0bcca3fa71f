"""Small vector kernels in Triton, for what stock libraries of an NPU lack.

Written in the language of Triton 3.2, which triton-ascend implements. Tiles are sized so that all operands
of a program fit into the 192 KiB of unified buffer of an Ascend 910B core. Wrappers take and return what the
op of the same name does (`compressor_update_` and `compressor_pool` are the halves of the compressors). The
tests run them in Triton's interpreter, and compile them for that core up to planned memory; on an NPU they
have not been run.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SPAN = 256  # elements of a program that works on a flat vector
_ROWS = 32  # rows of a program that works on short rows
_HEADS = 16  # heads of a program that works on the heads of one token
_CHANNELS = 128  # channels of a program that works on long rows


@triton.jit
def _slot_mapping(table, requests, positions, out, count, columns, block_size, ratio, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    position = tl.load(positions + at, mask=inside, other=-1)
    request = tl.load(requests + at, mask=inside, other=0)
    p = tl.maximum(position, 0)
    column = p // block_size
    block = tl.load(table + request * columns + column, mask=inside, other=0).to(tl.int64)
    slot = block * (block_size // ratio) + (p - column * block_size) // ratio
    tl.store(out + at, tl.where(position < 0, -1, slot), mask=inside)


def slot_mapping(
    block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, ratio: int
) -> Tensor:
    """See the op."""
    shape = torch.broadcast_shapes(requests.shape, positions.shape)
    wide_requests, wide_positions = requests.expand(shape).contiguous(), positions.expand(shape).contiguous()
    out = torch.empty_like(wide_positions)
    if out.numel():
        _slot_mapping[(triton.cdiv(out.numel(), _SPAN),)](
            block_table, wide_requests, wide_positions, out, out.numel(), block_table.shape[1], block_size,
            ratio, SPAN=_SPAN,
        )  # fmt: skip
    return out


@triton.jit
def _token_gather(token_ids, sources, device_tokens, out, count, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    source = tl.load(sources + at, mask=inside, other=-1)
    known = tl.load(token_ids + at, mask=inside, other=0)
    left = tl.load(device_tokens + tl.maximum(source, 0), mask=inside, other=0)
    tl.store(out + at, tl.where(source < 0, known, left), mask=inside)


def token_gather(token_ids: Tensor, sources: Tensor, device_tokens: Tensor) -> Tensor:
    """See the op."""
    token_ids, sources = token_ids.contiguous(), sources.contiguous()
    out = torch.empty_like(token_ids)
    if out.numel():
        _token_gather[(triton.cdiv(out.numel(), _SPAN),)](
            token_ids, sources, device_tokens.contiguous(), out, out.numel(), SPAN=_SPAN
        )
    return out


@triton.jit
def _rotate_(
    x, cos, sin, heads, width, plain, half, sign, HEADS: tl.constexpr, TURNING: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    channel = tl.arange(0, TURNING)[None, :]
    inside = (head < heads) & (channel < 2 * half)
    at = x + (token * heads + head) * width + plain + channel
    # Loads with a stride of 2 have no lowering on Ascend; pairs are parted in registers.
    a, b = tl.split(tl.reshape(tl.load(at, mask=inside, other=0.0).to(tl.float32), (HEADS, TURNING // 2, 2)))
    pair = tl.arange(0, TURNING // 2)
    c = tl.load(cos + token * half + pair, mask=pair < half, other=0.0)[None, :]
    s = tl.load(sin + token * half + pair, mask=pair < half, other=0.0)[None, :] * sign
    turned = tl.interleave(a * c - b * s, b * c + a * s)
    tl.store(at, turned.to(x.dtype.element_ty), mask=inside)


def partial_rotary(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """See the op."""
    out = x.clone(memory_format=torch.contiguous_format)
    width, half = x.shape[-1], cos.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    if out.numel():
        _rotate_[(x.shape[0], triton.cdiv(heads, _HEADS))](
            out, cos.contiguous(), sin.contiguous(), heads, width, width - 2 * half, half,
            -1.0 if inverse else 1.0, HEADS=_HEADS, TURNING=triton.next_power_of_2(2 * half),
        )  # fmt: skip
    return out


@triton.jit
def _write_(cache, slots, rows, count, width, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    slot = tl.maximum(tl.load(slots + row, mask=row < count, other=0), 0)[:, None]
    inside = (row < count)[:, None] & (channel < width)
    value = tl.load(rows + row[:, None] * width + channel, mask=inside, other=0.0)
    tl.store(cache + slot * width + channel, value.to(cache.dtype.element_ty), mask=inside)


def grouped_kv_write_(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """See the op."""
    count, width = rows.shape
    if count:
        _write_[(triton.cdiv(count, _ROWS), triton.cdiv(width, _CHANNELS))](
            cache, slots.contiguous(), rows.contiguous(), count, width, ROWS=_ROWS, CHANNELS=_CHANNELS
        )


@triton.jit
def _update_(
    state, slots, kv_score, ape, positions, count, half, ratio, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    known = row < count
    slot = tl.maximum(tl.load(slots + row, mask=known, other=0), 0)[:, None]
    # The remainder of -1, of a dropped row, has the sign of the dividend here.
    phase = ((tl.load(positions + row, mask=known, other=0) % ratio + ratio) % ratio)[:, None]
    inside = known[:, None] & (channel < 2 * half)
    value = tl.load(kv_score + row[:, None] * (2 * half) + channel, mask=inside, other=0.0)
    offset = tl.load(ape + phase * half + channel - half, mask=inside & (channel >= half), other=0.0)
    tl.store(state + slot * (2 * half) + channel, value + offset, mask=inside)


def compressor_update_(
    state: Tensor, slots: Tensor, kv_score: Tensor, ape: Tensor, positions: Tensor
) -> None:
    """Write the rows [kv | score + ape of the position's phase] at their slots; slot -1 drops a row."""
    count, width = kv_score.shape
    if count:
        _update_[(triton.cdiv(count, _ROWS), triton.cdiv(width, _CHANNELS))](
            state, slots.contiguous(), kv_score.contiguous(), ape.contiguous(), positions.contiguous(), count,
            width // 2, ape.shape[0], ROWS=_ROWS, CHANNELS=_CHANNELS,
        )  # fmt: skip


@triton.jit
def _pool(
    state, window_slots, out, dim, SLOTS: tl.constexpr, HALVES: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    entry = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.arange(0, SLOTS)
    slot = tl.load(window_slots + entry * SLOTS + place)[:, None]
    half = ((place * HALVES) // SLOTS)[:, None]
    inside = (slot >= 0) & (channel < dim)[None, :]
    kv = state + tl.maximum(slot, 0) * (2 * HALVES * dim) + half * dim + channel[None, :]
    values = tl.load(kv, mask=inside, other=0.0)
    scores = tl.load(kv + HALVES * dim, mask=inside, other=float("-inf"))
    # Where no slot is present, a placeholder, every score is -inf; elsewhere the weights sum to 1 or more.
    highest = tl.maximum(tl.max(scores, axis=0), -3.4e38)
    weights = tl.exp(scores - highest[None, :])
    pooled = tl.sum(weights * values, axis=0) / tl.maximum(tl.sum(weights, axis=0), 1.0)
    tl.store(out + entry * dim + channel, pooled, mask=channel < dim)


def compressor_pool(state: Tensor, window_slots: Tensor, halves: int) -> Tensor:
    """Softmax over the slots, channel by channel, of the scores, times kv: float32 [E, D].

    state: float32 [P, 2 * halves * D]. window_slots: int64 [E, slots], a power of two; the first slots read
    the first halves of their rows, the last ones the second. -1: nothing there.
    """
    entries, slots = window_slots.shape
    dim = state.shape[1] // (2 * halves)
    out = state.new_empty(entries, dim)
    if entries:
        channels = 64 if slots > 64 else _CHANNELS
        _pool[(entries, triton.cdiv(dim, channels))](
            state, window_slots.contiguous(), out, dim, SLOTS=slots, HALVES=halves, CHANNELS=channels
        )
    return out
