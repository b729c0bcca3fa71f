"""Speculative decoding with MTP layers: the same text as without, and MTP state that survives whatever
happens.

Output tokens cannot show a fault in the state of the MTP layers (verification repairs them), so their logits
and drafts are compared: with one chunk, and with an oracle put together from transformers' parts.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from hocket.engine.engine import run_all
from hocket.engine.llm import LLM
from hocket.engine.results import RequestResult
from hocket.runner.drafts import Drafter
from tests.e2e.drafting import (
    Recorder,
    engine,
    guide,
    loaded,
    oracle,
    plain,
    prompt,
    request,
    whole,
)
from tests.e2e.world import cache_rows, drain, step_into, wait_for_runner
from tests.unit.model.pairwise import pairwise, render
from tests.unit.model.support import TOLERANCE, difference

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
PROMPT, OUTPUTS = 650, 24
LONG = request("long", prompt(PROMPT, 1), max_tokens=OUTPUTS)
OTHER = request("other", prompt(40, 2), max_tokens=60)
GONE = request("gone", prompt(90, 3), max_tokens=50)

FACTORS: Mapping[str, Any] = {
    "chunk": [1, 5, 127, 128, 129, 650],
    "depth": [1, 2, 3],
    "drafts": [1, 2, 3],
    "layers": [1, 2],
    "beside": ["nobody", "a decoder"],
    "event": ["none", "preemption", "abort of another"],
    "guesses": ["its own", "mostly right"],
}
TABLE = pairwise(FACTORS)


def mostly(name: str, position: int) -> bool:
    """Three of four, in no simple pattern."""
    return (position * 7 + len(name)) % 11 % 4 != 1


@functools.cache
def one_chunk(layers: int, drafts: int) -> Recorder:
    """What the MTP layers say if the long prompt is one chunk and nobody else is there."""
    with engine(1, drafts, layers, prefill_chunk_size=720) as built:
        recorder = Recorder(built)
        run_all(built, [LONG])
    return recorder


def go(case: Mapping[str, Any]) -> tuple[Recorder, dict[str, RequestResult]]:
    """Run the long request as the case says."""
    others = [OTHER] if case["beside"] == "a decoder" else []
    gone = [GONE] if case["event"] == "abort of another" else []
    knobs = {"prefill_chunk_size": case["chunk"]}
    with engine(case["depth"], case["drafts"], case["layers"], **knobs) as built:
        recorder = Recorder(built)
        if case["guesses"] == "mostly right":
            guide(built, {r.request_id: whole(r, case["layers"]) for r in (LONG, OTHER, GONE)}, mostly)
        for item in [*others, *gone, LONG]:
            built.add_request(item)
        found, said, preempted = {}, 0, 0
        while built.has_unfinished_requests():
            for update in step_into(built, found):
                said += len(update.new_token_ids) if update.request_id == "long" else 0
            state = built.scheduler.request_state("long")
            computed = state.num_computed_tokens if state is not None else 0
            if gone and computed >= 300:
                gone = []
                built._fill()
                built.abort_request("gone")
            # In its prompt, and in its outputs.
            due = (preempted == 0 and computed >= 390) or (preempted == 1 and 4 <= said < OUTPUTS)
            if case["event"] == "preemption" and due and "long" not in found:
                preempted += 1
                built._fill()
                built.preempt_request("long")
        if case["event"] == "preemption":
            assert preempted == 2
    return recorder, found


@pytest.fixture(scope="module", autouse=True)
def table() -> None:
    print("\n" + render(TABLE))


@pytest.mark.parametrize("case", TABLE, ids=lambda case: "-".join(map(str, case.values())))
def test_text_and_mtp_state_do_not_depend_on_anything(case: Mapping[str, Any]) -> None:
    """Greedy text equals that without drafts; MTP logits of every confirmed row equal those of one chunk."""
    recorder, found = go(case)
    assert found["long"].token_ids == plain(LONG, case["layers"]).token_ids
    if case["beside"] == "a decoder":
        assert found["other"].token_ids == plain(OTHER, case["layers"]).token_ids
    reference = one_chunk(case["layers"], case["drafts"])
    rows = PROMPT + OUTPUTS - 1
    for layer in range(min(case["layers"], case["drafts"])):
        wrong = difference(recorder.table("long", layer, rows), reference.table("long", layer, rows))
        assert wrong <= TOLERANCE, f"layer {layer}"
    # What the layers themselves proposed, whatever was then verified in its place.
    common = [key for key in recorder.offered if key in reference.offered and key[0] == "long"]
    assert common
    for key in common:
        mine, other = recorder.offered[key], reference.offered[key]
        assert mine[: len(other)] == other[: len(mine)]
    if case["guesses"] == "mostly right":
        assert found["long"].metrics.acceptance_rate > 0.25


@pytest.mark.parametrize("layers", [1, 2])
def test_the_reference_is_what_the_oracle_says(layers: int) -> None:
    text = torch.tensor(whole(LONG, layers))
    found = one_chunk(layers, 1).table("long", 0, len(text) - 1)
    assert difference(found, oracle(layers).logits(text)) <= TOLERANCE


def test_drafts_are_what_the_oracle_drafts() -> None:
    """One layer, applied three times: its own streams and drafts go in again."""
    text, offered = list(whole(LONG)), one_chunk(1, 3).offered
    starts = sorted(start for name, start in offered if name == "long" and len(offered[name, start]) == 3)
    assert len(starts) > 3
    for start in starts[:: max(1, len(starts) // 4)]:
        assert offered["long", start] == oracle().drafts(text[: start + 1], 3)


VERY_LONG = request("long", prompt(8192, 4), max_tokens=6)


@functools.cache
def mtp_of_8192(chunk: int) -> torch.Tensor:
    """MTP logits of all rows of the prompt."""
    knobs = {"max_model_len": 8300, "max_num_batched_tokens": 8192, "prefill_chunk_size": chunk}
    with engine(2, 1, **knobs) as built:
        recorder = Recorder(built)
        run_all(built, [VERY_LONG])
    return recorder.table("long", 0, 8191)


def test_8192_tokens_in_one_chunk_are_what_the_oracle_says() -> None:
    reference = oracle().logits(torch.tensor(VERY_LONG.prompt_token_ids), chunk=512)
    assert difference(mtp_of_8192(8192), reference) <= TOLERANCE


@pytest.mark.parametrize("chunk", [2048, 1000, 129])
def test_8192_tokens_in_chunks(chunk: int) -> None:
    assert difference(mtp_of_8192(chunk), mtp_of_8192(8192)) <= TOLERANCE


def drop_the_cache(real, self, rows, dispatch, streams, next_ids):
    """MTP's cache is lost at each chunk boundary."""
    if bool((dispatch.chunk_starts > 0).any()):
        self._cache.tensors["mtp_swa"].zero_()
    real(self, rows, dispatch, streams, next_ids)


def wrong_boundary_token(real, self, rows, dispatch, streams, next_ids):
    """The last row of a chunk that is not the last takes the prompt's last token."""
    lasts = dispatch.query_start_loc[1:].long() - 1
    inside = dispatch.seq_lens < PROMPT
    next_ids[lasts[inside]] = LONG.prompt_token_ids[-1]
    real(self, rows, dispatch, streams, next_ids)


def another_tail(real, self, rows, dispatch, streams, next_ids):
    """With two layers: the second one forgets the row before the chunk."""
    self.tails.zero_()
    real(self, rows, dispatch, streams, next_ids)


@pytest.mark.parametrize(
    ("fault", "layer"), [(drop_the_cache, 0), (wrong_boundary_token, 0), (another_tail, 1)]
)
def test_a_fault_at_the_boundary_is_seen(monkeypatch: pytest.MonkeyPatch, fault: Any, layer: int) -> None:
    """The same comparison turns red; the text does not change."""
    case = {"chunk": 127, "depth": 2, "drafts": 2, "layers": 2, "beside": "nobody", "event": "none"}
    real = Drafter.follow_prefill
    monkeypatch.setattr(Drafter, "follow_prefill", lambda self, *args: fault(real, self, *args))
    recorder, found = go(case | {"guesses": "its own"})
    assert found["long"].token_ids == plain(LONG, 2).token_ids
    reference = one_chunk(2, 2).table("long", layer, PROMPT - 1)
    assert difference(recorder.table("long", layer, PROMPT - 1), reference) > 5 * TOLERANCE


# --- Counters ---------------------------------------------------------------------------------------


def counts(result: RequestResult) -> tuple[int, int]:
    return result.metrics.num_draft_tokens, result.metrics.num_accepted_tokens


@pytest.mark.parametrize("drafts", [1, 3])
def test_acceptance_does_not_depend_on_chunks_or_neighbours(drafts: int) -> None:
    wanted = request("r", prompt(150, 5), max_tokens=40)
    seen = {}
    for chunk in (7, 129, 400):
        for company in ([], [OTHER, GONE]):
            with engine(1, drafts, prefill_chunk_size=chunk) as built:
                results = {k: u.result for k, u in run_all(built, [wanted, *company]).items()}
                total = built.stats
            seen[chunk, len(company)] = counts(results["r"])
            every = [counts(result) for result in results.values()]
            assert (total.num_draft_tokens, total.num_accepted_tokens) == tuple(
                map(sum, zip(*every, strict=True))
            )
    assert len(set(seen.values())) == 1, seen
    offered, accepted = seen[7, 0]
    assert 0 < accepted < offered
    assert results["r"].metrics.acceptance_rate == accepted / offered


@DEPTHS
def test_what_is_drafted_does_not_depend_on_depth(depth: int) -> None:
    """Rows may begin elsewhere at another depth; from the same place they guess the same."""
    offered = {}
    for chunk in (50, 129):
        with engine(depth, 3, prefill_chunk_size=chunk) as built:
            recorder = Recorder(built)
            run_all(built, [LONG, OTHER])
        for (name, start), drafts in recorder.offered.items():
            known = offered.setdefault((name, start), drafts)
            assert known[: len(drafts)] == drafts[: len(known)]
    for start in {start for name, start in offered if name == "long"}:
        alone = one_chunk(1, 3).offered.get(("long", start), [])
        mine = offered["long", start]
        assert mine[: len(alone)] == alone[: len(mine)]


@DEPTHS
def test_speculation_is_switched_off_and_limited_per_request(depth: int) -> None:
    wanted = {
        name: replace(OTHER, request_id=name, sampling_params=replace(OTHER.sampling_params, **params))
        for name, params in {
            "off": {"num_speculative_tokens": 0},
            "one": {"num_speculative_tokens": 1},
            "more": {"num_speculative_tokens": 9},
            "as configured": {},
        }.items()
    }
    text = whole(OTHER)
    with engine(depth, 3) as built:
        recorder = Recorder(built)
        guide(built, dict.fromkeys(wanted, text), mostly)
        found = {k: u.result for k, u in run_all(built, list(wanted.values())).items()}
    longest = {n: max(length for name, _, length in recorder.rows if name == n) for n in wanted}
    assert longest == {"off": 1, "one": 2, "more": 4, "as configured": 4}
    assert {found[name].token_ids for name in wanted} == {plain(OTHER).token_ids}
    assert counts(found["off"]) == (0, 0)
    assert found["off"].metrics.acceptance_rate is None
    assert 0 < counts(found["one"])[1] < counts(found["more"])[1]


# --- No phantom step --------------------------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("drafts", [1, 3])
def test_nothing_runs_past_max_tokens(depth: int, drafts: int) -> None:
    """Every draft is right, so that every row is as long as it may be."""
    wanted = [request(f"r{n}", prompt(20, n), max_tokens=n) for n in range(1, 10)]
    text = {item.request_id: whole(replace(item, sampling_params=OTHER.sampling_params)) for item in wanted}
    with engine(depth, drafts, max_num_seqs=6) as built:
        recorder = Recorder(built)
        guide(built, text, lambda *_: True)
        found = {k: u.result for k, u in run_all(built, wanted).items()}
    for n, item in enumerate(wanted, 1):
        result = found[item.request_id]
        assert result.token_ids == text[item.request_id][20 : 20 + n]
        assert result.finish_reason == "length"
        # The last token is sampled, never computed.
        ends = [start + length for name, start, length in recorder.rows if name == item.request_id]
        assert max(ends, default=20) <= 20 + n - 1
        assert result.metrics.num_accepted_tokens <= max(0, n - 1)


@DEPTHS
def test_nothing_runs_past_max_model_len(depth: int) -> None:
    item = request("r", prompt(90, 9), max_tokens=30)
    text = whole(item)
    with engine(depth, 3, max_model_len=100, max_num_batched_tokens=100) as built:
        recorder = Recorder(built)
        guide(built, {"r": text}, lambda *_: True)
        result = run_all(built, [item])["r"].result
    assert result.token_ids == text[90:100]
    assert result.finish_reason == "length"
    assert max(start + length for _, start, length in recorder.rows) <= 99


@DEPTHS
def test_a_stop_token_ends_the_request_wherever_it_stands_in_a_row(depth: int) -> None:
    """Drafts after it were right too; they are not emitted, and not counted."""
    text = plain(OTHER).token_ids
    for place in range(2, 9):
        stop = text[place]
        end = text.index(stop)
        item = replace(OTHER, sampling_params=replace(OTHER.sampling_params, stop_token_ids=(stop,)))
        with engine(depth, 3) as built:
            guide(built, {"other": whole(OTHER)}, lambda *_: True)
            result = run_all(built, [item])["other"].result
        assert result.token_ids == text[: end + 1]
        assert result.finish_reason == "stop"
        assert result.metrics.num_accepted_tokens <= end


# --- Memory, slots, sampled text ----------------------------------------------------------------------


@DEPTHS
def test_rows_that_fall_back_to_one_token_under_memory_pressure(depth: int) -> None:
    wanted = [request(f"r{i}", prompt(8 + i, i), max_tokens=50) for i in range(5)]
    blocks = {"swa": 14, "mtp_swa": 14, "c4": 9, "c4_indexer": 12}
    knobs = {"max_model_len": 100, "max_num_batched_tokens": 48, "prefill_chunk_size": 16}
    with engine(depth, 3, blocks=blocks, **knobs) as built:
        recorder = Recorder(built)
        guide(built, {item.request_id: whole(item) for item in wanted}, mostly)
        lengths = []
        built.observers.append(lambda step: lengths.append(step.output.num_scheduled_tokens))
        found = {k: u.result for k, u in run_all(built, wanted).items()}
        preemptions = built.stats.preemptions
    assert preemptions >= 2
    assert any(len(set(row)) > 1 and 1 in row for row in lengths), "rows with and without drafts"
    for item in wanted:
        assert found[item.request_id].token_ids == plain(item).token_ids
        assert not recorder.table(item.request_id, 0, len(whole(item)) - 1).isnan().any()


@DEPTHS
def test_an_id_and_a_slot_used_again_while_rows_of_the_old_request_are_in_flight(depth: int) -> None:
    first, second = (
        request("same", prompt(60, 6), max_tokens=20),
        request("same", prompt(33, 7), max_tokens=20),
    )
    with engine(depth, 2, max_num_seqs=1, prefill_chunk_size=16) as built:
        recorder = Recorder(built)
        built.add_request(first)
        for _ in range(7):
            built.step()
        built._fill()
        built.abort_request("same")
        built.add_request(second)
        found = drain(built)
    assert found["same"].token_ids == plain(second).token_ids
    text = torch.tensor(whole(second))
    found_logits = recorder.table("same", 0, len(text) - 1)
    assert difference(found_logits, oracle().logits(text)) <= TOLERANCE


def rows_without_drafts(item: Any, computed: int) -> dict[str, torch.Tensor]:
    """What the next row can read, in every group of the main model, once so much is computed."""
    with engine(1, 0, prefill_chunk_size=720) as built:
        built.add_request(item)
        while True:
            built.step()
            if int(built.runner.slots.computed[built.runner.slots.slot_of(item.request_id)]) == computed:
                return cache_rows(built, item.request_id)


@DEPTHS
def test_rejected_rows_survive_in_no_group(depth: int) -> None:
    """Windows, entries and compressor states are those of a run without drafts."""
    item = request("r", prompt(120, 4), max_tokens=40)
    with engine(depth, 3) as built:
        guide(built, {"r": whole(item)}, lambda _, position: position % 5 in (1, 2))
        built.add_request(item)
        compared = 0
        while built.has_unfinished_requests():
            built.step()
            wait_for_runner(built)
            slot = built.runner.slots.slot_of("r")
            computed = 0 if slot is None else int(built.runner.slots.computed[slot])
            if computed in (121, 122, 125, 126, 127, 128, 130, 131, 140, 141, 142) and compared < 4:
                compared += 1
                expected = rows_without_drafts(item, computed)
                for name, rows in cache_rows(built, "r").items():
                    assert rows.shape == expected[name].shape
                    assert torch.allclose(rows, expected[name], atol=2e-4, rtol=1e-4), (name, computed)
    assert compared >= 3


SAMPLED = {"temperature": 0.9, "top_k": 9, "top_p": 0.95, "min_p": 0.01, "seed": 11}


@DEPTHS
@pytest.mark.parametrize("drafts", [1, 3])
def test_sampled_text_does_not_depend_on_drafts(depth: int, drafts: int) -> None:
    wanted = [request(f"r{n}", prompt(n, n), max_tokens=40, logprobs=2, **SAMPLED) for n in (3, 40, 130)]
    with engine(depth, drafts, prefill_chunk_size=33) as built:
        found = {k: u.result for k, u in run_all(built, wanted).items()}
    assert sum(result.metrics.num_accepted_tokens for result in found.values()) > 3
    for item in wanted:
        mine, other = found[item.request_id], plain(item)
        assert mine.token_ids == other.token_ids
        assert [entry.token_id for entry in mine.logprobs] == list(mine.token_ids)
        for one, two in zip(mine.logprobs, other.logprobs, strict=True):
            assert one.logprob == pytest.approx(two.logprob, abs=2e-4)


def test_a_model_without_mtp_layers_refuses_drafts() -> None:
    bare = replace(loaded(), mtp=None)
    with pytest.raises(ValueError, match=r"num_speculative_tokens must be 0 for this model .*, got 2"):
        LLM(bare, num_speculative_tokens=2, max_model_len=400, max_num_seqs=2)


SPELLED = {"method": "mtp", "num_speculative_tokens": 2}


def test_llm_takes_vllms_spelling() -> None:
    item = request("r", prompt(30, 1), max_tokens=12, ignore_eos=True)
    knobs = {"max_model_len": 300, "max_num_seqs": 2, "prefill_chunk_size": 7}
    with LLM(loaded(), speculative_config=SPELLED, **knobs) as llm:
        (result,) = llm.generate(item.prompt_token_ids, item.sampling_params, use_tqdm=False)
        assert llm.engine.scheduler.config.num_speculative_tokens == 2
    assert result.token_ids == plain(item).token_ids
    assert result.metrics.num_draft_tokens > 0
    with pytest.raises(ValueError, match="got 1"):
        LLM(loaded(), speculative_config=SPELLED, num_speculative_tokens=1, **knobs)
