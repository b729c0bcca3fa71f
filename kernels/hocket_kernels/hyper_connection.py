"""Manifold-constrained hyper-connections (mHC): n residual streams around each sub-layer. Mixing weights in
float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, custom, op

_FOUR = "a custom kernel knows 4 streams in bfloat16, not"


def _mix(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float) -> Tensor:
    """scale * (RMS(vec X) fn^T) + base; the norm, over all n * h values, has no weight. float32 [T,
    outputs].
    """
    flat = streams.flatten(1).to(torch.float32)
    inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    return torch.addcmul(base, (flat @ fn.t()) * inverse, scale)


def _collapse(streams: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights_j X_j: [T, n, h], [T, n] -> [T, h] in the dtype of the streams."""
    return (weights.unsqueeze(-1) * streams).sum(dim=1).to(streams.dtype)


def _sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """[T, n, n] -> [n, n, T]: softmax over the last axis, + eps, then alternately divided by column and row
    sums.

    Tokens are the last axis here, so that the n x n steps run over long rows. A border row and column that
    hold eps save adding it to every sum.
    """
    rows, n, _ = logits.shape
    bordered = torch.full((n + 1, n + 1, rows), eps, dtype=torch.float32, device=logits.device)
    c, by_row, by_column = bordered[:n, :n], bordered[:n], bordered[:, :n]
    torch.add(logits.softmax(-1).permute(1, 2, 0), eps, out=c)
    column_sums, row_sums = c.new_empty(1, n, rows), c.new_empty(n, 1, rows)
    for i in range(iters):
        if i:
            torch.sum(by_row, 1, keepdim=True, out=row_sums)
            c.div_(row_sums)
        torch.sum(by_column, 0, keepdim=True, out=column_sums)
        c.div_(column_sums)
    return c


def _pre_fake(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iters: int, hc_eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, n, hidden = streams.shape
    x = streams.new_empty(rows, hidden)
    return x, fn.new_empty(rows, n), fn.new_empty(rows, n, n)


def _pre_custom(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iters: int, hc_eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """npu_hc_pre takes the three scales once each."""
    n = streams.shape[1]
    scales = scale[: 2 * n + 1 : n].contiguous()
    x, post, comb = custom("npu_hc_pre")(
        streams.contiguous(), fn, scales, base, hc_mult=n, hc_sinkhorn_iters=iters, norm_eps=norm_eps,
        hc_eps=hc_eps,
    )  # fmt: skip
    return x, post, comb


def _pre_refuses(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iters: int, hc_eps: float, norm_eps: float
) -> str:
    return _refuses(streams)


def _refuses(streams: Tensor) -> str:
    if streams.shape[1] != 4 or streams.dtype != torch.bfloat16:
        return f"{_FOUR} {streams.shape[1]} in {streams.dtype}"
    return "" if streams.shape[0] else "no rows"


@op(
    "(Tensor streams, Tensor fn, Tensor scale, Tensor base, int iters, float hc_eps, float norm_eps)"
    " -> (Tensor, Tensor, Tensor)",
    _pre_fake,
    [Implementation("custom", ("npu_hc_pre",), _pre_custom, _pre_refuses)],
)
def hc_pre(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iters: int, hc_eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse the streams into a sub-layer's input, and the weights that `hc_post` needs.

    m = RMS(vec X) fn^T, split into [n | n | n * n]; pre = sigmoid(s0 m_pre + b_pre) + eps; post = 2
    sigmoid(s1 m_post + b_post); C = softmax over the last axis of (s2 m_comb + b_comb) as n x n, + eps,
    divided by its column sums (+ eps), then iters - 1 times by row sums and by column sums; x = sum_j pre_j
    X_j.

    streams: [T, n, h]. fn: float32 [(2 + n) n, n h]. scale, base: float32 [(2 + n) n] (scale: s0, s1, s2
    repeated over their parts). Returns x [T, h] in the streams' dtype, post float32 [T, n], C float32 [T, n,
    n].
    """
    n = streams.shape[1]
    mix = _mix(streams, fn, scale, base, norm_eps)
    gates = torch.sigmoid(mix[:, : 2 * n])
    comb = _sinkhorn(mix[:, 2 * n :].view(-1, n, n), iters, hc_eps).permute(2, 0, 1).contiguous()
    return _collapse(streams, gates[:, :n] + hc_eps), 2 * gates[:, n:], comb


def _post_fake(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return torch.empty_like(streams, memory_format=torch.contiguous_format)


def _post_custom(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """npu_hc_post wants a batch axis."""
    arguments = (t.contiguous().unsqueeze(0) for t in (y, streams, post, comb))
    return custom("npu_hc_post")(*arguments).squeeze(0)  # type: ignore[no-any-return]


def _post_refuses(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> str:
    return _refuses(streams) if y.dtype == streams.dtype else f"y is {y.dtype}"


@op(
    "(Tensor y, Tensor streams, Tensor post, Tensor comb) -> Tensor",
    _post_fake,
    [Implementation("custom", ("npu_hc_post",), _post_custom, _post_refuses)],
)
def hc_post(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """X'_k = post_k y + sum_j C_jk X_j (the first index of C is summed).

    y: [T, h], the sub-layer's output. streams: [T, n, h]. post: float32 [T, n]. comb: float32 [T, n, n].
    Returns [T, n, h] in the streams' dtype.
    """
    mixed = torch.bmm(comb.transpose(1, 2), streams.to(torch.float32))
    return torch.addcmul(mixed, post.unsqueeze(-1), y.to(torch.float32).unsqueeze(1)).to(streams.dtype)


def _head_fake(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, hc_eps: float, norm_eps: float
) -> Tensor:
    return streams.new_empty(streams.shape[0], streams.shape[2])


@op(
    "(Tensor streams, Tensor fn, Tensor scale, Tensor base, float hc_eps, float norm_eps) -> Tensor",
    _head_fake,
)
def hc_head(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, hc_eps: float, norm_eps: float
) -> Tensor:
    """The final collapse: pre = sigmoid(scale * RMS(vec X) fn^T + base) + eps; sum_j pre_j X_j.

    streams: [T, n, h]. fn: float32 [n, n h]. scale: float32 [1]. base: float32 [n]. Returns [T, h].
    """
    return _collapse(streams, torch.sigmoid(_mix(streams, fn, scale, base, norm_eps)) + hc_eps)
