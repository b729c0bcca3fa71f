"""Every theorem is proved of the functions as they are, and fails of functions that are not."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hocket.cli.main import main
from hocket.core.config import SchedulerConfig, WaitingBound
from hocket.kv import counts
from hocket.kv.counts import PoolCounts
from hocket.runner import packed_rules, ring_rules, slot_rules
from hocket.sched import kernel
from hocket.sched.kernel import Epochs, Progress, Turn
from hocket_kernels import slot_rule
from hocket_proofs import inversion, jobs, verify
from hocket_proofs.jobs import PROFILES, Done, Job
from hocket_proofs.theorems import DECISIONS, THEOREMS

ALL = tuple(range(len(THEOREMS)))


def found(k: int) -> str:
    return jobs.run(Job("proof", f"theorem {k}", k, k + 1, "quick")).broken


@pytest.mark.parametrize("k", ALL, ids=lambda k: f"{THEOREMS[k].property}, {'/'.join(THEOREMS[k].parts)}")
def test_theorem_is_proved(k: int) -> None:
    done = jobs.run(Job("proof", f"theorem {k}", k, k + 1, "quick"))
    assert done.broken == ""
    assert done.cases == done.exhausted > 0


def test_every_profile_proves_all_of_them() -> None:
    for profile in PROFILES.values():
        assert [job for job in jobs.plan(profile) if job.kind in verify.PROOFS] == jobs.proofs(profile)
    assert len({theorem.says for theorem in THEOREMS}) == len(THEOREMS)


Fault = tuple[Any, str, Callable[..., Any]]

# Part of the theorem's table entry -> a fault that must make that very theorem fail.
FAULTS: dict[str, Fault] = {
    "rotation.bounded_wait": (
        kernel,
        "turn_after",
        lambda turn, ran, p, d: (
            Turn(kernel.other_phase(turn.owed), 0) if ran == turn.owed and turn.steps >= p else turn
        ),
    ),
    "rotation.choice": (kernel, "choose_phase", lambda owed, mine, other: owed if mine else kernel.NO_PHASE),
    "rotation.admission_bound": (kernel, "overdue_after", lambda overdue, phase, admitted: overdue),
    "rotation.senior_once_it_fits": (
        SchedulerConfig,
        "waiting_bound",
        lambda self: WaitingBound(
            self.decode_steps_per_turn, self.prefill_steps_per_turn, 9, self.async_depth + 1
        ),
    ),
    "senior.shortage": (kernel, "uncovered", lambda need, outstanding: 0),
    "senior.results": (counts, "after_settle", lambda c, n: PoolCounts(c.free, c.owned, c.fenced - n)),
    "senior.victims_exist": (
        kernel,
        "may_take",
        lambda free, promised, own, aside: free - promised - aside,
    ),
    "senior.rows_of_held": (
        kernel,
        "may_have_row",
        lambda phase, runnable, held, gone: runnable == phase and (phase == kernel.DECODE or not held),
    ),
    "senior.drained_in_time": (kernel, "has_room", lambda in_flight, depth: in_flight <= depth),
    "senior.stage": (counts, "after_return", lambda c, n: PoolCounts(c.free, c.owned - n, c.fenced)),
    "rows.homogeneity": (
        kernel,
        "may_have_row",
        lambda phase, runnable, held, gone: runnable == phase or held,
    ),
    "rows.chunks": (kernel, "chunk_len", lambda at, end, size, left, alignment: min(size, end - at, left)),
    "epochs.no_stale_mutation": (kernel, "is_current", lambda row, epoch, running: row == epoch),
    "epochs.epoch_alone": (
        kernel,
        "epochs_at_admission",
        lambda epochs, resumed: Epochs(epochs.own, epochs.unused),
    ),
    "epochs.drained_readmission": (kernel, "may_admit", lambda rows, running, seats: running < seats),
    "progress.accounting": (
        kernel,
        "progress_decode_processed",
        lambda progress, length, accepted: Progress(
            progress.computed, progress.processed + accepted, progress.placeholders - length
        ),
    ),
    "progress.limits": (
        kernel,
        "end_after_token",
        lambda outputs, limit, least, ends: kernel.ENDS_BY_LENGTH if outputs > limit else kernel.GOES_ON,
    ),
    "progress.completion": (
        kernel,
        "progress_chunk_processed",
        lambda progress, length, reserved: Progress(
            progress.computed, progress.processed, progress.placeholders - reserved
        ),
    ),
    "blocks.conservation": (
        counts,
        "after_fence",
        lambda c, n: PoolCounts(c.free + n, c.owned - n, c.fenced + n),
    ),
    "blocks.promises": (kernel, "may_take", lambda free, promised, own, aside: free - aside),
    "blocks.writes": (
        kernel,
        "writes_column",
        lambda column, size, first, end: first // size <= column < end // size,
    ),
    "windows.history": (
        kernel,
        "outdated_columns",
        lambda done, window, size, columns: min(columns, max(0, done + 1 - window) // size) if window else 0,
    ),
    "windows.growth": (kernel, "columns_for", lambda tokens, size: tokens // size + 1),
    "victims.search": (kernel, "helps", lambda gain, need, within: any(more > 1 for more in gain)),
    "victims.sparing": (
        kernel,
        "is_superfluous",
        lambda need, covered, gain, designated: designated and kernel.fits(need, covered),
    ),
    "victims.turns": (kernel, "victims", lambda need, within, gains: tuple(True for _ in gains)),
    "victims.all_shapes": (
        kernel,
        "designate",
        lambda need, within, gains: () if kernel.fits(need, within) else tuple(range(len(gains))),
    ),
    "capacity.enough_starts": (
        kernel,
        "first_entry",
        lambda first, reach, size: first + (reach - first) % size,
    ),
    "capacity.fold": (
        kernel,
        "larger_need",
        lambda need, groups, start, reach, total: kernel.blocks_of_all_at(groups, start, reach, total),
    ),
    "sums.rows_in_flight": (
        kernel,
        "reserved_tokens",
        lambda phase, length, samples: length if phase == kernel.DECODE else 1 if samples else -1,
    ),
    "capacity.tables": (
        kernel,
        "blocks_at",
        lambda group, start, reach, total: (
            kernel.columns_for(min(start + reach, total), group.block_size)
            - kernel.outdated_columns(start + reach, group.window, group.block_size, total)
        ),
    ),
    "packed.exact_rules": (
        packed_rules,
        "row_problem",
        lambda row, start, length, seq, begin, end, done: packed_rules.FINE,
    ),
    "packed.tables": (
        packed_rules,
        "columns_returned",
        lambda start, window, size: -(-(start - window) // size) if start > window else 0,
    ),
    "ring.never_shared": (ring_rules, "buffer_of", lambda step, buffers: step % (buffers - 1)),
    "slot_assignment.invariant": (
        slot_rules,
        "between",
        lambda below, slot, above: max(below, min(slot, above - 1)),
    ),
    "slot_assignment.newcomers": (slot_rules, "enough", lambda free, newcomers: newcomers <= free + 1),
    "slot_assignment.loops": (slot_rules, "is_given", lambda place, newcomers: place < newcomers - 1),
    "slots.injective": (
        slot_rule,
        "physical_row",
        lambda position, column, block, size, ratio: (
            position // ratio + (block - column) * (size // ratio - 1)
        ),
    ),
}


@pytest.mark.parametrize("part", FAULTS)
def test_fault_makes_its_theorem_fail(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (k,) = (k for k in ALL if part in THEOREMS[k].parts)
    owner, name, wrong = FAULTS[part]
    assert name in vars(owner)
    monkeypatch.setattr(owner, name, wrong)
    assert found(k)


def test_no_theorem_goes_without_a_fault() -> None:
    tried = set(FAULTS)
    assert [t.parts for t in THEOREMS if t.about == DECISIONS and not tried & set(t.parts)] == []


def test_every_function_of_the_kernel_is_spoken_of() -> None:
    called = inversion.users()
    kernels = {f"{b.module.__name__}.{b.function}" for b in inversion.branches()}
    assert kernels <= set(called)


def test_every_inverted_branch_makes_a_theorem_fail() -> None:
    called, survivors, count = inversion.users(), [], 0
    for branch in inversion.branches():
        count += 1
        with inversion.inverted(branch):
            if not inversion.failing(called[f"{branch.module.__name__}.{branch.function}"]):
                survivors.append(str(branch))
    assert survivors == []
    assert count >= 40


def test_an_unnoticed_branch_would_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    branch = next(b for b in inversion.branches() if b.function == "other_phase")
    real = kernel.other_phase
    with inversion.inverted(branch):
        assert kernel.other_phase(kernel.DECODE) == kernel.DECODE
        assert inversion.failing(()) == ""
    assert kernel.other_phase is real
    assert "phase == DECODE" in str(branch)


def test_command_runs_the_proofs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (k,) = (k for k in ALL if "rows.limits" in THEOREMS[k].parts)
    asked: list[Job] = []

    def work(given: list[Job], processes: int, say: object) -> list[Done]:
        """The budgets for real, the others (which have tests of their own) as if they held."""
        asked[:] = given
        held = [Done(job, 0.0, 1, 1, 0, 0) for job in given if job.family != f"theorem {k}"]
        return [jobs.run(Job("proof", f"theorem {k}", k, k + 1, "quick")), *held]

    monkeypatch.setattr(verify, "work", work)
    assert main(["verify", "--proofs"]) == 0
    assert sorted(asked) == sorted(jobs.proofs(PROFILES["standard"]))
    out = capsys.readouterr().out
    assert "L1 bounded-wait" in out
    assert "CrossHair" in out
    assert "lock-step" not in out
    monkeypatch.setattr(kernel, "has_room", lambda in_flight, depth: in_flight <= depth)
    assert main(["verify", "--proofs"]) == 1
    assert "S9 budgets by Z3: a dispatch keeps to the depth" in capsys.readouterr().out


def test_without_z3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "find_spec", lambda name: None if name in ("z3", "crosshair") else object())
    assert verify.missing() == {"proof": "verify", "contract": "verify"}
    verdicts = verify.judge([], PROFILES["quick"], verify.missing(), verify.PROOFS)
    assert {v.verdict for v in verdicts} == {"not run: pip install 'hocket[verify]'"}


def test_the_table_needs_neither_prover() -> None:
    code = (
        "import sys; sys.modules['z3'] = sys.modules['crosshair'] = None\n"
        "from hocket_proofs import claims; print('L1 bounded-wait' in claims.page())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "True\n"
