"""`hocket demo`: right answer, interleaved, identical; a wrong answer or a mismatch is exit status 1."""

import os
import re
import subprocess
import sys

import pytest
import torch

from hocket.cli import demo, main_job
from hocket.cli.main import main
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.obs.trace import ScheduleRecord, read_trace


@pytest.mark.parametrize("depth", [1, 2])
def test_as_a_user_runs_it(depth, tmp_path):
    trace = tmp_path / "trace.ndjson"
    command = [sys.executable, "-m", "hocket", "demo", "--async-depth", str(depth), "--trace", str(trace)]
    # One thread: several tests run at a time, and threads that wait for each other waste the cores of all.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ORBIT-7319 | MAPLE-6047 | QUARTZ-2851   (right)" in done.stdout
    assert re.search(r"chunk offsets +0 2048 4096 6144\n", done.stdout)
    assert re.search(r"steps +P D P D P D P D P D", done.stdout)
    assert "identical to isolated run: yes" in done.stdout
    for name in ("needle", "live"):
        for run in ("alone", "together"):
            assert re.search(rf"{name} +{run} +[\d,]+ ms +[\d,]+ ms", done.stdout)
    assert re.search(r"both together +100%.*prefill [\d,]+ tok/s, decode [\d,]+ tok/s", done.stderr)
    outputs = [r.output for r in read_trace(trace).records if isinstance(r, ScheduleRecord)]
    phases = [output.phase for output in outputs if not output.is_empty]
    assert phases[:10] == [Phase.PREFILL, Phase.DECODE] * 5
    chunks = [
        o.num_computed_tokens for o in outputs if o.phase == Phase.PREFILL and "needle" in o.request_ids
    ]
    assert chunks == [(0,), (2048,), (4096,), (6144,)]


@pytest.mark.parametrize(
    "flags",
    [
        ["--prefill-chunk-size", "1000", "--async-depth", "3"],
        ["--decode-steps-per-turn", "2", "--long-prefill-token-threshold", "4096"],
        ["--prefill-steps-per-turn", "2", "--no-reserve-full-prompt", "--block-size", "32"],
    ],
    ids=" ".join,
)
def test_other_knobs(flags, capsys):
    assert main(["demo", "--no-progress", *flags]) == 0, capsys.readouterr().out
    assert "identical to isolated run: yes" in capsys.readouterr().out


def test_with_drafts_of_a_random_mtp_layer(capsys):
    """The shipped checkpoint has no MTP layer: a random one is added, and hardly ever right."""
    assert main(["demo", "--no-progress", "--num-speculative-tokens", "1"]) == 0
    said = capsys.readouterr().out
    assert "speculative tokens: 1, by a random MTP layer (the checkpoint has none)" in said
    assert "identical to isolated run: yes" in said
    found = re.search(r"acceptance rate: needle (\d+) of (\d+) drafts .*, all (\d+) of (\d+) drafts", said)
    accepted, offered, all_accepted, all_offered = map(int, found.groups())
    assert 0 <= accepted <= offered <= 14
    assert offered < all_offered
    assert accepted <= all_accepted <= all_offered


SHORT = ["demo", "--no-progress", "--max-model-len", "1024", "--prefill-chunk-size", "128"]


@pytest.fixture
def short(monkeypatch):
    """The same with a prompt of 700 tokens."""
    real = main_job.needle_prompt
    monkeypatch.setattr(main_job, "needle_prompt", lambda tokens: real(700))


@pytest.mark.parametrize("chunk", [47])
def test_a_live_request_of_many_chunks_is_decoding_before_the_needle_comes(chunk, short, capsys):
    """It is 96 tokens long; the needle's chunks used to take turns with it, which is no silence of decode."""
    words = [*SHORT[:-1], str(chunk), "--max-model-len", "2048", "--async-depth", "1"]
    assert main(words) == 0, capsys.readouterr().out
    assert "live decode     between all chunks\n" in capsys.readouterr().out


def test_turns_of_several_steps_are_said_as_they_are(short, capsys):
    assert main([*SHORT, "--prefill-steps-per-turn", "2", "--decode-steps-per-turn", "3"]) == 0
    said = capsys.readouterr().out
    assert "live decode     after 2 prefill steps at most (prefill_steps_per_turn = 2)\n" in said


def test_requests_that_cannot_run_together_are_refused(short, monkeypatch, capsys):
    assert main([*SHORT, "--max-num-seqs", "1"]) == 2
    assert "max_num_seqs must be at least 2, got 1: two requests" in capsys.readouterr().err
    assert main([*SHORT, "--watermark", "1.0"]) == 2
    assert "kv_cache_memory or watermark leaves no room for both" in capsys.readouterr().err


def test_one_thread_is_one_thread(short, capsys):
    before = torch.get_num_threads()
    try:
        assert main([*SHORT, "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(before)
    assert ", 1 thread, " in capsys.readouterr().out


def step(phase, *names):
    return SchedulerOutput(1, phase, request_ids=names)


def test_the_longest_silence_reaches_to_the_last_chunk():
    steps = [step(Phase.PREFILL, "live"), step(Phase.PREFILL, "needle"), step(Phase.DECODE, "live")]
    steps += [step(Phase.PREFILL, "live"), step(Phase.PREFILL, "needle"), step(Phase.DECODE, "needle")]
    assert main_job.Observed(outputs=steps).longest_silence() == 2


def test_a_wrong_answer_is_status_1(short, monkeypatch, capsys):
    assert main(SHORT) == 0
    capsys.readouterr()
    monkeypatch.setattr(main_job, "ANSWER", "ORBIT-0000")
    monkeypatch.setattr(demo, "ANSWER", "ORBIT-0000")
    assert main(SHORT) == 1
    assert "WRONG, expected ORBIT-0000" in capsys.readouterr().out


def test_a_mismatch_is_status_1(short, monkeypatch, capsys):
    """The live request says something else beside the needle than alone."""
    real = main_job.observe

    def spoilt(job, requests, *rest):
        observed = real(job, requests, *rest)
        if len(requests) == 2:
            from dataclasses import replace

            result = observed.results["live"]
            observed.results["live"] = replace(result, token_ids=(*result.token_ids[:-1], 3))
        return observed

    monkeypatch.setattr(main_job, "observe", spoilt)
    assert main(SHORT) == 1
    assert "identical to isolated run: no" in capsys.readouterr().out


def test_silence_of_the_live_request_is_status_1(short, monkeypatch, capsys):
    """Two prefill dispatches in a row where one is allowed."""
    monkeypatch.setattr(main_job.Observed, "longest_silence", lambda self: 2)
    assert main(SHORT) == 1
    assert "SILENT for 2 prefill steps" in capsys.readouterr().out
