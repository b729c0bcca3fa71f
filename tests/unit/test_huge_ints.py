"""Python refuses to print ints of thousands of digits: wherever one is handed in, alone or inside something,
the error is hocket's own and names the field.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from hocket import KVCacheConfig, KVGroupSpec, Request, SamplingParams, SchedulerConfig
from hocket.core.checks import MAX_BITS, shown
from hocket.core.speculative import agreed_tokens
from hocket.runner.packed import validate_packed_prefill
from tests.unit.runner.test_packed import SMALL_PACK

ENDLESS = 10**5000
CONFIG_INTS = [field.name for field in fields(SchedulerConfig) if type(field.default) is int]


def refused(action: Callable[[], object], *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        action()
    for part in parts:
        assert part in str(caught.value)


class Sulks:
    def __repr__(self) -> str:
        raise OSError("no name")


def test_whatever_a_value_is_it_can_be_shown() -> None:
    assert shown(2**MAX_BITS - 1) == str(2**MAX_BITS - 1)
    assert shown(2**MAX_BITS) == shown(ENDLESS) == "an int beyond 256 bits"
    assert shown([ENDLESS]) == "a value that cannot be printed (list)"
    assert shown(Sulks()) == "a value that cannot be printed (Sulks)"
    assert [shown(value) for value in (1.5, "a", None, True)] == ["1.5", "'a'", "None", "True"]


@pytest.mark.parametrize("field", ["max_tokens", "min_tokens", "top_k", "logprobs", "num_speculative_tokens"])
@pytest.mark.parametrize("value", [ENDLESS, -ENDLESS, [ENDLESS]], ids=["positive", "negative", "list"])
def test_sampling_parameters(field: str, value: Any) -> None:
    refused(lambda: SamplingParams(**{field: value}), field)


@pytest.mark.parametrize("field", [*CONFIG_INTS, "max_num_queued_reqs"])
@pytest.mark.parametrize("value", [ENDLESS, -ENDLESS, [ENDLESS]], ids=["positive", "negative", "list"])
def test_scheduler_knobs(field: str, value: Any) -> None:
    refused(lambda: SchedulerConfig(**{field: value}), field)


@pytest.mark.parametrize("field", ["max_num_seqs", "max_model_len", "num_speculative_tokens"])
def test_the_largest_int_that_a_knob_takes_can_be_printed(field: str) -> None:
    most = {field: 2**MAX_BITS - 1} | ({"max_num_batched_tokens": 2**MAX_BITS - 1} if "spec" in field else {})
    if "spec" in field:
        refused(lambda: SchedulerConfig(**most), "max_num_batched_tokens", str(2**MAX_BITS))
    else:
        assert str(2**MAX_BITS - 1) in repr(SchedulerConfig(**most))


def making(kind: Callable[..., object], *args: Any, **given: Any) -> Callable[[], object]:
    return lambda: kind(*args, **given)


REST = {
    "watermark": (making(SchedulerConfig, watermark=[ENDLESS]), "watermark"),
    "reserve_full_prompt": (making(SchedulerConfig, reserve_full_prompt=ENDLESS), "reserve_full_prompt"),
    "a block count": (making(KVGroupSpec, "a", 4, num_blocks=ENDLESS), "KVGroupSpec('a').num_blocks"),
    "a group's name": (making(KVGroupSpec, ENDLESS, 4, num_blocks=1), "KVGroupSpec.name"),
    "groups": (making(KVCacheConfig, [ENDLESS]), "KVCacheConfig.groups"),
    "pools": (making(KVCacheConfig, (KVGroupSpec("a", 4, 1),), [ENDLESS]), "KVCacheConfig.pools"),
    "a pool's blocks": (making(KVCacheConfig, (KVGroupSpec("a", 4, 1),), {"p": ENDLESS}), "pools['p']"),
    "stop": (making(SamplingParams, stop=ENDLESS), "stop"),
    "a stop string": (making(SamplingParams, stop=[ENDLESS]), "stop[0]"),
    "stop_token_ids": (making(SamplingParams, stop_token_ids=ENDLESS), "stop_token_ids"),
    "a token in a token": (making(Request, "r", [[ENDLESS]]), "prompt_token_ids[0]"),
    "request_id": (making(Request, ENDLESS, [1]), "request_id"),
    "sampling_params": (making(Request, "r", [1], ENDLESS), "sampling_params"),
    "priority": (making(Request, "r", [1], priority=ENDLESS), "priority"),
    "eos_token_id": (making(Request, "r", [1], eos_token_id=ENDLESS), "eos_token_id"),
    "speculative_config": (making(agreed_tokens, None, [ENDLESS]), "speculative_config"),
    "its key": (making(agreed_tokens, None, {ENDLESS: 1}), "speculative_config"),
    "its method": (making(agreed_tokens, None, {"method": ENDLESS}), "method"),
    "another count": (
        making(agreed_tokens, ENDLESS, {"method": "mtp", "num_speculative_tokens": 1}),
        "num_speculative_tokens",
    ),
}


@pytest.mark.parametrize("case", REST)
def test_everything_else(case: str) -> None:
    action, field = REST[case]
    refused(action, field)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"request_ids": [ENDLESS]}, "request_ids[0]"),
        ({"request_ids": [ENDLESS], "chunk_starts": []}, "chunk_starts has 0 entries"),
        ({"chunk_starts": [[ENDLESS]]}, "chunk_starts"),
        ({"chunk_lens": [Sulks()]}, "chunk_lens[0]"),
        ({"block_sizes": {"g": 4, ENDLESS: 4}}, "block_tables has no group"),
        ({"block_tables": {"g": [[1]], ENDLESS: [[1]]}}, "block_tables has unknown group"),
        ({"windows": {ENDLESS: 4}}, "windows has unknown group"),
        ({"block_sizes": {ENDLESS: 0}, "block_tables": {ENDLESS: [[1]]}}, "block_sizes["),
        ({"block_sizes": {ENDLESS: 1}, "block_tables": {ENDLESS: [[1]]}}, "block_tables["),
    ],
)
def test_packed_prefills(changes: dict[str, Any], field: str) -> None:
    validate_packed_prefill(**SMALL_PACK)
    refused(lambda: validate_packed_prefill(**SMALL_PACK | changes), "packed prefill: ", field)
