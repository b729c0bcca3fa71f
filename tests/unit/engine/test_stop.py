"""Stop strings on growing text, against the definition on the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.engine.executor import InlineExecutor, ThreadExecutor
from hocket.engine.stop import StopStrings
from hocket.runner.api import RunnerOutput

TEXT = st.text("ab!", max_size=3)


@given(pieces=st.lists(TEXT, max_size=8), stops=st.lists(st.text("ab!", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(pieces, stops):
    whole = "".join(pieces)
    checker, said, ends_at = StopStrings(stops), "", None
    for count, piece in enumerate(pieces, 1):
        match = checker.add(piece)
        said += match.text
        seen = "".join(pieces[:count])
        assert seen.startswith(said)
        # Whatever is held back is a proper beginning of a stop string.
        if not match.stopped and said != seen:
            assert any(stop.startswith(seen[len(said) :]) for stop in stops)
        if match.stopped:
            ends_at = count
            break
    first = next((n for n in range(len(pieces) + 1) if any(s in "".join(pieces[:n]) for s in stops)), None)
    assert ends_at == first
    if first is None:
        assert said + checker.flush() == whole
    else:
        seen = "".join(pieces[:first])
        assert said == seen[: min(seen.index(stop) for stop in stops if stop in seen)]


def test_unarmed_text_passes_unseen():
    checker = StopStrings(["ab"])
    assert checker.add("xab", armed=False) == ("xab", False)
    assert checker.add("b", armed=True) == ("b", False)
    assert checker.add("a") == ("", False)
    assert checker.add("b") == ("", True)


class Counts:
    """A runner that notes the order, and fails when told."""

    def __init__(self):
        self.seen = []

    def execute(self, output, new_requests=()):
        self.seen.append(output)
        if output == "fail":
            raise OSError("lost")
        return None if output == "notice" else RunnerOutput(output, ())


def take(executor):
    outcome = executor.collect().result
    assert executor.collect().result is outcome, "looking takes nothing away"
    executor.drop()
    return outcome


@pytest.mark.parametrize("kind", [InlineExecutor, ThreadExecutor])
def test_executors_keep_the_order_and_skip_outputs_without_rows(kind):
    runner = Counts()
    executor = kind(runner)
    for output in (1, "notice", 2, 3):
        executor.submit(output, ())
    assert [take(executor).step_id for _ in range(3)] == [1, 2, 3]
    assert not executor.ready()
    executor.shutdown()
    assert runner.seen == [1, "notice", 2, 3]


def test_nothing_runs_after_a_failure_in_the_worker():
    runner, woken = Counts(), []
    executor = ThreadExecutor(runner, on_result=lambda: woken.append(1))
    for output in (1, "fail", 2, 3):
        executor.submit(output, ())
    executor.shutdown()
    outcomes = [take(executor) for _ in range(4)]
    assert outcomes[0] == RunnerOutput(1, ())
    assert all(isinstance(outcome, OSError) for outcome in outcomes[1:])
    assert runner.seen == [1, "fail"]
    assert len(woken) == 4
