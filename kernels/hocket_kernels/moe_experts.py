"""The routed experts: clamped SwiGLU, each over the rows that chose it."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, op, stock

# Up to so many values, copying the chosen experts' weights beats sorting the rows by expert.
_GATHERED_WEIGHTS = 1 << 19
_TAKEN = (torch.float32, torch.float16, torch.bfloat16)


def _swiglu_fake(gate_up: Tensor, limit: float) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


def _swiglu_stock(gate_up: Tensor, limit: float) -> Tensor:
    """npu_clipped_swiglu, halves side by side, with a plain sigmoid and nothing added to `up`."""
    return stock("npu_clipped_swiglu")(  # type: ignore[no-any-return]
        gate_up.contiguous(), dim=-1, alpha=1.0, limit=limit, bias=0.0, interleaved=False
    )


def _swiglu_refuses(gate_up: Tensor, limit: float) -> str:
    if gate_up.dtype not in _TAKEN:
        return f"gate_up is {gate_up.dtype}"
    return "" if gate_up.dim() > 1 else "gate_up has one axis"


@op(
    "(Tensor gate_up, float limit) -> Tensor",
    _swiglu_fake,
    [Implementation("stock", ("npu_clipped_swiglu",), _swiglu_stock, _swiglu_refuses)],
)
def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clip(up, -limit, limit) of the halves of the last axis.

    gate_up: [..., 2I]. Returns [..., I].
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def _sorted(x: Tensor, experts: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choices in the order of their experts, each one's row of x, and where each expert's rows end."""
    by_expert, order = experts.flatten().sort(stable=True)
    rows = x.index_select(0, order.div(experts.shape[1], rounding_mode="floor"))
    each = torch.arange(count, device=x.device)
    return order, rows, torch.searchsorted(by_expert, each, right=True)


def _unsorted(outputs: Tensor, order: Tensor, experts: Tensor) -> Tensor:
    by_choice = torch.empty_like(outputs)
    by_choice[order] = outputs
    return by_choice.view(*experts.shape, -1)


def _by_gathered_weights(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    flat = experts.flatten()
    rows = x.repeat_interleave(experts.shape[1], dim=0).unsqueeze(-1)
    inner = clamped_swiglu(torch.bmm(w13[flat], rows).squeeze(-1), limit)
    return torch.bmm(w2[flat], inner.unsqueeze(-1)).view(*experts.shape, -1)


def _fake(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    return x.new_empty(*experts.shape, w2.shape[1])


def _stock(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    """npu_grouped_matmul: one matrix of rows, one [E, in, out] of weights, where groups end on the device."""
    order, rows, ends = _sorted(x, experts, w13.shape[0])

    def product(rows: Tensor, weights: Tensor) -> Tensor:
        return stock("npu_grouped_matmul")(  # type: ignore[no-any-return]
            [rows], [weights.transpose(1, 2)], group_list=ends, split_item=2, group_type=0, group_list_type=0
        )[0]

    return _unsorted(product(clamped_swiglu(product(rows, w13), limit), w2), order, experts)


def _refuses(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> str:
    if x.dtype not in _TAKEN:
        return f"x is {x.dtype}"
    longest = max(*w13.shape[1:], *w2.shape[1:])
    return "" if longest < 65536 else f"an axis of the weights has {longest} values, not fewer than 65536"


@op(
    "(Tensor x, Tensor experts, Tensor w13, Tensor w2, float limit) -> Tensor",
    _fake,
    [Implementation("stock", ("npu_grouped_matmul",), _stock, _refuses)],
)
def moe_experts(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    """Each chosen expert's w2 swiglu(w13 x), not weighted yet.

    x: [T, h]. experts: int64 [T, k]. w13: [E, 2I, h], gate over up. w2: [E, h, I]. limit: of the clamps.
    Returns [T, k, h].
    """
    if experts.numel() * w13[0].numel() <= _GATHERED_WEIGHTS:
        return _by_gathered_weights(x, experts, w13, w2, limit)
    if not _grouped_mm_takes(x, w13, w2):
        return _by_every_expert(x, experts, w13, w2, limit)
    order, rows, ends = _sorted(x, experts, w13.shape[0])
    offsets = ends.to(torch.int32)
    inner = torch.nn.functional.grouped_mm(rows, w13.transpose(1, 2), offs=offsets)
    outputs = torch.nn.functional.grouped_mm(clamped_swiglu(inner, limit), w2.transpose(1, 2), offs=offsets)
    return _unsorted(outputs, order, experts)


def _grouped_mm_takes(x: Tensor, w13: Tensor, w2: Tensor) -> bool:
    """It wants rows of a multiple of 16 bytes, and bfloat16 except on the CPU."""
    aligned = all(w.shape[2] * w.element_size() % 16 == 0 for w in (w13, w2))
    return aligned and (x.is_cpu or x.dtype == torch.bfloat16)


def _by_every_expert(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    """Every expert over all rows, and of the results those that were asked for. No shape depends on data."""
    out = x.new_zeros(*experts.shape, w2.shape[1])
    for expert in range(w13.shape[0]):
        inner = clamped_swiglu(torch.nn.functional.linear(x, w13[expert]), limit)
        result = torch.nn.functional.linear(inner, w2[expert]).unsqueeze(1)
        out = torch.where((experts == expert).unsqueeze(-1), result, out)
    return out
