"""`hocket generate` on the shipped checkpoint."""

import io
from dataclasses import replace

import pytest

from hocket.cli.main import main
from hocket.engine.llm import LLM
from hocket.model.recall import ANSWER, needle_prompt, recall_folder
from hocket.obs.trace import read_trace

MODEL = [
    "generate",
    "--model",
    str(recall_folder()),
    "--no-progress",
    "--max-num-seqs",
    "4",
    "--max-model-len",
    "1024",
]


def test_prompts_in_order(capsys, tmp_path):
    trace = tmp_path / "trace.ndjson"
    words = ["--prompt", needle_prompt(300).text, "--prompt", needle_prompt(200).text, "--trace", str(trace)]
    assert main([*MODEL, *words, "--async-depth", "3"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == lines[2] == ANSWER
    assert lines[1].strip().startswith("[300 + 15 tokens, stop, first token after ")
    assert lines[3].strip().startswith("[200 + 15 tokens, stop, first token after ")
    assert captured.err == ""
    assert read_trace(trace).header.scheduler_config.async_depth == 3


def test_prompts_from_a_file_and_from_standard_input(capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text(needle_prompt(200).text + "\n")
    assert main([*MODEL, "--prompt-file", str(file), "--stop", " | QUARTZ"]) == 0
    assert capsys.readouterr().out.startswith("ORBIT-7319 | MAPLE-6047\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert main([*MODEL, "--prompt-file", "-", "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("ORBIT-7319\n")


def test_prompts_that_are_no_text_name_where_they_came_from(capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"fine\n\xff\n")
    assert main([*MODEL, "--prompt-file", str(file)]) == 2
    assert f"prompt_file {file}: not UTF-8: " in capsys.readouterr().err
    forgiving = io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", forgiving)
    assert main([*MODEL, "--prompt-file", "-"]) == 2
    assert "prompt_file standard input: not UTF-8: " in capsys.readouterr().err
    assert main([*MODEL, "--prompt", "fine", "--prompt", "no\udcff text"]) == 2
    said = "request '0-1': prompt: text must hold characters only, got the lone surrogate '\\udcff' at 2"
    assert capsys.readouterr().err == f"hocket generate: error: {said}\n"


def test_sampling_flags_reach_the_sampler(capsys):
    words = ["--prompt", needle_prompt(100).text, "--temperature", "40", "--ignore-eos", "--max-tokens", "12"]
    said = []
    for seed in ("1", "1", "2"):
        assert main([*MODEL, *words, "--seed", seed]) == 0
        said.append(capsys.readouterr().out.splitlines()[0])
    assert said[0] == said[1] != said[2]
    assert main([*MODEL, *words, "--seed", "1", "--top-k", "1"]) == 0
    assert capsys.readouterr().out.startswith("ORBIT-7319 | MAPLE-6047 | QUARTZ-")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top-p", "0"], "top_p must be a number in (0.0, 1.0], got 0.0"),
        (["--max-tokens", "0"], "max_tokens must be an int >= 1, got 0"),
        (["--temperature", "-1"], "temperature must be"),
        (["--stop", ""], "stop[0] must be"),
    ],
    ids=lambda value: value[0],
)
def test_bad_sampling_flags(words, message, capsys):
    assert main([*MODEL, "--prompt", "x", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_request_that_failed_is_status_1(capsys, monkeypatch):
    real = LLM.generate

    def spoilt(self, *args, **more):
        first, *rest = real(self, *args, **more)
        return [replace(first, finish_reason="error", error="no finite logits"), *rest]

    monkeypatch.setattr(LLM, "generate", spoilt)
    words = ["--prompt", needle_prompt(100).text, "--prompt", needle_prompt(90).text]
    assert main([*MODEL, *words]) == 1
    assert ", error (no finite logits), " in capsys.readouterr().out


def test_an_old_trace_survives_a_prompt_that_is_too_long(capsys, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text("old\n")
    assert main([*MODEL, "--trace", str(trace), "--prompt", needle_prompt(1100).text]) == 2
    assert "at most max_model_len" in capsys.readouterr().err
    assert trace.read_text() == "old\n"
    assert main([*MODEL, "--trace", "/nowhere/trace", "--prompt", needle_prompt(100).text]) == 2
    assert "/nowhere/trace" in capsys.readouterr().err
    assert main([*MODEL, "--trace", "/dev/full", "--prompt", needle_prompt(100).text]) == 2
    assert capsys.readouterr().err.endswith("error: [Errno 28] No space left on device: '/dev/full'\n")
