"""What the documents of the NPU libraries say that their ops compute, in plain torch, at key CPU.

With `defined_snapshot` a process without torch_npu has these ops under their true schemas, so that every call
site can be run, and its result compared with that of our own reference. Layouts and dtypes that the documents
do not allow are refused, as the libraries do.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def snapshot(name: str) -> dict[str, str]:
    """Schemas by qualified name: "npu" (all ops of torch_npu) or "_C_ascend" (those that we call)."""
    found: dict[str, str] = json.loads((DATA / f"{name}_schemas.json").read_text())["schemas"]
    return found


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:  # noqa: A002
    require(input.dtype in FLOATS and gamma.dtype == input.dtype, "gamma has the dtype of input")
    require(2 <= input.dim() <= 8, "input has 2 to 8 axes")
    inverse = torch.rsqrt(input.float().square().mean(-1, keepdim=True) + epsilon)
    return (input.float() * inverse * gamma.float()).to(input.dtype), inverse


def npu_rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None  # noqa: A002
) -> Tensor:  # fmt: skip
    require(input.dim() == r1.dim() == r2.dim() == 4, "input and angles have 4 axes")
    require(input.dtype == r1.dtype == r2.dtype, "input and angles have one dtype")
    require(r1.shape == (1, input.shape[1], 1, input.shape[3]) == r2.shape, "angles are 1S1D for BSND")
    require(float(r1.abs().max()) <= 1 and float(r2.abs().max()) <= 1, "angles lie in [-1, 1]")
    if rotary_mode == "interleave":
        turned = torch.stack((-input[..., 1::2], input[..., ::2]), dim=-1).flatten(-2)
    else:
        a, b = input.chunk(2, -1)
        turned = torch.cat((-b, a), dim=-1)
    return r1 * input + r2 * turned


def npu_scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:  # noqa: A002
    require(input.dtype == updates.dtype, "updates have the dtype of input")
    require(
        indices.dtype in (torch.int32, torch.int64) and indices.dim() >= 2, "indices are int, 2 axes or more"
    )
    depth = indices.shape[-1]
    require(updates.shape == (*indices.shape[:-1], *input.shape[depth:]), "updates fit the indices")
    require(bool((indices >= 0).all()), "indices are not negative")
    input[tuple(indices.long().unbind(-1))] = updates
    return input


def npu_clipped_swiglu(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    require(x.dtype in FLOATS and x.dim() > 1 and x.is_contiguous(), "x is contiguous, 2 axes or more")
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim)
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    return a * torch.sigmoid(alpha * a) * (b + bias)


def npu_grouped_matmul(x: Sequence[Tensor], weight: Sequence[Tensor], **options: Any) -> list[Tensor]:
    wanted = {"split_item": 2, "group_type": 0, "group_list_type": 0}
    given = {key: options.get(key) for key in wanted}
    require(given == wanted, f"this document covers {wanted}, got {given}")
    (rows,), (weights,), ends = x, weight, options["group_list"]
    require(
        rows.dim() == 2 and weights.dim() == 3 and rows.shape[1] == weights.shape[1], "[M, K] x [E, K, N]"
    )
    require(ends.dtype == torch.int64 and ends.shape == (weights.shape[0],), "group_list is int64 [E]")
    bounds = [0, *ends.tolist()]
    require(bounds == sorted(bounds) and bounds[-1] == rows.shape[0], "ends ascend up to M")
    parts = [rows[a:b] @ w for a, b, w in zip(bounds, bounds[1:], weights, strict=False)]
    return [torch.cat(parts)]


def npu_hc_pre(
    x: Tensor,
    hc_fn: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    hc_mult: int,
    hc_sinkhorn_iters: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    n = hc_mult
    require(x.dtype == torch.bfloat16 and n == 4 and x.is_contiguous(), "4 streams in bfloat16")
    require(hc_scale.shape == (3,) and hc_base.shape == ((2 + n) * n,), "three scales")
    flat = x.flatten(-2).float()
    mix = (flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)) @ hc_fn.t()
    pre = torch.sigmoid(mix[:, :n] * hc_scale[0] + hc_base[:n]) + hc_eps
    post = 2 * torch.sigmoid(mix[:, n : 2 * n] * hc_scale[1] + hc_base[n : 2 * n])
    c = (mix[:, 2 * n :] * hc_scale[2] + hc_base[2 * n :]).view(-1, n, n).softmax(-1) + hc_eps
    for i in range(hc_sinkhorn_iters):
        if i:
            c = c / (c.sum(2, keepdim=True) + hc_eps)
        c = c / (c.sum(1, keepdim=True) + hc_eps)
    return (pre.unsqueeze(-1) * x.float()).sum(1).to(x.dtype), post, c


def npu_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    require(x.dim() == 3 and residual.dim() == 4 and comb.dim() == 4, "all have a batch axis")
    require(x.dtype == residual.dtype == torch.bfloat16, "x and residual are bfloat16")
    out = torch.einsum("bth,btn->btnh", x.float(), post) + torch.einsum(
        "btjk,btjh->btkh", comb, residual.float()
    )
    return out.to(residual.dtype)


def npu_sparse_attn_sharedkv_metadata(**rest: Any) -> Tensor:
    sizes = (rest["num_heads_q"], rest["num_heads_kv"], rest["head_dim"])
    require(sizes == (64, 1, 512), "64 heads, one shared head of 512")
    require(rest["batch_size"] == rest["seqused_kv"].shape[0], "batch_size requests")
    lens = rest["cu_seqlens_q"].diff()
    require(int(lens.max()) <= rest["max_seqlen_q"], "max_seqlen_q is a bound")
    require(int(rest["seqused_kv"].max()) <= rest["max_seqlen_kv"], "max_seqlen_kv is a bound")
    return torch.zeros(1024, dtype=torch.int32)


def npu_sparse_attn_sharedkv(q: Tensor, **k: Any) -> tuple[Tensor, Tensor]:
    require(q.shape[1:] == (64, 512) and q.dtype == torch.bfloat16, "q is bfloat16 [T, 64, 512]")
    require((k["layout_q"], k["layout_kv"]) == ("TND", "PA_ND"), "packed queries, paged keys")
    require(k["metadata"].shape == (1024,), "metadata is mandatory")
    require((k["ori_mask_mode"], k["cmp_mask_mode"]) == (4, 3), "a band, and causal by ratio")
    require((k["ori_win_left"], k["ori_win_right"]) == (127, 0), "a window of 128")
    cu, used = k["cu_seqlens_q"], k["seqused_kv"]
    require(cu.dtype == used.dtype == k["ori_block_table"].dtype == torch.int32, "lengths are int32")
    require(int(cu[0]) == 0 and int(cu[-1]) == q.shape[0], "query lengths are cumulative from 0")
    require(used.shape[0] == cu.shape[0] - 1, "sequence lengths come one by one")
    out = torch.empty_like(q)
    for request, length in enumerate(used.tolist()):
        begin, end = int(cu[request]), int(cu[request + 1])
        require(length >= end - begin, "a sequence is at least as long as its queries")
        for row in range(begin, end):
            keys = _seen_keys(k, request, length - (end - begin) + row - begin, row)
            logits = torch.cat((q[row].float() @ keys.T * k["softmax_scale"], k["sinks"].unsqueeze(1)), 1)
            out[row] = (logits.softmax(1)[:, :-1] @ keys).to(q.dtype)
    return out, torch.zeros(q.shape[:2])


def _seen_keys(k: dict[str, Any], request: int, position: int, row: int) -> Tensor:
    def paged(cache: Tensor, block_table: Tensor, index: int) -> Tensor:
        rows = cache.shape[1]
        require(cache.dim() == 4 and rows % 16 == 0 and rows <= 1024, "blocks of 16 to 1024 rows")
        return cache[int(block_table[request, index // rows]), index % rows, 0].float()

    found = [paged(k["ori_kv"], k["ori_block_table"], s) for s in range(max(0, position - 127), position + 1)]
    if k.get("cmp_kv") is not None:
        visible = range((position + 1) // k["cmp_ratio"])
        chosen = k.get("cmp_sparse_indices")
        if chosen is not None:
            require(chosen.shape[1:] == (1, 512) and chosen.dtype == torch.int32, "int32 [T, 1, 512]")
            visible = [j for j in chosen[row, 0].tolist() if j >= 0]  # type: ignore[assignment]
        found += [paged(k["cmp_kv"], k["cmp_block_table"], j) for j in visible]
    return torch.stack(found)


STOCK = (npu_rms_norm, npu_rotary_mul, npu_scatter_nd_update_, npu_clipped_swiglu, npu_grouped_matmul)
CUSTOM = (npu_hc_pre, npu_hc_post, npu_sparse_attn_sharedkv, npu_sparse_attn_sharedkv_metadata)


def bound(reference: Callable[..., Any], schema: str) -> Callable[..., Any]:
    """A kernel that hands every argument of the schema over by name: the dispatcher drops those that have
    their default value.
    """
    arguments = torch._C.parse_schema(schema).arguments
    names = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return lambda *args, **kwargs: reference(**(defaults | dict(zip(names, args, strict=False)) | kwargs))


@contextmanager
def defined_snapshot() -> Iterator[None]:
    """All ops of both snapshots under their own names in plain torch, with these references at key CPU."""
    libraries = []
    for namespace, references in (("npu", STOCK), ("_C_ascend", CUSTOM)):
        library = torch.library.Library(namespace, "FRAGMENT")
        libraries.append(library)
        for schema in snapshot(namespace).values():
            library.define(schema.partition("::")[2])
        for reference in references:
            key = "CompositeExplicitAutograd" if "metadata" in reference.__name__ else "CPU"
            schema = snapshot(namespace)[f"{namespace}::{reference.__name__}"]
            library.impl(reference.__name__, bound(reference, schema), key)
    try:
        yield
    finally:
        for library in libraries:
            library._destroy()


@contextmanager
def defined_without_values() -> Iterator[None]:
    """The ops of the custom package under their true schemas, with shape functions: no torch_npu has them."""
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    for schema in snapshot("_C_ascend").values():
        library.define(schema.partition("::")[2])

    def hc_pre(x: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        rows, n, hidden = x.shape
        mixing = x.new_empty(rows, n, n, dtype=torch.float32)
        return x.new_empty(rows, hidden), mixing[:, 0].clone(), mixing

    shapes: dict[str, Callable[..., Any]] = {
        "npu_hc_pre": hc_pre,
        "npu_hc_post": lambda x, residual, *_: torch.empty_like(residual),
        "npu_sparse_attn_sharedkv_metadata": lambda *_, **k: torch.empty(
            1024, dtype=torch.int32, device=k.get("device", "npu")
        ),
        "npu_sparse_attn_sharedkv": lambda q, **_: (torch.empty_like(q), q.new_empty(q.shape[:2])),
    }
    for name, shape in shapes.items():
        torch.library.register_fake(f"_C_ascend::{name}", shape, lib=library)
    try:
        yield
    finally:
        library._destroy()
