"""Seeded faults: each known pitfall, put in on purpose, makes the comparison with the oracle fail.

Every fault is one change to an op, to its arguments or to the order of events. A comparison that stayed green
with a fault in it would not be worth much.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hocket.model import attention, deepseek_v4, layers, moe, step
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.random_checkpoint import random_tensors, tiny_config
from hocket_kernels import compressor, hyper_connection, lightning_indexer, moe_experts, sparse_attention
from hocket_kernels.query_blocks import QueryBlocks
from tests.unit.model.naive import Naive
from tests.unit.model.oracle import Pair
from tests.unit.model.support import MODELS, TOLERANCE, Driver, Pages, difference, token_ids

PROMPTS = {"a": token_ids(300, seed=1), "b": token_ids(170, seed=2)}
CONFIGS = {
    **MODELS,
    # After 20 iterations rows and columns both sum to 1 nearly exactly, whichever comes last.
    "two iterations": dataclasses.replace(MODELS["W128"], hc_sinkhorn_iters=2),
}
Patch = pytest.MonkeyPatch
Case = tuple[Pair, Mapping[str, Tensor]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def case(name: str) -> Case:
        if name not in made:
            pair = Pair(tmp_path_factory.mktemp("checkpoint"), CONFIGS[name])
            made[name] = pair, {r: pair.reference(ids) for r, ids in PROMPTS.items()}
        return made[name]

    return case


def error(
    model: DeepseekV4Model, expected: Mapping[str, Tensor], chunk: int = 37, geometry: str = "odd"
) -> float:
    """The largest difference over two requests side by side."""
    found = Driver(model, geometry).run(PROMPTS, chunk)
    return max(difference(found[r], expected[r]) for r in PROMPTS)


def wrap(patch: Patch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace `module.name` by `change(original, *arguments)`."""
    original = getattr(module, name)
    patch.setattr(module, name, lambda *args, **kwargs: change(original, *args, **kwargs))


@pytest.mark.parametrize("name", CONFIGS)
def test_without_a_fault_all_is_green(cases: Callable[[str], Case], name: str) -> None:
    pair, expected = cases(name)
    assert error(pair.model, expected) <= TOLERANCE


# --- faults in ops and in what is passed to them


def mixing_not_transposed(patch: Patch) -> None:
    wrap(patch, layers, "hc_post", lambda op, y, x, post, comb: op(y, x, post, comb.transpose(1, 2)))


def sinkhorn_ends_on_rows(patch: Patch) -> None:
    def change(op: Any, *args: Any) -> Tensor:
        c = op(*args)
        return c / c.sum(1, keepdim=True)

    wrap(patch, hyper_connection, "_sinkhorn", change)


def mixing_norm_per_stream(patch: Patch) -> None:
    def change(op: Any, x: Tensor, *args: Any) -> Tensor:
        return op(x * torch.rsqrt(x.square().mean(-1, keepdim=True)), *args)

    wrap(patch, hyper_connection, "_mix", change)


def _visible(patch: Patch, rule: Callable[[Tensor, int], Tensor]) -> None:
    for module in (lightning_indexer, sparse_attention):
        patch.setattr(module, "visible_entries", rule)


def entry_hidden_from_its_last_token(patch: Patch) -> None:
    _visible(patch, lambda positions, ratio: positions.clamp(min=0) // ratio)


def entry_visible_before_it_closes(patch: Patch) -> None:
    _visible(patch, lambda positions, ratio: (positions + ratio) // ratio)


def threshold_within_the_chunk(patch: Patch) -> None:
    _visible(patch, lambda positions, ratio: (positions - positions[:, :1] + 1) // ratio)


def _angles(patch: Patch, change: Callable[[Any, Any], dict[bool, Any]]) -> None:
    wrap(patch, step, "_angles", lambda op, positions, f: change(op(positions, f), f))


def window_of_compressed_layers_turns_plainly(patch: Patch) -> None:
    _angles(patch, lambda angles, _: {False: angles[False], True: angles[False]})


def plain_layers_turn_with_yarn(patch: Patch) -> None:
    _angles(patch, lambda angles, _: {False: angles[True], True: angles[True]})


def output_not_turned_back(patch: Patch) -> None:
    def change(op: Any, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
        return x if inverse else op(x, cos, sin, inverse)

    wrap(patch, attention, "partial_rotary", change)


def entry_at_its_last_position(patch: Patch) -> None:
    def change(op: Any, ratio: int, queries: Any, cache: Any, frequencies: Any) -> Any:
        last = step._closing(ratio, queries)[1] + ratio - 1
        angles = step.rotary_angles(last, frequencies.compressed)
        return op(ratio, queries, cache, frequencies)._replace(angles=angles)

    wrap(patch, step, "_closed", change)


def _both_compressors(patch: Patch, change: Callable[..., Any]) -> None:
    for name in ("compress_ratio4_", "compress_ratio128_"):
        wrap(patch, attention, name, change)


def ape_counted_within_the_chunk(patch: Patch) -> None:
    def change(op: Any, state: Tensor, x: Tensor, ape: Tensor, positions: Tensor, *args: Any) -> Tensor:
        return op(state, x, ape, torch.arange(len(positions)), *args)

    _both_compressors(patch, change)


def ape_ignored(patch: Patch) -> None:
    _both_compressors(patch, lambda op, state, x, ape, *args: op(state, x, torch.zeros_like(ape), *args))


def overlap_halves_exchanged(patch: Patch) -> None:
    def change(op: Any, state: Tensor, x: Tensor, ape: Tensor, *args: Any) -> Tensor:
        a, b, c, d = x.chunk(4, -1)
        return op(state, torch.cat((b, a, d, c), -1), ape.roll(ape.shape[1] // 2, 1), *args)

    wrap(patch, attention, "compress_ratio4_", change)


def overlap_forgotten(patch: Patch) -> None:
    def change(op: Any, *args: Any) -> Tensor:
        window_slots = args[5].clone()
        window_slots[:, :4] = -1
        return op(*args[:5], window_slots, *args[6:])

    wrap(patch, attention, "compress_ratio4_", change)


def missing_half_scores_zero(patch: Patch) -> None:
    def change(op: Any, kv: Tensor, scores: Tensor, *args: Any) -> Tensor:
        return op(kv, scores.nan_to_num(neginf=0.0), *args)

    wrap(patch, compressor, "_pool", change)


def missing_half_read_from_a_reused_row(patch: Patch) -> None:
    def change(op: Any, state: Tensor, *args: Any) -> Tensor:
        state[0] = 1.0  # what somebody else left there
        return op(state, *args[:4], args[4].clamp(min=0), *args[5:])

    wrap(patch, attention, "compress_ratio4_", change)


def hash_layers_get_no_ids(patch: Patch) -> None:
    wrap(patch, layers, "moe", lambda op, w, x, ids, *args: op(w, x, torch.zeros_like(ids), *args))


def hash_layers_get_the_neighbours_ids(patch: Patch) -> None:
    wrap(patch, layers, "moe", lambda op, w, x, ids, *args: op(w, x, ids.roll(1), *args))


def all_rows_belong_to_the_first_request(patch: Patch) -> None:
    def change(op: Any, *args: Any) -> QueryBlocks:
        blocks = op(*args)
        return blocks._replace(requests=torch.zeros_like(blocks.requests))

    wrap(patch, sparse_attention, "query_blocks", change)


def positions_restart_with_the_chunk(patch: Patch) -> None:
    def change(op: Any, loc: Tensor, starts: Tensor, *args: Any) -> QueryBlocks:
        return op(loc, torch.zeros_like(starts), *args)

    wrap(patch, sparse_attention, "query_blocks", change)


def _window(by: int) -> Callable[[Patch], None]:
    def fault(patch: Patch) -> None:
        def change(op: Any, q: Tensor, sinks: Tensor, scale: float, window: int, *args: Any) -> Tensor:
            return op(q, sinks, scale, window + by, *args)

        wrap(patch, step, "sparse_attention_prefill", change)

    fault.__name__ = f"window_off_by_{by}"
    return fault


def sinks_ignored(patch: Patch) -> None:
    def change(op: Any, q: Tensor, sinks: Tensor, *args: Any) -> Tensor:
        return op(q, torch.full_like(sinks, float("-inf")), *args)

    wrap(patch, step, "sparse_attention_prefill", change)


def indexer_takes_the_first_entries(patch: Patch) -> None:
    def change(op: Any, scores: Tensor, k: int) -> Tensor:
        return torch.arange(k).expand(*scores.shape[:-1], k)

    wrap(patch, lightning_indexer, "deterministic_topk", change)


def bias_counts_in_the_weights(patch: Patch) -> None:
    def change(op: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any) -> Any:
        weights, experts = op(x, weight, bias, *args)
        if bias is not None:
            weights = weights * (1 + bias[experts])
        return weights, experts

    wrap(patch, moe, "moe_gate", change)


def experts_not_clamped(patch: Patch) -> None:
    for module in (moe, moe_experts):
        wrap(patch, module, "clamped_swiglu", lambda op, x, limit: op(x, 1e9))


FAULTS: list[tuple[Callable[[Patch], None], str]] = [
    (mixing_not_transposed, "W128"),
    (sinkhorn_ends_on_rows, "two iterations"),
    (mixing_norm_per_stream, "W128"),
    (entry_hidden_from_its_last_token, "W16"),
    (entry_visible_before_it_closes, "W16"),
    (threshold_within_the_chunk, "W16"),
    (window_of_compressed_layers_turns_plainly, "W128"),
    (plain_layers_turn_with_yarn, "W128"),
    (output_not_turned_back, "W128"),
    (entry_at_its_last_position, "W16"),
    (ape_counted_within_the_chunk, "W16"),
    (ape_ignored, "W16"),
    (overlap_halves_exchanged, "W16"),
    (overlap_forgotten, "W16"),
    (missing_half_scores_zero, "W16"),
    (missing_half_read_from_a_reused_row, "W16"),
    (hash_layers_get_no_ids, "W128"),
    (hash_layers_get_the_neighbours_ids, "W128"),
    (all_rows_belong_to_the_first_request, "W128"),
    (positions_restart_with_the_chunk, "W128"),
    (_window(1), "W16"),
    (_window(-1), "W16"),
    (sinks_ignored, "W128"),
    (indexer_takes_the_first_entries, "W16"),
    (bias_counts_in_the_weights, "all entries"),
    (experts_not_clamped, "W128"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_the_comparison_turns_red(
    cases: Callable[[str], Case], monkeypatch: Patch, fault: Callable[[Patch], None], name: str
) -> None:
    pair, expected = cases(name)
    fault(monkeypatch)
    assert error(pair.model, expected) > 5 * TOLERANCE


# What a fresh model holds as a constant: were these ignored, only a random checkpoint would tell.
CONSTANTS = ["attn_sink", "ape", "gate.bias", "gate.tid2eid", "hc_attn_base", "hc_ffn_scale", "hc_head_base"]


@pytest.mark.parametrize("leaf", CONSTANTS)
def test_every_constant_matters(cases: Callable[[str], Case], leaf: str) -> None:
    pair, expected = cases("W128")
    constant = {
        n: torch.ones_like(t) * n.endswith("scale") if n.endswith(leaf) else t
        for n, t in pair.tensors.items()
    }
    assert error(DeepseekV4Model(pair.config, constant), expected) > 5 * TOLERANCE


def test_yarn_matters(cases: Callable[[str], Case]) -> None:
    pair, expected = cases("W128")
    plain = dataclasses.replace(pair.config, rope_scaling=None)
    assert error(DeepseekV4Model(plain, pair.tensors), expected) > 5 * TOLERANCE


def test_ties_by_highest_index_are_seen(monkeypatch: Patch) -> None:
    config = tiny_config(compress_ratios=(4, 4), index_n_heads=2, index_topk=4, num_nextn_predict_layers=0)
    tensors = random_tensors(config)
    ids = token_ids(150, seed=2)
    expected = Naive(config, tensors).logits(ids)

    def change(op: Any, scores: Tensor, k: int) -> Tensor:
        return scores.shape[-1] - 1 - op(scores.flip(-1), k).flip(-1)

    wrap(monkeypatch, lightning_indexer, "deterministic_topk", change)
    found = Driver(DeepseekV4Model(config, tensors)).run({"a": ids}, chunk=150)["a"]
    assert difference(found, expected) > 5 * TOLERANCE


# --- faults that one choice of chunk or block size hides and another shows


def test_a_forgotten_open_window_shows_only_off_the_grid(
    cases: Callable[[str], Case], monkeypatch: Patch
) -> None:
    """At chunk ends divisible by 128 the state of ratio 128 is empty: losing it is invisible there."""
    pair, expected = cases("W128")
    wrap(monkeypatch, attention, "compress_ratio128_", lambda op, state, *args: op(state.zero_(), *args))
    assert error(pair.model, expected, chunk=128) <= TOLERANCE
    assert error(pair.model, expected, chunk=127) > 5 * TOLERANCE


def test_a_wrong_block_edge_shows_only_in_small_blocks(
    cases: Callable[[str], Case], monkeypatch: Patch
) -> None:
    """With blocks of 16384 tokens all entries of ratio 128 lie in one block."""
    pair, expected = cases("W128")

    def change(op: Any, table: Tensor, requests: Tensor, positions: Tensor, size: int, ratio: int) -> Tensor:
        return op(table, requests, positions % size if ratio == 128 else positions, size, ratio)

    for module in (step, sparse_attention):
        wrap(monkeypatch, module, "slot_mapping", change)
    assert error(pair.model, expected, geometry="engine") <= TOLERANCE
    assert error(pair.model, expected, geometry="tiny") > 5 * TOLERANCE


# --- faults in the order of events


class RingPages(Pages):
    """Compressor state of ratio 4 in a ring of exactly its window, 8 rows, not by absolute position."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rings: dict[str, list[int]] = {}
        for name in ("c4_state", "c4_indexer_state"):
            self.specs[name] = dataclasses.replace(self.specs[name], window=None)
            self.rings[name] = [self._take(name) for _ in range(8)]

    def grow(self, request: str, computed: int, tokens: int) -> None:
        super().grow(request, computed, tokens)
        for name, ring in self.rings.items():
            table = self.tables[request][name]
            table[:] = [ring[i % 8] for i in range(len(table))]


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_ring_as_long_as_the_window_fails_under_drafts(cases: Callable[[str], Case], drafts: int) -> None:
    pair, expected = cases("W16")
    ids = PROMPTS["a"][:120]
    driver = Driver(pair.model, "tiny")
    driver.pages = RingPages(driver.cache, driver.pages.config, True)
    found = [driver.prefill({"a": ids[:8].tolist()})["a"]]
    while (at := driver.computed["a"]) < len(ids):
        rows = [int(ids[at])] + [5] * drafts
        found.append(driver.decode({"a": rows}, {"a": 1}, 1 + drafts)["a"])
    wrong = difference(torch.cat(found), expected["a"][: len(ids)])
    assert wrong <= TOLERANCE if not drafts else wrong > 5 * TOLERANCE


@pytest.mark.parametrize("rewrite", [True, False])
def test_rejected_positions_must_be_rewritten(
    cases: Callable[[str], Case], monkeypatch: Patch, rewrite: bool
) -> None:
    pair, expected = cases("W16")
    ids = PROMPTS["a"][:120]
    driver = Driver(pair.model)
    found = [driver.prefill({"a": ids[:90].tolist()})["a"]]
    written = [89]

    def change(op: Any, dispatch: Any, *args: Any) -> Any:
        made = op(dispatch, *args)
        kept = made.positions > written[0]
        written[0] = max(written[0], int(made.positions.max()))
        slots = {g: torch.where(kept, s, -1) for g, s in made.write_slots.items()}
        return dataclasses.replace(made, write_slots=slots)

    if not rewrite:
        wrap(monkeypatch, deepseek_v4, "decode_step", change)
    while (at := driver.computed["a"]) < len(ids):
        rows = [int(ids[at]), 5, 6]
        found.append(driver.decode({"a": rows}, {"a": 1}, 3)["a"])
    wrong = difference(torch.cat(found), expected["a"][: len(ids)])
    assert wrong <= TOLERANCE if rewrite else wrong > 5 * TOLERANCE


@pytest.mark.parametrize(
    "group", ["swa", "c4", "c4_indexer", "c128", "c4_state", "c4_indexer_state", "c128_state"]
)
def test_a_preempted_request_must_restart(cases: Callable[[str], Case], group: str) -> None:
    """Going on with what is left when one group's blocks were lost is wrong, whichever group it is."""
    pair, expected = cases("W16")
    ids = PROMPTS["a"]
    driver = Driver(pair.model, poison=False)
    driver.run({"tenant": token_ids(300, seed=8)}, chunk=300)
    driver.finish("tenant")
    driver.prefill({"a": ids[:201].tolist()})
    pages = driver.pages
    table = pages.tables["a"][group]
    pages.tables["a"][group] = [pages._take(group) if block else 0 for block in table]
    found = driver.prefill({"a": ids[201:].tolist()})["a"]
    assert not difference(found, expected["a"][201:]) <= 5 * TOLERANCE


@pytest.mark.parametrize("stale", [True, False])
def test_a_stale_dispatch_must_not_write_reused_blocks(cases: Callable[[str], Case], stale: bool) -> None:
    pair, expected = cases("W16")
    driver = Driver(pair.model, tokens=330, poison=False)
    driver.prefill({"old": token_ids(300, seed=8).tolist()})
    tables = {name: list(table) for name, table in driver.pages.tables["old"].items()}
    driver.finish("old")
    ids = PROMPTS["a"]
    driver.prefill({"a": ids[:201].tolist()})
    if stale:
        driver.pages.tables["old"] = tables
        driver.computed["old"] = 280
        driver.prefill({"old": token_ids(20, seed=8).tolist()})
    found = driver.prefill({"a": ids[201:].tolist()})["a"]
    wrong = difference(found, expected["a"][201:])
    assert wrong > 5 * TOLERANCE if stale else wrong <= TOLERANCE
