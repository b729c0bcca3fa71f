"""Planning a step: slots, notices before rows, replay; whatever is refused leaves every byte as it was."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from hocket import KVCacheConfig, KVGroupSpec, Phase, Request, SamplingParams, Scheduler, SchedulerConfig
from hocket.core.records import BlockIdsByGroup
from hocket.runner.api import NewRequest, RunnerError
from hocket.runner.simulated import SimulatedRunner, content_hashes, next_hash, simulated_tokens

VOCAB = 50
KV = KVCacheConfig(groups=(KVGroupSpec("full", 4, 24), KVGroupSpec("near", 2, 24, window=5)))
CONFIG = SchedulerConfig(
    max_num_seqs=3, max_num_batched_tokens=12, prefill_chunk_size=6, max_model_len=40, async_depth=2
)


class Pair:
    """A scheduler and a runner in lock-step, one action at a time."""

    def __init__(self, config=CONFIG, kv=KV, **knobs):
        self.scheduler = Scheduler(config, kv)
        self.runner = SimulatedRunner(
            kv,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            vocab_size=VOCAB,
            **knobs,
        )
        self.unsent, self.flying, self.tokens = {}, [], {}

    def add(self, name, prompt, max_tokens=6):
        request = Request(name, tuple(prompt), SamplingParams(max_tokens=max_tokens))
        self.scheduler.add_request(request)
        self.unsent[name] = NewRequest(request, 0)
        self.tokens[name] = []

    def plan(self):
        output = self.scheduler.schedule()
        return output, [self.unsent.pop(r) for r in output.request_ids if r in self.unsent]

    def dispatch(self):
        output, new = self.plan()
        result = self.runner.execute(output, new)
        if result is not None:
            self.flying.append((output, result))
        return output

    def complete(self):
        for news in self.scheduler.update_from_output(*self.flying.pop(0)):
            self.tokens[news.request_id] += news.new_token_ids

    def run(self):
        while self.scheduler.has_unfinished_requests() or self.flying:
            output = self.dispatch()
            if self.flying and (output.is_empty or len(self.flying) == 2):
                self.complete()
        self.dispatch()

    def bytes(self):
        return state_bytes(self.runner)


def state_bytes(runner) -> bytes:
    """All of a simulated runner: slots, records and memory."""
    slots = runner.slots
    records = {name: list(record.tokens) for name, record in slots.records.items()}
    arrays = [
        slots.epochs,
        slots.computed,
        *slots.tables.values(),
        *slots.columns.values(),
        *runner.memory.values(),
    ]
    return pickle.dumps((records, slots._slot_of, slots._free, [array.tobytes() for array in arrays]))


def test_tokens_are_a_function_of_content_whatever_the_schedule():
    pair = Pair()
    prompts = {f"r{i}": range(i, i + 3 + 4 * i) for i in range(5)}
    for name, prompt in prompts.items():
        pair.add(name, prompt, 7)
    pair.run()
    for name, prompt in prompts.items():
        assert pair.tokens[name] == simulated_tokens(list(prompt), 7, VOCAB)
    assert pair.runner.slots.num_free == 3
    assert pair.runner.slots.records == {}


def test_content_hashes_depend_on_every_token_and_on_order():
    base = content_hashes([1, 2, 3])
    assert base[1] != content_hashes([2, 1])[1]
    assert base[2] != content_hashes([1, 3, 2])[2]
    assert base[2] != content_hashes([9, 2, 3])[2]
    assert base[:2].tolist() == content_hashes([1, 2]).tolist()
    assert content_hashes([2, 3], 1, int(base[0])).tolist() == base[1:].tolist()
    assert next_hash(3, 2, int(base[1])) == base[2]


def test_notices_come_before_rows():
    """With three seats taken, the output that admits the fourth request also says who has left."""
    pair = Pair()
    for i in range(3):
        pair.add(f"r{i}", range(4), max_tokens=2 + 10 * (i > 0))
    pair.add("late", range(9), 2)
    seen = False
    while not seen:
        output = pair.dispatch()
        seen = "late" in output.request_ids
        if seen:
            assert output.finished_request_ids == ("r0",)
            assert pair.runner.slots.num_free == 0
            assert pair.runner.slots.slot_of("late") == 0
        if pair.flying and (output.is_empty or len(pair.flying) == 2):
            pair.complete()


def test_an_id_used_again_is_a_new_request_in_the_very_output_that_ends_the_old_one():
    pair = Pair()
    pair.add("a", range(5), 8)
    pair.dispatch()
    pair.complete()
    old_slot_epoch = pair.runner.slots.epochs[pair.runner.slots.slot_of("a")]
    pair.scheduler.abort_request("a")
    pair.add("a", range(20, 27), 3)
    output = pair.dispatch()
    assert output.finished_request_ids == ("a",)
    assert "a" in output.request_ids
    assert pair.runner.slots.epochs[pair.runner.slots.slot_of("a")] != old_slot_epoch
    pair.run()
    assert pair.tokens["a"] == simulated_tokens(range(20, 27), 3, VOCAB)


def test_replay_cuts_off_tokens_whose_result_was_dropped():
    """Preempted with a decode row in flight: the runner has sampled a token that nobody was told of."""
    pair = Pair()
    pair.add("a", range(8), 6)
    while len(pair.tokens["a"]) < 2:
        pair.dispatch()
        if len(pair.flying) == 2 or pair.flying:
            pair.complete()
    pair.dispatch()
    known = len(pair.runner.slots.records["a"].tokens)
    pair.scheduler.preempt_request("a")
    assert known == 8 + 3
    pair.complete()
    assert len(pair.tokens["a"]) == 2
    output = pair.dispatch()
    assert output.preempted_request_ids == ("a",)
    assert output.resumed_request_ids == ("a",)
    assert output.num_computed_tokens == (0,)
    pair.complete()
    output = pair.dispatch()
    assert output.samples == (True,)
    assert len(pair.runner.slots.records["a"].tokens) == 8 + 3
    pair.run()
    assert pair.tokens["a"] == simulated_tokens(range(8), 6, VOCAB)


def test_tables_are_the_schedulers_and_null_what_the_window_has_left():
    pair = Pair()
    pair.add("a", range(17), 8)
    for _ in range(8):
        output = pair.dispatch()
        if output.is_empty:
            pair.complete()
            continue
        slot = pair.runner.slots.slot_of("a")
        for group in KV.groups:
            mine = pair.runner.slots.tables[group.name][slot]
            theirs = np.zeros_like(mine)
            table = pair.scheduler.block_table("a", group.name)
            theirs[: len(table)] = table
            left = 0
            if group.window is not None:
                left = max(0, output.num_computed_tokens[0] - group.window) // group.block_size
            assert mine[left:].tolist() == theirs[left:].tolist()
            assert mine[:left].tolist() == [0] * left
        pair.complete()


def test_a_slot_used_again_holds_nothing_of_its_last_owner():
    pair = Pair()
    pair.add("long", range(20), 8)
    pair.run()
    pair.add("short", range(3), 2)
    pair.dispatch()
    slots = pair.runner.slots
    assert slots.slot_of("short") == 0
    for group in KV.groups:
        used = int(slots.columns[group.name][0])
        assert used == -(-3 // group.block_size)
        assert not slots.tables[group.name][0, used:].any()


def first(output, field, value):
    """The output with another value in the first row of a field."""
    values = getattr(output, field)
    return replace(output, **{field: (value(values[0]) if callable(value) else value, *values[1:])})


def stale(output):
    return first(output, "epochs", lambda epoch: epoch + 1000)


def start(change):
    return lambda output: first(output, "num_computed_tokens", change)


def length(value):
    return lambda output: first(output, "num_scheduled_tokens", value)


def other_lookahead(output):
    return replace(
        output, lookahead_token_ids=tuple(None if t is None else t + 1 for t in output.lookahead_token_ids)
    )


def no_lookahead(output):
    return replace(output, lookahead_token_ids=(None,) * len(output.lookahead_token_ids))


def with_blocks(output, change):
    rows = []
    for row in output.new_block_ids:
        ids = {name: change(name, list(row[name])) for name in row}
        rows.append(BlockIdsByGroup(tuple(ids), tuple(map(tuple, ids.values()))))
    return replace(output, new_block_ids=tuple(rows))


def twice(o):
    """The first row once more."""
    names = (
        "request_ids",
        "epochs",
        "num_computed_tokens",
        "num_scheduled_tokens",
        "samples",
        "lookahead_token_ids",
        "new_block_ids",
    )
    return replace(o, **{name: getattr(o, name) + getattr(o, name)[:1] for name in names})


PREFILL_FAULTS = {
    "start": (ValueError, start(lambda n: n + 1)),
    "start negative": (ValueError, start(-1)),
    "length too long": (ValueError, length(99)),
    "length 0": (ValueError, length(0)),
    "length bool": (ValueError, length(True)),
    "length float": (ValueError, length(6.0)),
    "twice the same request": ((ValueError, RunnerError), twice),
    # It is forgotten before the rows, so the runner was never told of it.
    "just finished": (RunnerError, lambda o: replace(o, finished_request_ids=o.request_ids[:1])),
    "blocks missing": (ValueError, lambda o: with_blocks(o, lambda name, ids: ids[1:])),
    "block out of range": (RunnerError, lambda o: with_blocks(o, lambda name, ids: [*ids[:-1], 25])),
    "negative block": (RunnerError, lambda o: with_blocks(o, lambda name, ids: [-1, *ids[1:]])),
    "null block": (RunnerError, lambda o: with_blocks(o, lambda name, ids: [0, *ids[1:]])),
    "too many blocks": (ValueError, lambda o: with_blocks(o, lambda name, ids: [*ids, 1])),
    "table longer than the model": (RunnerError, lambda o: with_blocks(o, lambda name, ids: ids + [1] * 99)),
    "unknown request": (RunnerError, lambda o: first(o, "request_ids", "nobody")),
    "lookahead": (RunnerError, other_lookahead),
    "lookahead unsaid": (RunnerError, no_lookahead),
}  # fmt: skip

DECODE_FAULTS = {
    "twice the same request": (RunnerError, twice),
    "stale epoch": (RunnerError, stale),
    "start": (RunnerError, start(lambda n: n - 1)),
    "unknown request": (RunnerError, lambda o: first(o, "request_ids", "nobody")),
    "no blocks": (RunnerError, length(30)),
    "just preempted": (RunnerError, lambda o: replace(o, preempted_request_ids=o.request_ids[:1])),
    "just finished": (RunnerError, lambda o: replace(o, finished_request_ids=o.request_ids[:1])),
}  # fmt: skip


def prefill_in_the_middle():
    """The output of a second chunk beside a first one, with a finished notice on it."""
    pair = Pair()
    pair.add("gone", range(3), 4)
    pair.dispatch()
    pair.complete()
    pair.scheduler.abort_request("gone")
    pair.add("a", range(20), 4)
    pair.add("b", range(5), 4)
    pair.dispatch()
    pair.complete()
    pair.scheduler.preempt_request("b")
    output, new = pair.plan()
    while output.phase != Phase.PREFILL:
        pair.flying.append((output, pair.runner.execute(output, new)))
        pair.complete()
        output, new = pair.plan()
    return pair, output, new


def decode_of_two():
    pair = Pair()
    pair.add("a", range(4), 6)
    pair.add("b", range(5), 6)
    pair.dispatch()
    pair.complete()
    output, new = pair.plan()
    assert output.phase == Phase.DECODE
    assert len(output.request_ids) == 2
    return pair, output, new


@pytest.mark.parametrize("fault", PREFILL_FAULTS)
def test_a_refused_prefill_changes_no_byte(fault):
    kind, spoil = PREFILL_FAULTS[fault]
    pair, output, new = prefill_in_the_middle()
    before = pair.bytes()
    spoilt = spoil(output)
    assert repr(spoilt) != repr(output)
    with pytest.raises(kind):
        pair.runner.execute(spoilt, new)
    assert pair.bytes() == before
    pair.flying.append((output, pair.runner.execute(output, new)))
    assert pair.bytes() != before
    pair.run()
    assert pair.tokens["a"] == simulated_tokens(range(20), 4, VOCAB)


@pytest.mark.parametrize("fault", DECODE_FAULTS)
def test_a_refused_decode_changes_no_byte(fault):
    kind, spoil = DECODE_FAULTS[fault]
    pair, output, new = decode_of_two()
    before = pair.bytes()
    with pytest.raises(kind):
        pair.runner.execute(spoil(output), new)
    assert pair.bytes() == before
    pair.flying.append((output, pair.runner.execute(output, new)))
    pair.run()
    assert pair.tokens["b"] == simulated_tokens(range(5), 6, VOCAB)


def new_request(name):
    return NewRequest(Request(name, (1, 2, 3), SamplingParams()), 0)


ARRIVAL_FAULTS = {
    "without a row": (lambda new: [*new, new_request("elsewhere")], "'elsewhere' has no row"),
    "of a name that lives": (lambda new: [*new, new_request("a")], "'a' names one that lives"),
    "twice": (lambda new: [*new, *new], "'b' comes twice"),
}


@pytest.mark.parametrize("fault", ARRIVAL_FAULTS)
def test_a_refused_arrival_changes_no_byte(fault):
    spoil, message = ARRIVAL_FAULTS[fault]
    pair = Pair()
    pair.add("a", range(20), 4)
    pair.dispatch()
    pair.complete()
    pair.add("b", range(5), 4)
    output, new = pair.plan()
    assert set(output.request_ids) == {"a", "b"}
    before = pair.bytes()
    with pytest.raises(RunnerError, match=message):
        pair.runner.execute(output, spoil(new))
    assert pair.bytes() == before
    pair.flying.append((output, pair.runner.execute(output, new)))
    pair.run()
    assert pair.tokens["a"] == simulated_tokens(range(20), 4, VOCAB)


def test_an_arrival_with_an_output_of_notices_only_is_refused():
    pair = Pair()
    pair.add("a", range(4), 4)
    pair.dispatch()
    pair.complete()
    pair.scheduler.abort_request("a")
    output, _ = pair.plan()
    assert output.is_empty
    assert output.has_notices
    with pytest.raises(RunnerError, match="'b' has no row"):
        pair.runner.execute(output, [new_request("b")])


def test_no_slot_left_is_refused_before_anything_changes():
    pair = Pair(replace(CONFIG, max_num_seqs=2))
    pair.runner.slots.occupy("squatter", 77, 0)
    pair.add("a", range(4))
    pair.add("b", range(4))
    output, new = pair.plan()
    before = pair.bytes()
    with pytest.raises(RunnerError, match="slot"):
        pair.runner.execute(output, new)
    assert pair.bytes() == before


def test_refusals_say_request_and_field():
    pair, output, new = prefill_in_the_middle()
    with pytest.raises(ValueError, match=r"packed prefill: request 0 \('a'\): chunk_start 7 != computed 6"):
        pair.runner.execute(PREFILL_FAULTS["start"][1](output), new)


@pytest.mark.parametrize("group", ["full", "near"])
def test_the_simulated_cache_finds_a_row_that_another_wrote(group):
    pair, output, new = decode_of_two()
    slot = pair.runner.slots.slot_of("a")
    block = pair.runner.slots.tables[group][slot][0]
    pair.runner.memory[group][block, 1] += np.uint64(1)
    with pytest.raises(RunnerError, match=f"group '{group}' holds another row at 1"):
        pair.runner.execute(output, new)


@pytest.mark.parametrize("check_cache", [False, True])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_drafts_change_the_number_of_steps_and_nothing_else(acceptance, check_cache):
    pair = Pair(replace(CONFIG, num_speculative_tokens=2), acceptance=acceptance, check_cache=check_cache)
    pair.add("a", range(9), 12)
    pair.add("b", range(3), 11)
    lengths = []
    while pair.scheduler.has_unfinished_requests() or pair.flying:
        output = pair.dispatch()
        if pair.flying and (output.is_empty or len(pair.flying) == 2):
            if pair.flying[0][0].phase == Phase.DECODE:
                lengths += map(len, pair.flying[0][1].sampled_token_ids)
            pair.complete()
    assert pair.tokens["a"] == simulated_tokens(range(9), 12, VOCAB)
    assert pair.tokens["b"] == simulated_tokens(range(3), 11, VOCAB)
    assert set(lengths) <= {1, 2, 3}
    assert (max(lengths) == 1) == (acceptance == 0)


def test_step_costs_add_up():
    from hocket.runner.simulated import StepCost

    slept = []
    pair = Pair(cost=StepCost(1.0, 0.5, 0.25, 0.125), sleep=slept.append)
    pair.add("a", range(6), 3)
    pair.run()
    assert slept == [1.0 + 6 * 0.5, 0.25 + 0.125, 0.25 + 0.125]
    assert pair.runner.busy_s == sum(slept)
