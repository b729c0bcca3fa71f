"""Every public entry point against bad input: the documented error, naming field, value and allowed range,
and no change.

"No change" is checked twice: all introspection reads the same as before, and the scheduler goes on exactly
like a copy that never saw the bad call.
"""

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hocket import (
    KVCacheConfig,
    KVGroupSpec,
    ModelRunnerOutput,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerError,
    SchedulerOutput,
)
from hocket.core.errors import QueueFullError, StepOrderError, UnknownRequestError

HUGE = 2**70
NO_INTS: list[Any] = [
    True,
    False,
    1.0,
    1.5,
    float("nan"),
    float("inf"),
    "1",
    b"1",
    [1],
    {},
    object(),
    np.float64(1),
]
NO_PLAIN_INTS: list[Any] = [*NO_INTS, np.int64(1), np.True_]
"""Where a NumPy integer is refused too."""
NO_NUMBERS: list[Any] = [True, "0.5", [0.5], float("nan"), float("inf"), float("-inf"), np.float32(0.5)]
NO_STRINGS: list[Any] = ["", b"a", 1, 1.0, True, None, ["a"], np.int64(1)]


def ids(value: Any) -> str:
    return f"{type(value).__name__}-{value!r}"[:30] if type(value) is not object else "object"


def refused(error: type[Exception], action: Callable[[], object], *parts: str) -> None:
    """`action` raises `error`, and the message holds every part, not as the end of a longer word."""
    with pytest.raises(error) as caught:
        action()
    for part in parts:
        begin = r"(?<![A-Za-z0-9_])" if part[:1].isalnum() else ""
        assert re.search(begin + re.escape(part), str(caught.value)), str(caught.value)


def making(kind: Callable[..., object], *args: Any, **fields: Any) -> Callable[[], object]:
    """`kind(*args, **fields)`, to be called later; untyped: the arguments are of wrong types on purpose."""
    return lambda: kind(*args, **fields)


# --- configuration ---

INT_FIELDS = {
    # field: (smallest value, is None allowed)
    "max_num_seqs": (1, False),
    "max_num_batched_tokens": (1, False),
    "prefill_chunk_size": (1, False),
    "max_model_len": (2, False),
    "async_depth": (1, False),
    "num_speculative_tokens": (0, False),
    "prefill_steps_per_turn": (1, False),
    "decode_steps_per_turn": (1, False),
    "chunk_alignment": (1, False),
    "max_num_queued_reqs": (1, True),
}


@pytest.mark.parametrize("value", NO_PLAIN_INTS, ids=ids)
@pytest.mark.parametrize("field", INT_FIELDS)
def test_scheduler_config_refuses_what_is_not_an_int(field: str, value: Any) -> None:
    refused(ValueError, making(SchedulerConfig, **{field: value}), field, repr(value), "an int")


@pytest.mark.parametrize("field", INT_FIELDS)
def test_scheduler_config_refuses_ints_below_the_range(field: str) -> None:
    low, optional = INT_FIELDS[field]
    for value in (low - 1, -1, -HUGE):
        refused(ValueError, making(SchedulerConfig, **{field: value}), field, str(value), str(low))
    if optional:
        making(SchedulerConfig, **{field: None})()
    else:
        refused(ValueError, making(SchedulerConfig, **{field: None}), field, "None")


@pytest.mark.parametrize("value", [0, 1, None, "yes", 1.0, np.True_], ids=ids)
@pytest.mark.parametrize("field", ["reserve_full_prompt", "enable_prefix_caching"])
def test_scheduler_config_refuses_what_is_not_a_bool(field: str, value: Any) -> None:
    refused(ValueError, making(SchedulerConfig, **{field: value}), field, repr(value), "True or False")


@pytest.mark.parametrize("value", [*NO_NUMBERS, -0.1, 1.1, -1, 2, HUGE, None], ids=ids)
def test_scheduler_config_refuses_a_bad_watermark(value: Any) -> None:
    refused(ValueError, making(SchedulerConfig, watermark=value), "watermark", repr(value), "[0.0, 1.0]")


def test_scheduler_config_refuses_what_does_not_fit_together() -> None:
    refused(
        ValueError,
        making(SchedulerConfig, num_speculative_tokens=4, max_num_batched_tokens=4),
        "max_num_batched_tokens",
        "5",
        "got 4",
    )
    for fields in ({"prefill_chunk_size": 8}, {"max_num_batched_tokens": 8}):
        refused(
            ValueError,
            making(SchedulerConfig, chunk_alignment=9, **fields),
            "chunk_alignment",
            "8",
            "9",
        )
    SchedulerConfig(chunk_alignment=8, prefill_chunk_size=8)


def test_prefix_caching_is_refused_until_it_exists() -> None:
    refused(
        ValueError,
        making(SchedulerConfig, enable_prefix_caching=True),
        "enable_prefix_caching",
        "False",
        "True",
    )


def test_configuration_is_frozen() -> None:
    with pytest.raises(AttributeError):
        SchedulerConfig().max_num_seqs = 0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        KVGroupSpec("A", 4, num_blocks=4).block_size = 0  # type: ignore[misc]


@pytest.mark.parametrize("value", [*NO_PLAIN_INTS, 0, -1, -HUGE], ids=ids)
@pytest.mark.parametrize("field", ["block_size", "num_blocks", "window"])
def test_a_group_refuses_bad_numbers(field: str, value: Any) -> None:
    fields = {"block_size": 4, "num_blocks": 8, "window": 16} | {field: value}
    refused(ValueError, making(KVGroupSpec, "A", **fields), f"KVGroupSpec('A').{field}", repr(value), ">= 1")


@pytest.mark.parametrize("value", NO_STRINGS, ids=ids)
def test_a_group_refuses_bad_names(value: Any) -> None:
    refused(ValueError, making(KVGroupSpec, value, 4, num_blocks=8), "KVGroupSpec.name", repr(value))
    if value is not None:
        refused(ValueError, making(KVGroupSpec, "A", 4, pool=value), "KVGroupSpec('A').pool", repr(value))


def test_a_group_has_exactly_one_pool() -> None:
    refused(ValueError, making(KVGroupSpec, "A", 4), "num_blocks=None", "pool=None")
    refused(ValueError, making(KVGroupSpec, "A", 4, num_blocks=8, pool="main"), "num_blocks=8", "pool='main'")


OWN, SHARED = KVGroupSpec("A", 4, num_blocks=8), KVGroupSpec("B", 4, pool="main")


@pytest.mark.parametrize("groups", [(), [], None, OWN, "A", 3, (OWN, None), ("A",), {OWN}], ids=str)
def test_a_cache_refuses_bad_groups(groups: Any) -> None:
    refused(ValueError, making(KVCacheConfig, groups=groups), "KVCacheConfig.groups", repr(groups))


@pytest.mark.parametrize("blocks", [*NO_PLAIN_INTS, 0, -1, None], ids=ids)
def test_a_cache_refuses_bad_pools(blocks: Any) -> None:
    refused(
        ValueError,
        making(KVCacheConfig, groups=(SHARED,), pools={"main": blocks}),
        "KVCacheConfig.pools['main']",
        repr(blocks),
    )


def test_a_cache_refuses_pools_and_groups_that_do_not_match() -> None:
    refused(
        ValueError,
        making(KVCacheConfig, groups=(OWN, OWN)),
        "KVCacheConfig.groups names must be unique",
        "'A'",
    )
    refused(ValueError, making(KVCacheConfig, groups=(SHARED,)), "'main'", "pool")
    refused(ValueError, making(KVCacheConfig, groups=(OWN,), pools={"main": 4}), "'main'", "no group")
    refused(
        ValueError,
        making(KVCacheConfig, groups=(OWN, SHARED), pools={"main": 4, "A": 4}),
        "KVCacheConfig.pools must not be named like a group with a pool of its own",
        "'A'",
    )
    named_alike = KVGroupSpec("main", 4, pool="main")
    assert KVCacheConfig(groups=(named_alike,), pools={"main": 1}).pool_blocks == {"main": 1}
    for pools in (None, 4, [("main", 4)], "main"):
        refused(ValueError, making(KVCacheConfig, groups=(SHARED,), pools=pools), "pools", repr(pools))
    refused(ValueError, making(KVCacheConfig, groups=(OWN,), pools={1: 4}), "KVCacheConfig.pools key", "1")


# --- requests ---

SAMPLING_INTS = {"max_tokens": 1, "min_tokens": 0, "top_k": 0}


@pytest.mark.parametrize("value", [*NO_PLAIN_INTS, -1, -HUGE, None], ids=ids)
@pytest.mark.parametrize("field", SAMPLING_INTS)
def test_sampling_refuses_bad_ints(field: str, value: Any) -> None:
    refused(
        ValueError, making(SamplingParams, **{field: value}), field, repr(value), str(SAMPLING_INTS[field])
    )


@pytest.mark.parametrize("value", [*NO_PLAIN_INTS, -1, -HUGE], ids=ids)
@pytest.mark.parametrize("field", ["seed", "logprobs", "num_speculative_tokens"])
def test_sampling_refuses_bad_optional_ints(field: str, value: Any) -> None:
    refused(ValueError, making(SamplingParams, **{field: value}), field, repr(value))


def test_sampling_refuses_ints_out_of_range() -> None:
    refused(ValueError, making(SamplingParams, max_tokens=0), "max_tokens", ">= 1", "0")
    refused(ValueError, making(SamplingParams, max_tokens=4, min_tokens=5), "min_tokens", "[0, 4]", "5")
    refused(ValueError, making(SamplingParams, seed=2**64), "seed", str(2**64))


@pytest.mark.parametrize("value", [*NO_NUMBERS, -0.01, -1, None], ids=ids)
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
def test_sampling_refuses_bad_numbers(field: str, value: Any) -> None:
    refused(ValueError, making(SamplingParams, **{field: value}), field, repr(value))


@pytest.mark.parametrize(("field", "value"), [("top_p", 0), ("top_p", 0.0), ("top_p", 1.01), ("min_p", 1.5)])
def test_sampling_refuses_numbers_out_of_range(field: str, value: float) -> None:
    refused(ValueError, making(SamplingParams, **{field: value}), field, repr(value), "1.0]")


def test_numbers_too_large_to_print_or_to_compute_with_are_refused_by_name() -> None:
    endless = 10**5000
    refused(ValueError, making(SamplingParams, temperature=endless), "temperature", "beyond 256 bits")
    refused(ValueError, making(SamplingParams, temperature=10**400), "temperature", "[0.0, 1.79")
    refused(ValueError, making(SamplingParams, seed=endless), "seed", "beyond 256 bits")
    refused(ValueError, making(Request, "r", (endless,)), "prompt_token_ids[0]", "beyond 256 bits")


def test_a_number_of_up_to_256_bits_is_told_in_full() -> None:
    refused(ValueError, making(SamplingParams, seed=2**256 - 1), f"got {2**256 - 1}")
    refused(ValueError, making(SamplingParams, seed=2**256), "got an int beyond 256 bits")


@pytest.mark.parametrize("value", [{1, 2}, {1: 2}, frozenset({1})], ids=ids)
def test_a_prompt_without_an_order_is_refused(value: Any) -> None:
    refused(ValueError, making(Request, "r", value), "'r'", "prompt_token_ids must be a sequence")


@pytest.mark.parametrize("value", ["text", b"text", None, 3, [""], [1], [None], [b"a"]], ids=ids)
def test_sampling_refuses_bad_stop_strings(value: Any) -> None:
    refused(ValueError, making(SamplingParams, stop=value), "stop")


BAD_TOKENS: list[Any] = [
    None,
    3,
    "12",
    b"12",
    True,
    [True],
    [1.0],
    [np.float64(1)],
    [np.True_],
    ["1"],
    [None],
]
BAD_TOKENS += [[[1]], [-1], [2**31], [HUGE], [1, 2, -1], [float("nan")]]


@pytest.mark.parametrize("value", BAD_TOKENS, ids=ids)
def test_token_lists_refuse_what_is_no_token(value: Any) -> None:
    refused(ValueError, making(SamplingParams, stop_token_ids=value), "stop_token_ids")
    refused(ValueError, making(Request, "r", value), "'r'", "prompt_token_ids")


def test_request_refuses_an_array_without_dimensions() -> None:
    """It has `__iter__`, which raises a TypeError."""
    refused(ValueError, making(Request, "r", np.array(3)), "'r'", "prompt_token_ids must be a sequence")


def test_token_lists_name_the_bad_position() -> None:
    refused(
        ValueError, making(Request, "r", (1, 2, 2**31)), "prompt_token_ids[2]", str(2**31), str(2**31 - 1)
    )


@pytest.mark.parametrize("value", [0, 1, None, "no", np.False_], ids=ids)
def test_sampling_refuses_a_flag_that_is_no_bool(value: Any) -> None:
    refused(ValueError, making(SamplingParams, ignore_eos=value), "ignore_eos", repr(value))


@pytest.mark.parametrize("value", NO_STRINGS, ids=ids)
def test_a_request_refuses_bad_ids(value: Any) -> None:
    refused(ValueError, making(Request, value, (1,)), "request_id", repr(value))


@pytest.mark.parametrize("value", [[], (), np.array([], dtype=np.int64)], ids=ids)
def test_a_request_refuses_an_empty_prompt(value: Any) -> None:
    refused(ValueError, making(Request, "r", value), "'r'", "prompt_token_ids", "at least 1", "0")


@pytest.mark.parametrize("value", [*NO_PLAIN_INTS, None, 2**63, -(2**63) - 1], ids=ids)
def test_a_request_refuses_bad_priorities(value: Any) -> None:
    refused(ValueError, making(Request, "r", (1,), priority=value), "'r'", "priority", repr(value))


@pytest.mark.parametrize("value", [*NO_PLAIN_INTS, -1], ids=ids)
def test_a_request_refuses_bad_eos_ids(value: Any) -> None:
    refused(ValueError, making(Request, "r", (1,), eos_token_id=value), "'r'", "eos_token_id", repr(value))


@pytest.mark.parametrize("value", [None, 3, {}, "greedy", SamplingParams], ids=ids)
def test_a_request_refuses_bad_sampling_params(value: Any) -> None:
    refused(ValueError, making(Request, "r", (1,), value), "'r'", "sampling_params", "SamplingParams")


def test_numpy_tokens_are_taken_and_become_plain_ints() -> None:
    prompt: Any = np.array([1, 2], dtype=np.int32)
    request = Request("r", prompt)
    assert request.prompt_token_ids == (1, 2)
    assert {type(token) for token in request.prompt_token_ids} == {int}


# --- the scheduler ---

CONFIG = SchedulerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=16,
    prefill_chunk_size=8,
    async_depth=2,
    num_speculative_tokens=2,
    max_model_len=64,
    max_num_queued_reqs=4,
)
CACHE = KVCacheConfig(
    groups=(KVGroupSpec("A", 4, num_blocks=14), KVGroupSpec("W", 4, pool="main", window=8)),
    pools={"main": 14},
)
NAMES = ("done", "gone", "decoding", "chunking", "preempted", "waiting")


def result_of(output: SchedulerOutput, **changes: Any) -> ModelRunnerOutput:
    """A valid result, with its fields changed."""
    rows = tuple((7,) if samples else () for samples in output.samples)
    fields = {"step_id": output.step_id, "sampled_token_ids": rows} | changes
    return ModelRunnerOutput(**fields)


def busy_scheduler() -> tuple[Scheduler, list[SchedulerOutput]]:
    """One request in every state, two dispatches in flight, notices not given yet."""
    scheduler = Scheduler(CONFIG, CACHE)
    scheduler.add_request(Request("done", (1, 2), SamplingParams(max_tokens=1)))
    scheduler.add_request(Request("decoding", (1, 2, 3), SamplingParams(max_tokens=12)))
    scheduler.add_request(Request("preempted", (4, 5, 6, 7), SamplingParams(max_tokens=8)))
    first = scheduler.schedule()
    scheduler.update_from_output(first, result_of(first))
    scheduler.add_request(Request("chunking", tuple(range(20)), SamplingParams(max_tokens=4)))
    scheduler.add_request(Request("waiting", tuple(range(9)), SamplingParams(max_tokens=4)))
    scheduler.add_request(Request("gone", (1,), SamplingParams(max_tokens=4)))
    flight = [scheduler.schedule(), scheduler.schedule()]
    assert all(output.step_id is not None for output in flight)
    scheduler.preempt_request("preempted")
    scheduler.abort_request("gone")
    states = {name: scheduler.request_state(name) for name in NAMES}
    assert [name for name in NAMES if states[name] is None] == ["done", "gone"]
    assert {name: state.status for name, state in states.items() if state} == {
        "decoding": "running",
        "chunking": "running",
        "preempted": "preempted",
        "waiting": "waiting",
    }
    assert scheduler.num_in_flight == 2
    return scheduler, flight


def snapshot(scheduler: Scheduler) -> Any:
    """All introspection there is."""
    requests: dict[str, Any] = {}
    for name in NAMES:
        state = scheduler.request_state(name)
        if state is not None:
            tables = {g: scheduler.block_table(name, g) for g in ("A", "W")}
            requests[name] = (*state[:5], dict(state.block_ids), tables, scheduler.token_ids(name))
    pools = {g: (scheduler.free_blocks(g), scheduler.fenced_blocks(g)) for g in ("A", "W")}
    counts = (scheduler.num_waiting, scheduler.num_running, scheduler.num_in_flight)
    return requests, pools, counts, scheduler.has_unfinished_requests(), scheduler.config


def continuation(scheduler: Scheduler, flight: list[SchedulerOutput]) -> list[str]:
    """Everything that the scheduler says until its end."""
    said: list[str] = []
    flight = list(flight)
    for _ in range(200):
        output = scheduler.schedule()
        said.append(repr(output))
        if output.step_id is not None:
            flight.append(output)
        elif flight:
            done = flight.pop(0)
            said.append(repr(scheduler.update_from_output(done, result_of(done))))
        elif not scheduler.has_unfinished_requests():
            return said
    raise AssertionError("no end")


def assert_unchanged(
    error: type[Exception], action: Callable[[Scheduler, list[SchedulerOutput]], object], *parts: str
) -> None:
    """The bad call raises and leaves everything as it was, seen from outside and in all that follows."""
    scheduler, flight = busy_scheduler()
    twin, twin_flight = pickle.loads(pickle.dumps((scheduler, flight)))
    before = snapshot(scheduler)
    refused(error, lambda: action(scheduler, flight), *parts)
    assert snapshot(scheduler) == before
    assert continuation(scheduler, flight) == continuation(twin, twin_flight)


@pytest.mark.parametrize("value", [None, 3, "config", CACHE, SchedulerConfig, {}], ids=ids)
def test_a_scheduler_refuses_bad_configurations(value: Any) -> None:
    refused(ValueError, making(Scheduler, value, CACHE), "config", "SchedulerConfig")
    if value is not CACHE:
        refused(ValueError, making(Scheduler, CONFIG, value), "kv_cache_config", "KVCacheConfig")


@pytest.mark.parametrize("value", [None, 3, "r", {"request_id": "r"}, Request, ("r", (1,))], ids=ids)
def test_add_request_refuses_what_is_no_request(value: Any) -> None:
    assert_unchanged(ValueError, lambda s, _: s.add_request(value), "request", "Request")


@pytest.mark.parametrize("name", ["decoding", "chunking", "preempted", "waiting"])
def test_add_request_refuses_a_duplicate(name: str) -> None:
    assert_unchanged(ValueError, lambda s, _: s.add_request(Request(name, (1,))), "request_id", repr(name))


def test_add_request_takes_the_id_of_an_ended_request() -> None:
    scheduler, _ = busy_scheduler()
    for name in ("done", "gone"):
        scheduler.add_request(Request(name, (1,)))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "parts"),
    [
        (64, 1, ("prompt_token_ids", "max_model_len", "63", "64")),
        (1000, 1, ("prompt_token_ids", "63", "1000")),
        (57, 1, ("pool 'A'", "15", "14")),
        (40, 18, ("pool 'A'", "15", "14")),
        (2, HUGE, ("pool 'A'", "16", "14")),  # cut to max_model_len
    ],
)
def test_add_request_refuses_what_can_never_fit(prompt: int, max_tokens: int, parts: tuple[str, ...]) -> None:
    request = Request("big", tuple(range(prompt)), SamplingParams(max_tokens=max_tokens))
    assert_unchanged(ValueError, lambda s, _: s.add_request(request), "'big'", *parts)


def test_add_request_refuses_when_the_queue_is_full() -> None:
    def overfill(scheduler: Scheduler, _: object) -> None:
        scheduler.add_request(Request("more", (1,)))

    config = {f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__} | {"max_num_queued_reqs": 1}
    scheduler = Scheduler(SchedulerConfig(**config), CACHE)
    scheduler.add_request(Request("first", (1,)))
    refused(QueueFullError, lambda: overfill(scheduler, None), "max_num_queued_reqs", "1", "'more'")
    assert issubclass(QueueFullError, SchedulerError)
    assert scheduler.num_waiting == 1
    scheduler.schedule()
    overfill(scheduler, None)


@pytest.mark.parametrize("name", ["nobody", "done", "gone"])
@pytest.mark.parametrize("call", ["preempt_request", "token_ids"])
def test_unknown_ids_are_a_protocol_error(call: str, name: str) -> None:
    assert_unchanged(UnknownRequestError, lambda s, _: getattr(s, call)(name), "request_id", repr(name))
    assert issubclass(UnknownRequestError, SchedulerError)


@pytest.mark.parametrize("value", NO_STRINGS, ids=ids)
@pytest.mark.parametrize("call", ["preempt_request", "abort_request", "token_ids", "request_state"])
def test_ids_must_be_strings(call: str, value: Any) -> None:
    assert_unchanged(ValueError, lambda s, _: getattr(s, call)(value), "request_id", repr(value))


def test_preempting_a_waiting_request_does_nothing() -> None:
    scheduler, flight = busy_scheduler()
    twin, twin_flight = pickle.loads(pickle.dumps((scheduler, flight)))
    for name in ("waiting", "preempted"):
        before = snapshot(scheduler)
        scheduler.preempt_request(name)
        assert snapshot(scheduler) == before
    assert continuation(scheduler, flight) == continuation(twin, twin_flight)


@pytest.mark.parametrize("name", ["nobody", "done", "gone"])
def test_aborting_and_asking_for_an_unknown_request_gives_none(name: str) -> None:
    scheduler, _ = busy_scheduler()
    before = snapshot(scheduler)
    assert scheduler.abort_request(name) is None
    assert scheduler.request_state(name) is None
    assert snapshot(scheduler) == before


@pytest.mark.parametrize("reason", ["", "length", "ABORT", None, 3, True, ["abort"]], ids=ids)
@pytest.mark.parametrize("name", ["decoding", "nobody"])
def test_abort_refuses_unknown_reasons(name: str, reason: Any) -> None:
    assert_unchanged(
        ValueError,
        lambda s, _: s.abort_request(name, reason),
        "reason",
        repr(reason),
        "'abort', 'stop', 'error'",
    )


@pytest.mark.parametrize("value", ["B", "", "main", None, 0, True, b"A"], ids=ids)
@pytest.mark.parametrize("call", ["free_blocks", "fenced_blocks", "block_table"])
def test_groups_must_be_known(call: str, value: Any) -> None:
    def ask(scheduler: Scheduler, _: object) -> object:
        if call == "block_table":
            return scheduler.block_table("decoding", value)
        return getattr(scheduler, call)(value)

    assert_unchanged(ValueError, ask, "group", repr(value), "'A', 'W'")


@pytest.mark.parametrize("name", ["nobody", "done"])
def test_the_table_of_an_unknown_request_is_a_protocol_error(name: str) -> None:
    assert_unchanged(UnknownRequestError, lambda s, _: s.block_table(name, "A"), "request_id", repr(name))


@pytest.mark.parametrize("value", NO_STRINGS, ids=ids)
def test_the_table_of_no_string_is_refused(value: Any) -> None:
    assert_unchanged(ValueError, lambda s, _: s.block_table(value, "A"), "request_id", repr(value))


# --- results ---


@pytest.mark.parametrize("value", [None, 3, "step", {}, SchedulerOutput], ids=ids)
def test_results_must_be_records(value: Any) -> None:
    assert_unchanged(
        ValueError,
        lambda s, f: s.update_from_output(value, result_of(f[0])),
        "scheduler_output",
        "SchedulerOutput",
    )
    assert_unchanged(
        ValueError, lambda s, f: s.update_from_output(f[0], value), "model_runner_output", "ModelRunnerOutput"
    )


def test_results_come_in_dispatch_order() -> None:
    assert_unchanged(
        StepOrderError,
        lambda s, f: s.update_from_output(f[1], result_of(f[1])),
        "oldest",
        "scheduler_output.step_id must",
    )
    assert issubclass(StepOrderError, SchedulerError)


@pytest.mark.parametrize("step_id", [1, 3, 99, HUGE], ids=ids)
def test_results_name_the_oldest_step(step_id: int) -> None:
    _, flight = busy_scheduler()
    assert flight[0].step_id == 2

    def process(scheduler: Scheduler, flight: list[SchedulerOutput]) -> None:
        scheduler.update_from_output(flight[0], result_of(flight[0], step_id=step_id))

    assert_unchanged(StepOrderError, process, "model_runner_output.step_id must", "2", str(step_id))


@pytest.mark.parametrize("step_id", [None, True, 2.0, "2", np.int64(2), float("nan"), 0, -1], ids=ids)
def test_what_is_no_step_id_is_refused(step_id: Any) -> None:
    def process(scheduler: Scheduler, flight: list[SchedulerOutput]) -> None:
        scheduler.update_from_output(flight[0], result_of(flight[0], step_id=step_id))

    assert_unchanged(ValueError, process, "step_id", repr(step_id))


def test_a_result_is_processed_once() -> None:
    scheduler, flight = busy_scheduler()
    scheduler.update_from_output(flight[0], result_of(flight[0]))
    before = snapshot(scheduler)
    refused(
        StepOrderError, lambda: scheduler.update_from_output(flight[0], result_of(flight[0])), "step_id", "2"
    )
    assert snapshot(scheduler) == before


def test_an_empty_output_has_no_result() -> None:
    scheduler, _ = busy_scheduler()
    empty = scheduler.schedule()
    assert empty.step_id is None
    before = snapshot(scheduler)
    refused(
        SchedulerError,
        lambda: scheduler.update_from_output(empty, ModelRunnerOutput(1, ())),
        "empty",
        "scheduler_output must have rows",
    )
    assert snapshot(scheduler) == before


def test_nothing_in_flight_has_no_result() -> None:
    _, flight = busy_scheduler()
    fresh = Scheduler(CONFIG, CACHE)
    refused(StepOrderError, lambda: fresh.update_from_output(flight[0], result_of(flight[0])), "step", "2")
    assert fresh.num_in_flight == 0


def test_another_schedulers_output_is_refused() -> None:
    """Same step id, other rows: it is not the dispatch that is in flight."""

    def swap(scheduler: Scheduler, flight: list[SchedulerOutput]) -> None:
        other = Scheduler(CONFIG, CACHE)
        for name in ("x", "y"):
            other.add_request(Request(name, (1,) * 8, SamplingParams(max_tokens=3)))
        first = other.schedule()
        other.update_from_output(first, result_of(first))
        second = other.schedule()
        assert second.step_id == flight[0].step_id
        scheduler.update_from_output(second, result_of(second))

    assert_unchanged(SchedulerError, swap, "scheduler_output")


@pytest.mark.parametrize("field", ["request_ids", "epochs"])
def test_a_step_is_known_by_its_requests_and_by_their_epochs(field: str) -> None:
    def process(scheduler: Scheduler, flight: list[SchedulerOutput]) -> None:
        values = getattr(flight[0], field)
        forged = replace(flight[0], **{field: (*values[:-1], "x" if field == "request_ids" else 99)})
        scheduler.update_from_output(forged, result_of(flight[0]))

    assert_unchanged(StepOrderError, process, "scheduler_output must be the one dispatched as step 2", field)


BAD_ROWS: list[Any] = [None, 3, "77", (), ((7,),), ((7,), (7,), (7,)), (7, 7), (None, None), ((), ())]
BAD_ROWS += [((7,) * 4, (7,)), ((7,), (7,) * 4), ("7", (7,)), (7, (7,))]
BAD_ROWS += [
    ((token,), (7,)) for token in (True, 7.0, np.float64(7), "7", None, -1, 2**31, HUGE, [7], float("nan"))
]


@pytest.mark.parametrize("rows", BAD_ROWS, ids=ids)
def test_results_match_their_rows(rows: Any) -> None:
    """The oldest step has two decode rows of up to three tokens: "decoding" and the preempted request."""
    _, flight = busy_scheduler()
    assert flight[0].request_ids == ("decoding", "preempted")
    assert flight[0].num_scheduled_tokens == (3, 3)

    def process(scheduler: Scheduler, flight: list[SchedulerOutput]) -> None:
        scheduler.update_from_output(flight[0], result_of(flight[0], sampled_token_ids=rows))

    assert_unchanged(ValueError, process, "sampled_token_ids")


def test_a_result_with_too_many_tokens_is_told_the_kind_of_its_row() -> None:
    assert_unchanged(
        ValueError,
        lambda s, f: s.update_from_output(f[0], result_of(f[0], sampled_token_ids=((7,) * 4, (7,)))),
        "sampled_token_ids[0] (request 'decoding') must hold 1 to 3 tokens for this decode row, got 4",
    )


def test_a_stale_row_may_have_no_token() -> None:
    scheduler, flight = busy_scheduler()
    outputs = scheduler.update_from_output(flight[0], result_of(flight[0], sampled_token_ids=((7,), ())))
    assert [output.request_id for output in outputs] == ["decoding"]


def test_a_chunk_that_does_not_end_the_prompt_has_no_token() -> None:
    scheduler, flight = busy_scheduler()
    scheduler.update_from_output(flight[0], result_of(flight[0]))
    chunk = flight[1]
    assert (chunk.request_ids[0], chunk.samples[0]) == ("chunking", False)
    before = snapshot(scheduler)
    rows = tuple((7,) for _ in chunk.request_ids)
    refused(
        ValueError,
        lambda: scheduler.update_from_output(chunk, result_of(chunk, sampled_token_ids=rows)),
        "sampled_token_ids[0] (request 'chunking') must hold 0 tokens for this prefill row, got 1",
    )
    assert snapshot(scheduler) == before


def test_records_are_immutable() -> None:
    _, flight = busy_scheduler()
    output = flight[0]
    with pytest.raises(AttributeError):
        output.step_id = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        output.new_block_ids[0]["A"] = ()  # type: ignore[index]
    with pytest.raises(TypeError):
        output.request_ids[0] = "x"  # type: ignore[index]


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"top_p": 0.5},
        {"top_p": 2**-100},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"temperature": 0},
    ],
)
def test_sampling_takes_the_ends_of_its_ranges(fields: dict[str, Any]) -> None:
    assert {name: getattr(SamplingParams(**fields), name) for name in fields} == fields


def test_requests_take_the_ends_of_their_ranges() -> None:
    for priority in (-(2**63), 2**63 - 1):
        assert Request("r", (0, 2**31 - 1), priority=priority).priority == priority
    for priority in (-(2**63) - 1, 2**63):
        refused(ValueError, making(Request, "r", (1,), priority=priority), "request 'r': priority")


def test_refusals_show_the_value_and_its_type() -> None:
    refused(ValueError, making(Request, "r", 7), "must be a sequence of token ids, got 7")
    refused(ValueError, making(Request, "r", (1.5,)), "prompt_token_ids[0]", "got 1.5 of type float")
    refused(ValueError, making(Request, "r", (1,), sampling_params=7), "sampling_params", "got 7")
    refused(ValueError, making(SamplingParams, seed="x"), "seed (if not None) must be", "got 'x'")

    class Silent:
        def __repr__(self) -> str:
            raise ValueError("no")

    refused(
        ValueError, making(SchedulerConfig, max_num_seqs=Silent()), "a value that cannot be printed (Silent)"
    )
    for fields in ({"max_num_seqs": 1.5}, {"watermark": "1"}, {"reserve_full_prompt": 1}):
        ((name, value),) = fields.items()
        kind = type(value).__name__
        refused(ValueError, making(SchedulerConfig, **fields), name, f"got {value!r} of type {kind}")
    for field in ("logprobs", "num_speculative_tokens"):
        refused(
            ValueError, making(SamplingParams, **{field: -1}), f"{field} (if not None) must be an int >= 0"
        )
    refused(
        ValueError, making(SamplingParams, stop="x"), "stop must be a sequence of non-empty strings, got 'x'"
    )


def test_what_is_allowed_is_kept() -> None:
    params = SamplingParams(stop=["a", "b"], logprobs=0, num_speculative_tokens=0)
    assert (params.stop, params.logprobs, params.num_speculative_tokens) == (("a", "b"), 0, 0)
    assert SchedulerConfig(max_num_queued_reqs=2**256 - 1).max_num_queued_reqs == 2**256 - 1
    refused(ValueError, making(SchedulerConfig, max_num_queued_reqs=2**256), "an int beyond 256 bits")
