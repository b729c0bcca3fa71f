"""vLLM's spelling of num_speculative_tokens."""

import argparse

import pytest

from hocket.cli.knobs import add_scheduler_arguments, scheduler_config
from hocket.cli.main import main
from hocket.core.speculative import agreed_tokens, speculative_tokens

GOOD = {"method": "mtp", "num_speculative_tokens": 2}


def test_a_mapping_and_its_json_text():
    assert speculative_tokens(GOOD) == 2
    assert speculative_tokens('{"method": "deepseek_mtp", "num_speculative_tokens": 3}') == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", " must be a JSON object, got '{'"),
        ("[1]", r" must be a JSON object, got \[1\]"),
        (3, " must be a JSON object, got 3"),
        (GOOD | {"method": "eagle"}, ": method must be 'mtp' .*, got 'eagle'"),
        ({"num_speculative_tokens": 1}, ": method must be 'mtp' .*, got None"),
        (GOOD | {"method": []}, r": method must be 'mtp' .*, got \[\]"),
        (
            GOOD | {"model": "x"},
            " must have the keys method, num_speculative_tokens only, got 'model'",
        ),
        ({"method": "mtp"}, " must have num_speculative_tokens, an int >= 1"),
        (
            GOOD | {"num_speculative_tokens": 0},
            ": num_speculative_tokens must be an int >= 1, got 0",
        ),
        (
            GOOD | {"num_speculative_tokens": True},
            ": num_speculative_tokens must be an int",
        ),
    ],
)
def test_anything_else_is_refused(config, message):
    with pytest.raises(ValueError, match=f"^speculative_config{message}"):
        speculative_tokens(config)


def test_both_spellings_must_agree():
    assert agreed_tokens(None, None) == 0
    assert agreed_tokens(3, None) == 3
    assert agreed_tokens(None, GOOD) == agreed_tokens(2, GOOD) == 2
    with pytest.raises(ValueError, match=r"^num_speculative_tokens must be what speculative_config says, 2"):
        agreed_tokens(1, GOOD)


def flags(*words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_scheduler_arguments(parser)
    return scheduler_config(parser.parse_args(words)).num_speculative_tokens


def test_the_flag():
    text = '{"method": "mtp", "num_speculative_tokens": 2}'
    assert flags("--speculative-config", text) == 2
    assert flags("--speculative-config", text, "--num-speculative-tokens", "2") == 2
    with pytest.raises(ValueError, match="or left out, got 3"):
        flags("--speculative-config", text, "--num-speculative-tokens", "3")


def test_commands_refuse_another_method_in_one_line(capsys):
    assert main(["demo", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 1}']) == 2
    assert "speculative_config: method must be 'mtp'" in capsys.readouterr().err
