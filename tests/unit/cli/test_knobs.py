"""Flags: one for every knob, their types, sizes and group maps; bad values are one line and status 2."""

import argparse
from dataclasses import fields

import pytest

from hocket import SchedulerConfig
from hocket.cli.knobs import (
    MOST_IN_FLIGHT,
    _by_group,
    _size,
    add_model_arguments,
    add_run_arguments,
    add_scheduler_arguments,
    model_options,
    or_refuse,
    scheduler_config,
    scheduler_knobs,
)
from hocket.cli.main import main
from hocket.core.errors import QueueFullError
from hocket.engine.errors import EngineDeadError
from hocket.runner.device import DEVICES


def parse(*words, **defaults):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_scheduler_arguments(parser, **defaults)
    add_model_arguments(parser)
    add_run_arguments(parser)
    return parser.parse_args(words)


def test_without_flags_the_defaults_of_the_configuration_hold():
    assert scheduler_config(parse()) == SchedulerConfig()
    assert scheduler_config(parse(max_num_seqs=8)) == SchedulerConfig(max_num_seqs=8)


OTHER = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 99,
    "prefill_chunk_size": 17,
    "max_model_len": 500,
    "async_depth": 3,
    "num_speculative_tokens": 2,
    "prefill_steps_per_turn": 4,
    "decode_steps_per_turn": 5,
    "chunk_alignment": 2,
    "reserve_full_prompt": False,
    "watermark": 0.25,
    "max_num_queued_reqs": 9,
}


@pytest.mark.parametrize("field", [field.name for field in fields(SchedulerConfig)])
def test_every_knob_has_a_flag(field):
    flag = "--" + field.replace("_", "-")
    if field == "enable_prefix_caching":
        with pytest.raises(ValueError, match="enable_prefix_caching"):
            scheduler_config(parse(flag))
        return
    value = OTHER[field]
    words = ["--no-" + flag[2:]] if value is False else [flag, str(value)]
    assert scheduler_config(parse(*words)) == SchedulerConfig(**{field: value})


def test_aliases_and_negations():
    assert parse("--long-prefill-token-threshold", "64").prefill_chunk_size == 64
    assert parse("--reserve-full-prompt").reserve_full_prompt is True
    assert parse("--no-reserve-full-prompt").reserve_full_prompt is False


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("1k", 1024),
        ("2KiB", 2048),
        ("256MiB", 1 << 28),
        ("1.5g", 3 << 29),
        ("1GB", 1 << 30),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text, size):
    assert _size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "x", "1X", "1e400", "nan", "1 2"])
def test_bad_sizes(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no size"):
        _size(text)


def test_block_sizes_by_group():
    assert _by_group("swa=32,c4=64") == {"swa": 32, "c4": 64}
    for bad in ("swa", "swa=", "=3", "swa=-1", "swa=1.5", "swa=4,"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no block size"):
            _by_group(bad)


def test_model_options():
    args = parse("--dtype", "bfloat16", "--kv-cache-memory", "8MiB", "--block-size", "64", "--shared-pool")
    assert model_options(args) == {
        "dtype": "bfloat16",
        "device": "cpu",
        "kv_cache_memory": 8 << 20,
        "block_size": 64,
        "block_sizes": None,
        "shared_pool": True,
    }


def help_of(command, capsys):
    """What `--help` prints, on one line."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["demo", "generate", "validate"])
def test_the_help_says_how_far_a_flag_goes(command, capsys):
    said = help_of(command, capsys)
    assert f"1 is synchronous, {MOST_IN_FLIGHT} the most (default: 2)" in said
    assert "not available yet, and refused" in said
    assert ("threads of the model, 512 at most" in said) == (command == "demo")


@pytest.mark.parametrize("error", [QueueFullError("no room"), EngineDeadError("it died"), OSError("no disk")])
def test_a_refusal_and_a_dead_engine_are_one_line_and_status_2(error, capsys):
    def fail():
        raise error

    assert or_refuse("generate", fail) == 2
    assert capsys.readouterr().err == f"hocket generate: error: {error}\n"


def test_an_old_trace_survives_a_refusal(tmp_path, capsys):
    trace = tmp_path / "trace"
    trace.write_text("old\n")
    for words in (["--max-model-len", "100"], ["--kv-cache-memory", "1KiB"], ["--seed", "-1"]):
        assert main(["demo", "--no-progress", "--trace", str(trace), *words]) == 2
        assert trace.read_text() == "old\n"
    capsys.readouterr()


def test_a_knob_may_be_left_to_the_model():
    args = parse(max_model_len=None)
    assert "max_model_len" not in scheduler_knobs(args)
    assert scheduler_config(args) == SchedulerConfig()
    assert scheduler_knobs(parse("--max-model-len", "7", max_model_len=None))["max_model_len"] == 7


@pytest.mark.parametrize("command", ["demo", "generate", "validate"])
def test_the_help_says_which_devices_there_are_and_that_none_stands_in_for_another(command, capsys):
    said = help_of(command, capsys)
    assert f"where the model runs: {', '.join([*DEVICES][:-1])} or {[*DEVICES][-1]}" in said
    assert "one that is not there is an error, no other is taken (default: cpu)" in said


def test_bad_input_is_one_line_and_status_2(capsys):
    def refuse():
        raise ValueError("async_depth must be an int >= 1, got 0")

    assert or_refuse("demo", refuse) == 2
    assert capsys.readouterr().err == "hocket demo: error: async_depth must be an int >= 1, got 0\n"
    assert or_refuse("demo", lambda: 1) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--async-depth", "0"], "async_depth must be an int in [1, 64], got 0"),
        (["demo", "--async-depth", "65"], "async_depth must be an int in [1, 64], got 65"),
        (["validate", "--async-depth", "65"], "async_depth must be an int in [1, 64], got 65"),
        (["validate", "--async-depth", f"1{23 * '0'}"], "async_depth must be an int in [1, 64], got 1000"),
        (["demo", "--device", "cuda"], "device 'cuda' cannot be used"),
        (["demo", "--watermark", "2"], "watermark must be a number in [0.0, 1.0], got 2.0"),
        (["demo", "--kv-cache-memory", "1KiB"], "kv_cache_memory must be at least"),
        (["demo", "--max-model-len", "100"], "request 'needle': prompt_token_ids must hold at most"),
        (["demo", "--trace", "/nowhere/trace"], "No such file or directory: '/nowhere/trace'"),
        (["demo", "--max-num-queued-reqs", "0"], "max_num_queued_reqs (if not None) must be an int >= 1"),
        (["demo", "--threads", "0"], "threads must be an int in [1, 512], got 0"),
        (["demo", "--threads", "100000"], "threads must be an int in [1, 512], got 100000"),
        (["demo", "--max-model-len", "4096"], "prompt_token_ids must hold at most max_model_len"),
        (["generate", "--model", "/nowhere", "--prompt", "x"], "/nowhere/config.json: no such file"),
        (["generate", "--model", "/nowhere"], "give at least one --prompt"),
        (
            ["generate", "--model", "/nowhere", "--prompt", "x", "--async-depth", "65"],
            "async_depth must be an int in [1, 64], got 65",
        ),
        (
            ["demo", "--max-num-seqs", "1000000000"],
            "max_num_seqs must be an int in [1, 65536], got 1000000000",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_commands_refuse_bad_input(words, message, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
