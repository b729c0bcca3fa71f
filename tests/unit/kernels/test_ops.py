"""Each op against plain loops over its definition."""

import itertools
import math
import random

import pytest
import torch
from torch import Tensor

from hocket_kernels.compressor import compress_ratio4_, compress_ratio128_
from hocket_kernels.hyper_connection import hc_head, hc_post, hc_pre
from hocket_kernels.kv_write import grouped_kv_write_
from hocket_kernels.lightning_indexer import lightning_indexer_decode, lightning_indexer_prefill
from hocket_kernels.moe_experts import clamped_swiglu, moe_experts
from hocket_kernels.moe_gate import moe_gate
from hocket_kernels.query_blocks import decode_positions, query_blocks, visible_entries
from hocket_kernels.rms_norm import rms_norm
from hocket_kernels.rotary import partial_rotary, rotary_angles
from hocket_kernels.slot_mapping import slot_mapping
from hocket_kernels.sparse_attention import sparse_attention_decode, sparse_attention_prefill
from hocket_kernels.token_gather import token_gather
from hocket_kernels.topk import deterministic_topk

NAN = float("nan")


def near(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return bool(((found - expected).abs() <= tolerance).all())


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scattered(rows: int, columns: int, seed: int = 0) -> Tensor:
    """A block table [rows, columns] in which no block occurs twice and block 0 not at all."""
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed)) + 1
    return order.view(rows, columns).to(torch.int32)


def slot(table: Tensor, request: int, position: int, size: int, ratio: int) -> int:
    return int(table[request, position // size]) * (size // ratio) + position % size // ratio


@pytest.mark.parametrize(("size", "ratio"), [(1, 1), (7, 1), (12, 4), (256, 128)])
def test_slot_mapping(size: int, ratio: int) -> None:
    table = scattered(3, 5)
    requests = torch.arange(3).repeat_interleave(5 * size)
    positions = torch.arange(5 * size).repeat(3)
    found = slot_mapping(table, requests, positions, size, ratio).tolist()
    pairs = zip(requests.tolist(), positions.tolist(), strict=True)
    assert found == [slot(table, r, p, size, ratio) for r, p in pairs]
    assert slot_mapping(table, torch.tensor([1, 2]), torch.tensor([-1, 0]), size, ratio).tolist()[0] == -1


def test_grouped_kv_write_drops_minus_one_and_converts() -> None:
    cache = torch.full((6, 2), NAN, dtype=torch.bfloat16)
    grouped_kv_write_(cache, torch.tensor([4, -1, 2, -1]), noise(4, 2))
    assert near(cache[[4, 2]].float(), noise(4, 2)[[0, 2]], 2e-2)
    assert cache[[1, 3, 5]].isnan().all()


@pytest.mark.parametrize("shape", [(5, 10), (5, 3, 10)])
def test_partial_rotary_turns_pairs_of_the_last_channels(shape: tuple[int, ...]) -> None:
    x, positions = noise(*shape), torch.tensor([0, 1, 7, 100, 5000])
    frequencies = torch.tensor([1.0, 0.1, 0.003])
    cos, sin = rotary_angles(positions, frequencies)
    found = partial_rotary(x, cos, sin, inverse=False)
    assert (found[..., :4] == x[..., :4]).all()
    for t, i in itertools.product(range(5), range(3)):
        pair = torch.view_as_complex(x[t, ..., 4 + 2 * i : 6 + 2 * i].contiguous())
        turned = pair * complex(
            math.cos(positions[t] * frequencies[i]), math.sin(positions[t] * frequencies[i])
        )
        assert near(found[t, ..., 4 + 2 * i : 6 + 2 * i], torch.view_as_real(turned), 1e-3)
    assert near(partial_rotary(found, cos, sin, inverse=True), x)


def test_rms_norm() -> None:
    x, weight = noise(3, 8), noise(8, seed=1)
    expected = torch.stack([row * weight / math.sqrt(float(row.square().mean()) + 1e-3) for row in x])
    assert near(rms_norm(x, weight, 1e-3), expected)
    assert near(rms_norm(x, None, 1e-3) * weight, expected)


@pytest.mark.parametrize("width", [9, 40, 1000])
def test_topk_prefers_low_indices_at_ties(width: int) -> None:
    scores = torch.randint(-2, 3, (50, width), generator=torch.Generator().manual_seed(1)).float()
    scores[::3] *= -0.0  # zeros of both signs are equal
    scores[:, -1] = float("-inf")
    for k in (1, 5, 9):
        expected = [sorted(sorted(range(width), key=lambda j: (-row[j], j))[:k]) for row in scores.tolist()]
        assert deterministic_topk(scores, k).tolist() == expected


def test_topk_orders_real_scores_like_a_sort() -> None:
    scores = noise(20, 300) * torch.logspace(-30, 30, 20).unsqueeze(1)
    expected = scores.topk(17).indices.sort().values
    assert (deterministic_topk(scores, 17) == expected).all()


def test_topk_shows_nan() -> None:
    assert deterministic_topk(torch.tensor([3.0, NAN, 5.0, -1.0]), 1).tolist() == [1]


def test_a_decode_request_without_rows_returns_zeros() -> None:
    q, starts, used = noise(2, 1, 2, 8), torch.tensor([5, 5]), torch.tensor([0, 1])
    table, cache = scattered(2, 2), noise(40, 8)
    for block in table[0].tolist():
        cache[7 * block : 7 * block + 7] = NAN  # nothing was written there: it may be anything
    out = sparse_attention_decode(q, torch.zeros(2), 0.3, 4, starts, used, [0, 6], cache, table, 7)
    assert (out[0] == 0).all()
    assert (out[1] != 0).any()


def test_query_blocks_cover_every_row_once() -> None:
    loc, starts = torch.tensor([0, 5, 6, 14], dtype=torch.int32), torch.tensor([10, 0, 100])
    b = query_blocks(loc, starts, [5, 1, 8], 4)
    assert b.rows.tolist() == [[0, 1, 2, 3], [4, 4, 4, 4], [5, 5, 5, 5], [6, 7, 8, 9], [10, 11, 12, 13]]
    assert b.requests.tolist() == [0, 0, 1, 2, 2]
    assert b.positions[1].tolist() == [14] * 4
    assert b.positions[3].tolist() == [100, 101, 102, 103]
    assert (b.rows.flatten()[b.unblock] == torch.arange(14)).all()
    assert query_blocks(torch.tensor([0, 1, 2]), torch.tensor([3, 4]), [1, 1], 64).rows.tolist() == [[0], [1]]


def test_decode_positions_and_visible_entries() -> None:
    found = decode_positions(torch.tensor([7, 3, 9]), torch.tensor([3, 1, 0]), 3)
    assert found.tolist() == [[7, 8, 9], [3, 3, 3], [-1, -1, -1]]
    assert visible_entries(found, 4).tolist() == [[2, 2, 2], [1, 1, 1], [0, 0, 0]]


def test_token_gather() -> None:
    host, sources = torch.tensor([[5, 6], [7, 8]]), torch.tensor([[2, -1], [-1, 0]])
    assert token_gather(host, sources, torch.tensor([10, 11, 12])).tolist() == [[12, 6], [7, 10]]


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("cuts", [[300], [1, 2, 130, 4, 127, 36], [128, 128, 44]])
def test_compressors_pool_across_dispatches(ratio: int, cuts: list[int]) -> None:
    """Rows written in any pieces give the entries that the whole sequence gives."""
    dim, total, parts = 6, 300, 2 if ratio == 4 else 1
    x, ape, weight = noise(total, 2 * parts * dim), noise(ratio, parts * dim, seed=1), noise(dim, seed=2)
    kv, score = x.chunk(2, -1)
    op = compress_ratio4_ if ratio == 4 else compress_ratio128_
    span = 8 if ratio == 4 else 128
    where = torch.randperm(total, generator=torch.Generator().manual_seed(3)) + 1
    state = torch.full((total + 1, 2 * parts * dim), NAN)
    frequencies = torch.tensor([0.5, 0.01])
    found, begin = [], 0
    for cut in cuts:
        positions = torch.arange(begin, begin + cut)
        last = positions[(positions + 1) % ratio == 0]
        window = last.unsqueeze(1) - torch.arange(span - 1, -1, -1)
        slots = torch.where(window < 0, -1, where[window.clamp(min=0)])
        angles = rotary_angles(last - ratio + 1, frequencies)
        found.append(op(state, x[positions], ape, positions, where[positions], slots, weight, 1e-6, *angles))
        begin += cut
    entries = torch.cat(found)
    assert len(entries) == total // ratio
    expected = torch.empty(len(entries), dim)
    for j, channel in itertools.product(range(len(entries)), range(dim)):
        tokens = range(ratio * j, ratio * (j + 1))
        if ratio == 128:
            pooled = [(s, channel) for s in tokens]
        else:
            pooled = [(s - 4, channel) for s in tokens if j] + [(s, dim + channel) for s in tokens]
        p = torch.stack([score[s, c] + ape[s % ratio, c] for s, c in pooled]).softmax(0)
        expected[j, channel] = sum(float(a) * float(kv[s, c]) for a, (s, c) in zip(p, pooled, strict=True))
    angles = rotary_angles(torch.arange(len(entries)) * ratio, frequencies)
    assert near(entries, partial_rotary(rms_norm(expected, weight, 1e-6), *angles, inverse=False))


def _indexer_case(seed: int) -> tuple[Tensor, ...]:
    """Four requests of ragged progress: q, weights, keys, table, loc, starts."""
    heads, dim, size = 4, 8, 12
    lens, starts = torch.tensor([7, 1, 130, 20]), torch.tensor([0, 50, 3, 101])
    table = scattered(4, 12, seed)
    keys = torch.full((49 * 3, dim), NAN)
    for r, j in itertools.product(range(4), range(36)):
        if j < (int(starts[r] + lens[r])) // 4:
            keys[slot(table, r, 4 * j, size, 4)] = noise(dim, seed=1000 * r + j)
    total = int(lens.sum())
    loc = torch.cat((torch.zeros(1, dtype=torch.int64), lens.cumsum(0))).to(torch.int32)
    return noise(total, heads, dim, seed=seed), noise(total, heads, seed=seed + 1), keys, table, loc, starts


def _best(
    q: Tensor, u: Tensor, keys: Tensor, table: Tensor, request: int, position: int, topk: int
) -> list[int]:
    scores = []
    for j in range((position + 1) // 4):
        key = keys[slot(table, request, 4 * j, 12, 4)]
        scores.append(round(float((u * (q @ key).relu()).sum()), 5))
    chosen = sorted(sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:topk])
    return chosen + [-1] * (topk - len(chosen))


@pytest.mark.parametrize("topk", [1, 5, 64])
def test_lightning_indexer(topk: int) -> None:
    q, u, keys, table, loc, starts = _indexer_case(3)
    lens = loc.diff().tolist()
    ends = (starts + loc.diff()).tolist()
    found = lightning_indexer_prefill(q, u, keys, table, 12, loc, starts, lens, ends, 4, topk)
    for r in range(4):
        for i, row in enumerate(range(int(loc[r]), int(loc[r + 1]))):
            position = int(starts[r]) + i
            assert found[row].tolist() == _best(q[row], u[row], keys, table, r, position, topk)
    starts, used = torch.tensor([4, 48, 130, 0]), torch.tensor([3, 1, 2, 0])
    q, u = noise(4, 3, 4, 8, seed=7), noise(4, 3, 4, seed=8)
    chosen = lightning_indexer_decode(q, u, keys, table, 12, starts, used, [7, 49, 132, 0], 4, topk)
    for r, i in itertools.product(range(4), range(3)):
        if i < used[r]:
            assert chosen[r, i].tolist() == _best(q[r, i], u[r, i], keys, table, r, int(starts[r]) + i, topk)
    assert (chosen[3] == -1).all()


@pytest.mark.parametrize("position", [11, 12, 14])
def test_the_indexer_sees_the_entry_that_closes_last(position: int) -> None:
    """It fits the query best, and is number 2 of 3 at each of these positions."""
    keys, table = noise(30, 8), scattered(1, 4)
    query = keys[slot(table, 0, 8, 12, 4)].view(1, 1, 8)
    weights, starts, one = torch.ones(1, 1), torch.tensor([position]), torch.tensor([1])
    loc = torch.tensor([0, 1], dtype=torch.int32)
    packed = lightning_indexer_prefill(
        query, weights, keys, table, 12, loc, starts, [1], [position + 1], 4, 1
    )
    alone = lightning_indexer_decode(
        query.unsqueeze(0), weights.unsqueeze(0), keys, table, 12, starts, one, [position + 1], 4, 1
    )
    assert packed.tolist() == [[2]]
    assert alone.tolist() == [[[2]]]


def _attention_case(ratio: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Caches of three requests with 90, 300 and 2 tokens, NaN elsewhere, and their tables."""
    lens = torch.tensor([90, 300, 2])
    swa_table, entry_table = scattered(3, 44), scattered(3, 25 if ratio == 4 else 2, seed=1)
    size = 12 if ratio == 4 else 256
    swa, entries = torch.full((133 * 7, 8), NAN), torch.full((76 * 64, 8), NAN)
    for r in range(3):
        for p in range(int(lens[r])):
            swa[slot(swa_table, r, p, 7, 1)] = noise(8, seed=r * 1000 + p)
        for j in range(int(lens[r]) // (ratio or 1) if ratio else 0):
            entries[slot(entry_table, r, j * ratio, size, ratio)] = noise(8, seed=-r * 1000 - j - 1)
    return lens, swa, swa_table, entries, entry_table, noise(2, seed=5)


def _attended(q: Tensor, sinks: Tensor, scale: float, keys: list[Tensor]) -> Tensor:
    if not keys:
        return torch.zeros_like(q)
    stacked = torch.stack(keys)
    return torch.cat((q @ stacked.T * scale, sinks[:, None]), 1).softmax(1)[:, :-1] @ stacked


@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("window", [1, 16, 128])
def test_sparse_attention(ratio: int, window: int) -> None:
    lens, swa, swa_table, entries, entry_table, sinks = _attention_case(ratio)
    size, scale = 12 if ratio == 4 else 256, 0.3
    compressed = (ratio, entries, entry_table, size) if ratio else ()
    source = random.Random(1)

    def choice(position: int) -> list[int]:
        seen = (position + 1) // 4
        picked = sorted(source.sample(range(seen), min(5, seen)))
        return picked + [-1] * (6 - len(picked))

    def keys(r: int, t: int, chosen: list[int] | None) -> list[Tensor]:
        found = [swa[slot(swa_table, r, s, 7, 1)] for s in range(max(0, t - window + 1), t + 1)]
        seen = range((t + 1) // ratio) if ratio else range(0)
        read = seen if chosen is None else [j for j in chosen if j >= 0]
        return found + [entries[slot(entry_table, r, j * ratio, size, ratio)] for j in read]

    chunk = torch.tensor([90, 130, 1])
    starts = lens - chunk
    loc = torch.cat((torch.zeros(1, dtype=torch.int64), chunk.cumsum(0))).to(torch.int32)
    where = [(r, int(starts[r]) + i) for r in range(3) for i in range(int(chunk[r]))]
    picks = [choice(t) for _, t in where] if ratio == 4 else None
    q = noise(len(where), 2, 8, seed=6)
    args = (swa, swa_table, 7, *compressed)
    chosen = torch.tensor(picks) if picks else None
    found = sparse_attention_prefill(
        q,
        sinks,
        scale,
        window,
        loc,
        starts,
        chunk.tolist(),
        lens.tolist(),
        *args,
        **({"chosen": chosen} if picks else {}),
    )
    for i, (r, t) in enumerate(where):
        assert near(found[i], _attended(q[i], sinks, scale, keys(r, t, picks[i] if picks else None)))

    starts, used = lens - 2, torch.tensor([2, 1, 0])
    q = noise(3, 2, 2, 8, seed=9)
    picks = [[choice(int(starts[r]) + min(i, int(used[r]) - 1)) for i in range(2)] for r in range(2)]
    chosen = torch.tensor([*picks, [[-1] * 6] * 2]) if ratio == 4 else None
    extra = {"chosen": chosen} if ratio == 4 else {}
    out = sparse_attention_decode(
        q, sinks, scale, window, starts, used, (starts + used).tolist(), *args, **extra
    )
    for r, i in [(0, 0), (0, 1), (1, 0)]:
        seen = keys(r, int(starts[r]) + i, picks[r][i] if ratio == 4 else None)
        assert near(out[r, i], _attended(q[r, i], sinks, scale, seen))
    assert out.isfinite().all()
    assert (out[2] == 0).all()


def test_hyper_connections() -> None:
    n, h, rows, eps = 3, 5, 4, 1e-2
    x, y = noise(rows, n, h), noise(rows, h, seed=1)
    fn, base = noise((2 + n) * n, n * h, seed=2), noise((2 + n) * n, seed=3)
    s = torch.tensor([0.5, 1.5, 0.8])
    scale = s.repeat_interleave(torch.tensor([n, n, n * n]))
    inner, post, comb = hc_pre(x, fn, scale, base, 3, eps, 1e-6)
    out = hc_post(y, x, post, comb)
    head = hc_head(x, fn[:n], s[:1], base[:n], eps, 1e-6)
    for t in range(rows):
        flat = x[t].flatten()
        m = fn @ (flat / flat.square().mean().sqrt())
        pre = torch.sigmoid(s[0] * m[:n] + base[:n]) + eps
        c = (s[2] * m[2 * n :] + base[2 * n :]).view(n, n).softmax(1) + eps
        for i in range(3):
            if i:
                c = c / (c.sum(1, keepdim=True) + eps)
            c = c / (c.sum(0, keepdim=True) + eps)
        expected_post = 2 * torch.sigmoid(s[1] * m[n : 2 * n] + base[n : 2 * n])
        assert near(inner[t], sum(pre[j] * x[t, j] for j in range(n)), 1e-4)
        assert near(comb[t], c, 1e-4)
        for k in range(n):
            expected = expected_post[k] * y[t] + sum(c[j, k] * x[t, j] for j in range(n))
            assert near(out[t, k], expected, 1e-4)
        weights = torch.sigmoid(s[0] * (m[:n]) + base[:n]) + eps
        assert near(head[t], sum(weights[j] * x[t, j] for j in range(n)), 1e-4)


def test_moe_gate_by_score_and_by_hash() -> None:
    x, weight, bias = noise(6, 4), noise(5, 4, seed=1), torch.tensor([3.0, 0, 0, -3, 0])
    scores = torch.log1p(torch.exp(x @ weight.T)).sqrt()
    weights, experts = moe_gate(x, weight, bias, None, None, 2, 1.5)
    for t in range(6):
        chosen = sorted(sorted(range(5), key=lambda e: -float(scores[t, e] + bias[e]))[:2])
        assert experts[t].tolist() == chosen
        assert near(weights[t], 1.5 * scores[t, chosen] / scores[t, chosen].sum())
    table = torch.tensor([[4, 1], [0, 3]])
    weights, experts = moe_gate(x, weight, None, table, torch.tensor([0, 1, 1, 0, 0, 1]), 2, 1.5)
    assert experts.tolist() == table[[0, 1, 1, 0, 0, 1]].tolist()
    assert near(weights.sum(1), torch.full((6,), 1.5))


def test_clamped_swiglu() -> None:
    x = 3 * noise(4, 6)
    expected = torch.nn.functional.silu(x[:, :3].clamp(max=1.5)) * x[:, 3:].clamp(-1.5, 1.5)
    assert (x[:, :3] > 1.5).any()
    assert (x[:, 3:].abs() > 1.5).any()
    assert near(clamped_swiglu(x, 1.5), expected)


# Few rows (weights are gathered), many (rows are sorted by expert), many of a size that grouped_mm refuses.
@pytest.mark.parametrize(("rows", "hidden", "inner"), [(5, 8, 4), (700, 64, 16), (700, 62, 15)])
def test_moe_experts(rows: int, hidden: int, inner: int) -> None:
    experts = torch.randint(0, 5, (rows, 3), generator=torch.Generator().manual_seed(0))
    experts[experts == 2] = 4  # nobody chooses expert 2
    x, w13, w2 = noise(rows, hidden), noise(5, 2 * inner, hidden), noise(5, hidden, inner)
    found = moe_experts(x, experts, w13, w2, 1.0)
    assert found.shape == (rows, 3, hidden)
    for t, k in itertools.product(range(0, rows, 7), range(3)):
        e = int(experts[t, k])
        gate, up = (w13[e] @ x[t]).split(inner)
        expected = w2[e] @ (torch.nn.functional.silu(gate.clamp(max=1.0)) * up.clamp(-1.0, 1.0))
        assert near(found[t, k], expected, 1e-4)
