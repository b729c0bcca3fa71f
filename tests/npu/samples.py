"""Arguments for every op: small ones, and some at the sizes of DeepSeek-V4 that custom kernels insist on."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hocket_kernels import (  # noqa: F401 - importing a module registers its ops
    compressor,
    hyper_connection,
    kv_write,
    lightning_indexer,
    moe_experts,
    moe_gate,
    rms_norm,
    rotary,
    slot_mapping,
    sparse_attention,
    token_gather,
)
from hocket_kernels.registry import OPS


class Sample(NamedTuple):
    """One call of an op. writes: index of the argument that is written in place, if any."""

    op: str
    label: str
    args: tuple[Any, ...]
    writes: int | None = None

    @property
    def id(self) -> str:
        return f"{self.op}-{self.label}"

    def fresh(self) -> tuple[Any, ...]:
        """The arguments, with tensors of their own."""
        return tuple(a.clone() if isinstance(a, Tensor) else a for a in self.args)

    def on(self, place: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        """The arguments, each tensor put somewhere else."""
        return tuple(place(a) if isinstance(a, Tensor) else a for a in self.args)


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def table(rows: int, columns: int) -> Tensor:
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(1)) + 1
    return order.view(rows, columns).to(torch.int32)


BF16 = torch.bfloat16


def _elementwise() -> list[Sample]:
    cos, sin = noise(5, 3).cos(), noise(5, 3).sin()
    return [
        Sample("rms_norm", "weight", (noise(5, 16), noise(16, seed=1), 1e-6)),
        Sample("rms_norm", "no weight, heads", (noise(5, 3, 16), None, 1e-6)),
        Sample("rms_norm", "bf16", (noise(5, 16, dtype=BF16), noise(16, seed=1), 1e-6)),
        Sample("partial_rotary", "rows", (noise(5, 16), cos, sin, False)),
        Sample("partial_rotary", "heads back", (noise(5, 3, 16), cos, sin, True)),
        Sample("partial_rotary", "bf16", (noise(5, 3, 16, dtype=BF16), cos, sin, False)),
        Sample("partial_rotary", "all channels turn", (noise(5, 3, 6), cos, sin, False)),
        Sample("clamped_swiglu", "rows", (3 * noise(5, 16), 1.0)),
        Sample("clamped_swiglu", "bf16", (3 * noise(5, 16, dtype=BF16), 1.0)),
        Sample("token_gather", "rows", (ints(5, 6, 7), ints(2, -1, 0), ints(10, 11, 12))),
    ]


def _cache() -> list[Sample]:
    state4, state128 = noise(90, 24), noise(300, 12)
    window4 = torch.stack((torch.cat((ints(-1, -1, -1, -1), torch.arange(1, 5))), torch.arange(3, 11)))
    angles = noise(2, 2).cos(), noise(2, 2).sin()
    rows = torch.arange(5)
    return [
        Sample("grouped_kv_write_", "float32", (noise(9, 4), ints(4, -1, 2, 7), noise(4, 4, seed=1)), 0),
        Sample("grouped_kv_write_", "bf16 cache", (noise(9, 4, dtype=BF16), ints(4, -1, 2), noise(3, 4)), 0),
        Sample("slot_mapping", "tokens", (table(3, 5), ints(0, 2, 1), ints(3, -1, 34), 7, 1)),
        Sample("slot_mapping", "entries, broadcast", (
            table(3, 5), ints(0, 2).view(2, 1), ints(0, 4, 8), 12, 4)),
        Sample("compress_ratio4_", "two entries", (
            state4, noise(5, 24), noise(4, 12), rows, rows + 20, window4, noise(6), 1e-6, *angles), 0),
        Sample("compress_ratio4_", "none", (
            state4, noise(5, 24), noise(4, 12), rows, ints(20, 21, -1, -1, 24), window4[:0], noise(6), 1e-6,
            angles[0][:0], angles[1][:0]), 0),
        Sample("compress_ratio128_", "two entries", (
            state128, noise(5, 12), noise(128, 6), rows + 124, rows + 280,
            torch.arange(256).view(2, 128) + 1, noise(6), 1e-6, *angles), 0),
    ]  # fmt: skip


def _streams() -> list[Sample]:
    made = []
    for label, dtype in (("float32", torch.float32), ("bf16", BF16)):
        n, hidden = 4, 32
        streams, y = noise(5, n, hidden, dtype=dtype), noise(5, hidden, dtype=dtype)
        fn, base = noise((2 + n) * n, n * hidden) * 0.1, noise((2 + n) * n)
        scale = torch.cat([ints(1).expand(c) * s for c, s in ((n, 0.5), (n, 1.5), (n * n, 0.8))])
        post, comb = noise(5, n).sigmoid(), noise(5, n, n).softmax(-1)
        made += [
            Sample("hc_pre", label, (streams, fn, scale, base, 5, 1e-6, 1e-6)),
            Sample("hc_post", label, (y, streams, post, comb)),
            Sample("hc_head", label, (streams, fn[:n], scale[:1], base[:n], 1e-6, 1e-6)),
        ]
    return made


def _experts() -> list[Sample]:
    x, gate = noise(7, 16), noise(4, 16)
    chosen = ints(0, 1, 3, 0, 3, 1, 1, 0, 3, 1, 0, 3, 1, 3).view(7, 2)  # nobody chose expert 2
    w13, w2 = noise(4, 2 * 8, 16), noise(4, 16, 8)
    many = torch.arange(4).repeat(300)[: 2 * 600].view(600, 2)
    wide13, wide2 = noise(4, 2 * 16, 64) * 0.2, noise(4, 64, 16) * 0.2
    return [
        Sample("moe_gate", "bias", (x, gate, noise(4), None, None, 2, 1.5)),
        Sample("moe_gate", "hash", (x, gate, None, chosen, torch.arange(7), 2, 1.5)),
        Sample("moe_experts", "few", (x, chosen, w13, w2, 1.0)),
        Sample("moe_experts", "many", (noise(600, 64), many, wide13, wide2, 1.0)),
        Sample("moe_experts", "many, odd rows", (
            noise(600, 62), many, noise(4, 2 * 15, 62) * 0.2, noise(4, 62, 15) * 0.2, 1.0)),
        Sample("moe_experts", "many bf16", (
            noise(600, 64, dtype=BF16), many, wide13.to(BF16), wide2.to(BF16), 1.0)),
    ]  # fmt: skip


def _attention() -> list[Sample]:
    keys, blocks = noise(40, 8), table(2, 6)
    loc, starts = ints(0, 5, 8, dtype=torch.int32), ints(12, 2)
    chosen = ints(0, 2, -1).expand(8, 3).contiguous()
    swa = (noise(90, 8), table(2, 6), 7)
    entries = (4, keys, blocks, 12, chosen)
    q, sinks = noise(8, 2, 8), noise(2)
    decoded = q.view(2, 4, 2, 8)[:, :1]
    return [
        Sample("lightning_indexer_prefill", "two requests", (
            noise(8, 3, 8), noise(8, 3), keys, blocks, 12, loc, starts, [5, 3], [17, 5], 4, 2)),
        Sample("lightning_indexer_decode", "two rows", (
            noise(2, 2, 3, 8), noise(2, 2, 3), keys, blocks, 12, starts, ints(2, 1), [14, 3], 4, 2)),
        Sample("sparse_attention_prefill", "window", (
            q, sinks, 0.3, 4, loc, starts, [5, 3], [17, 5], *swa)),
        Sample("sparse_attention_prefill", "chosen entries", (
            q, sinks, 0.3, 4, loc, starts, [5, 3], [17, 5], *swa, *entries)),
        Sample("sparse_attention_decode", "window", (
            decoded, sinks, 0.3, 4, starts, ints(1, 0), [13, 0], *swa)),
        Sample("sparse_attention_decode", "chosen entries", (
            decoded, sinks, 0.3, 4, starts, ints(1, 1), [13, 3], *swa, *entries[:4],
            chosen.view(2, 4, 3)[:, :1])),
    ]  # fmt: skip


def _real_sizes() -> list[Sample]:
    """Attention as DeepSeek-V4 calls it, few rows."""
    lens, ends = [3, 2], [300, 2]
    loc, starts = ints(0, 3, 5, dtype=torch.int32), ints(297, 0)
    swa = (noise(16 * 64, 512, dtype=BF16), table(2, 5), 64)
    small, sparse = noise(11 * 16, 512, dtype=BF16), noise(11 * 32, 512, dtype=BF16)
    q, sinks = noise(5, 64, 512, dtype=BF16), noise(64)
    chosen = torch.full((5, 512), -1)
    for row, position in enumerate((297, 298, 299, 0, 1)):
        chosen[row, : (position + 1) // 4] = torch.arange((position + 1) // 4)
    last = q[2::2].unsqueeze(1).contiguous()
    common = (q, sinks, 512**-0.5, 128, loc, starts, lens, ends, *swa)
    dense, picked = (128, small, table(2, 2), 2048), (4, sparse, table(2, 5), 128, chosen)
    return [
        Sample("sparse_attention_prefill", "V4, window", common),
        Sample("sparse_attention_prefill", "V4, ratio 128", (*common, *dense)),
        Sample("sparse_attention_prefill", "V4, ratio 4", (*common, *picked)),
        Sample("sparse_attention_decode", "V4, ratio 4", (
            last, sinks, 512**-0.5, 128, ints(299, 1), ints(1, 1), [300, 2], *swa,
            *picked[:4], chosen[2::2].unsqueeze(1).contiguous())),
        Sample("sparse_attention_decode", "V4, a padding request", (
            last, sinks, 512**-0.5, 128, ints(299, 0), ints(1, 0), [300, 0], *swa,
            *dense)),
    ]  # fmt: skip


def samples() -> list[Sample]:
    found = [*_elementwise(), *_cache(), *_streams(), *_experts(), *_attention(), *_real_sizes()]
    assert {s.op for s in found} == set(OPS), "every op has samples"
    return found
