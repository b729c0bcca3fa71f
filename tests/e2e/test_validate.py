"""`hocket validate`: passes on the CPU, says so in a report, and fails for what is wrong."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from hocket import Phase
from hocket.cli import main_job, validate, verdicts
from hocket.cli.main import main
from hocket.runner import model_runner

SHORT = ["validate", "--no-progress", "--prompt-tokens", "700", "--prefill-chunk-size", "256"]
CHECKS = ["answer", "isolated", "chunks", "phases", "interleaved", "text"]


def test_as_a_user_runs_it(tmp_path):
    """8192 tokens in four chunks, without and with drafts."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "hocket", "validate", "--device", "cpu", "--report", str(report)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\ncpu: passed\n")
    assert "100%" in done.stderr, "progress is shown"
    said = json.loads(report.read_text())
    assert (said["report"], said["passed"], said["device"]) == (1, True, "cpu")
    assert said["error"] is None
    assert said["scheduler"]["num_speculative_tokens"] == 1
    assert {entry["uses"] for entry in said["operations"]} == {"reference"}
    plain, drafting, guided = said["rounds"]
    assert [entry["name"] for entry in said["rounds"]] == ["AR", "MTP, 1 draft", "MTP, 1 draft, guided"]
    assert [check["check"] for check in plain["checks"]] == CHECKS
    for entry in (drafting, guided):
        assert [check["check"] for check in entry["checks"]] == [*CHECKS, "as AR", "drafts"]
    for entry in said["rounds"]:
        rows = [(row, step["phase"]) for step in entry["steps"] for row in step["rows"]]
        chunks = [r["start"] for r, phase in rows if phase == "prefill" and r["request"] == "needle"]
        assert chunks == [0, 2048, 4096, 6144]
        needle = entry["requests"]["needle"]
        assert needle["alone"] | TIMES == needle["together"] | TIMES
    assert plain["requests"]["live"]["together"]["drafts"] == 0
    assert drafting["requests"]["live"]["together"]["drafts"] > 0
    live = guided["requests"]["live"]["together"]
    # Four of five are right; after a wrong one the row begins anew.
    assert live["drafts"] / 2 < live["accepted_drafts"] < live["drafts"]
    assert len(guided["steps"]) < 0.75 * len(drafting["steps"])


TIMES = dict.fromkeys(("ttft_s", "worst_gap_s", "latency_s"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--prompt-tokens", "256"],
            "prompt_tokens (more than a chunk of 256) must be an int in [257, 16777216], got 256",
        ),
        (["--prompt-tokens", "99999999"], "must be an int in [257, 16777216], got 99999999"),
        (["--prompt-tokens", "63", "--prefill-chunk-size", "8"], "must be an int in [64, 16777216], got 63"),
        (["--num-speculative-tokens", "0"], "num_speculative_tokens must be an int >= 1, got 0"),
        (
            ["--device", "npu"],
            "device 'npu' cannot be used: ModuleNotFoundError: No module named 'torch_npu'",
        ),
        (["--device", "cuda"], "device 'cuda' cannot be used: torch"),
        (["--device", "tpu"], "device must be one of cpu, npu, cuda, got 'tpu'"),
        (["--report", "/nowhere/report"], "No such file or directory: '/nowhere/report'"),
        (["--trace", "trace"], "trace must not be given"),
        (["--max-num-seqs", "1"], "max_num_seqs must be at least 2, got 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_run_is_status_2(words, message, capsys):
    assert main([*SHORT, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_failed_check_is_status_1_and_stands_in_the_report(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(main_job, "ANSWER", "ORBIT-0000")
    report = tmp_path / "report.json"
    assert main([*SHORT, "--report", str(report)]) == 1
    said = capsys.readouterr().out
    assert "FAILED  answer" in said
    assert said.endswith("\ncpu: FAILED\n")
    failed = [
        c["check"] for r in json.loads(report.read_text())["rounds"] for c in r["checks"] if not c["passed"]
    ]
    assert failed == ["answer", "answer", "answer"]


EARLY = [*SHORT, "--max-model-len", "2048", "--watermark", "0.99", "--kv-cache-memory", "8MiB"]


def test_a_run_that_ends_early_is_told_in_the_report(tmp_path, capsys):
    report = tmp_path / "report.json"
    report.write_text("old\n")
    assert main([*EARLY, "--report", str(report)]) == 2
    assert "leaves no room for both" in capsys.readouterr().err
    said = json.loads(report.read_text())
    assert said["passed"] is False
    assert said["error"].startswith("ValueError: the long prompt was not admitted before the live request")
    assert said["rounds"] == []
    assert os.listdir(tmp_path) == ["report.json"]


def test_ctrl_c_in_the_second_round_leaves_the_first_in_the_report(tmp_path, monkeypatch):
    def interrupted(job):
        if job.config.num_speculative_tokens:
            raise KeyboardInterrupt
        return main_job.run_job(job)

    monkeypatch.setattr(validate, "run_job", interrupted)
    report = tmp_path / "report.json"
    with suppress(KeyboardInterrupt):
        main([*SHORT, "--report", str(report)])
    said = json.loads(report.read_text())
    assert (said["passed"], said["error"]) == (False, "KeyboardInterrupt: ")
    assert [(entry["name"], entry["passed"]) for entry in said["rounds"]] == [("AR", True)]


def test_bad_input_leaves_an_old_report_alone(tmp_path, capsys):
    report = tmp_path / "report.json"
    report.write_text("old\n")
    for words in (["--max-num-seqs", "1"], ["--device", "cuda"], ["--prompt-tokens", "9"]):
        assert main([*SHORT, *words, "--report", str(report)]) == 2
        assert report.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["report.json"]
    capsys.readouterr()


@pytest.fixture(scope="module")
def judged():
    """A round as it must be: the job, each alone, both together, and the texts without drafts."""
    from hocket import SchedulerConfig

    config = SchedulerConfig(
        prefill_chunk_size=256, max_num_seqs=8, max_model_len=1024, num_speculative_tokens=1
    )
    loaded, _ = main_job.load(main_job.ModelOptions(kv_cache_memory=1 << 26), 1)
    job = main_job.Job(loaded, config, *main_job.requests_of(loaded, config, 700), seed=0, progress=False)
    alone, together = main_job.run_job(job)
    return job, alone, together, {name: alone[name].token_ids for name in alone}


def with_result(results, name, **change):
    return {**results, name: replace(results[name], **change)}


def other(together, **change):
    return main_job.Observed(
        **{"results": together.results, "outputs": together.outputs, "stats": together.stats, **change}
    )


def with_outputs(together, change):
    outputs = list(together.outputs)
    change(outputs)
    return other(together, outputs=outputs)


def longer_chunk(outputs):
    at = next(i for i, o in enumerate(outputs) if o.phase == Phase.PREFILL and "needle" in o.request_ids)
    outputs[at] = replace(outputs[at], num_scheduled_tokens=(255,))


def one_chunk_gone(outputs):
    at = next(i for i, o in enumerate(outputs) if o.phase == Phase.PREFILL and "needle" in o.request_ids)
    del outputs[at]


def no_turn(outputs):
    """The decode steps between the chunks are gone."""
    chunks = [i for i, o in enumerate(outputs) if "needle" in o.request_ids and o.phase == Phase.PREFILL]
    outputs[chunks[0] : chunks[-1]] = [outputs[i] for i in chunks[:-1]]


FAULTS = {
    "answer": lambda a, t, p: (with_result(a, "needle", text="ORBIT"), t, p),
    "isolated": lambda a, t, p: (with_result(a, "live", token_ids=(*a["live"].token_ids[:-1], 3)), t, p),
    "chunks": lambda a, t, p: (a, with_outputs(t, longer_chunk), p),
    "phases": lambda a, t, p: (a, with_outputs(t, one_chunk_gone), p),
    "interleaved": lambda a, t, p: (a, with_outputs(t, no_turn), p),
    "text": lambda a, t, p: (a, other(t, results=with_result(t.results, "live", text="a\ufffd")), p),
    "as AR": lambda a, t, p: (a, t, {**p, "live": p["live"][:-1]}),
    "drafts": lambda a, t, p: (a, other(t, stats=main_job.EngineStats()), p),
}


def with_drafts(accepted, made):
    return main_job.EngineStats(num_accepted_tokens=accepted, num_draft_tokens=made)


@pytest.mark.parametrize(
    ("accepted", "made", "passed"), [(0, 9, False), (9, 9, False), (0, 0, False), (1, 9, True), (8, 9, True)]
)
def test_of_guided_drafts_some_must_be_accepted_and_some_not(judged, accepted, made, passed):
    job, alone, together, plain = judged
    guided = job._replace(texts={})
    found = verdicts.judge(guided, alone, other(together, stats=with_drafts(accepted, made)), plain)
    assert [verdict.passed for verdict in found if verdict.check == "drafts"] == [passed]


@pytest.mark.parametrize("words", [[], ["--num-speculative-tokens", "3", "--async-depth", "3"]], ids=" ".join)
def test_guided_drafts_are_accepted_and_rejected(words, tmp_path, capsys):
    report = tmp_path / "report.json"
    assert main([*SHORT, *words, "--report", str(report)]) == 0, capsys.readouterr().out
    *_, random, guided = json.loads(report.read_text())["rounds"]
    assert guided["name"] == random["name"] + ", guided"
    shares = []
    for entry in (random, guided):
        counts = [entry["requests"][name]["together"] for name in ("needle", "live")]
        shares.append(sum(c["accepted_drafts"] for c in counts) / sum(c["drafts"] for c in counts))
    assert shares[0] < 0.1, "a random layer is hardly ever right"
    assert 0.3 < shares[1] < 1


@pytest.mark.parametrize("fault", ["all accepted", "none accepted"])
def test_a_runner_that_does_not_verify_drafts_fails(fault, monkeypatch, capsys):
    """Only guided drafts tell a runner that rejects all of them from one that rejects the wrong ones."""

    def emitted(drafts, chosen, broken, num_tokens):
        return num_tokens.clone() if fault == "all accepted" else torch.ones_like(num_tokens)

    monkeypatch.setattr(model_runner, "num_emitted", emitted)
    assert main(SHORT) == 1
    _, _, random, guided, _ = capsys.readouterr().out.split("\n\n")
    if fault == "none accepted":
        assert "FAILED" not in random
        assert re.search(r"ok +as AR.*\n +FAILED +drafts +0 of", guided)
    else:
        assert re.search("FAILED +as AR", guided)


def test_a_good_round_passes(judged):
    assert all(verdict.passed for verdict in verdicts.judge(*judged))
    assert [verdict.check for verdict in verdicts.judge(*judged)] == [*CHECKS, "as AR", "drafts"]


@pytest.mark.parametrize("check", FAULTS)
def test_each_check_finds_its_fault(judged, check):
    job, alone, together, plain = judged
    spoilt = verdicts.judge(job, *FAULTS[check](alone, together, plain))
    assert check in [verdict.check for verdict in spoilt if not verdict.passed]


@pytest.mark.parametrize("tokens", [(5,) * 20, ()], ids=["stuck", "nothing"])
def test_a_text_that_is_stuck_or_empty_is_found(judged, tokens):
    job, alone, together, plain = judged
    found = verdicts.judge(job, with_result(alone, "live", token_ids=tokens), together, plain)
    assert "text" in [verdict.check for verdict in found if not verdict.passed]
