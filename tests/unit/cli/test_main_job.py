"""What the main job prints of a run: steps and chunk offsets in a line."""

import pytest

from hocket import Phase, SchedulerOutput
from hocket.cli.main_job import shortened, step_string

LETTERS = {"P": Phase.PREFILL, "D": Phase.DECODE}


def steps(letters: str) -> list[SchedulerOutput]:
    return [SchedulerOutput(number, LETTERS[letter]) for number, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("letters", "said"),
    [
        ("", ""),
        ("DP", "D P"),
        ("PPPPD", "P P P P D"),
        ("PDDDDD", "P D x5"),
        ("PPPPPDP", "P x5 D P"),
        ("PD" * 20, " ".join("PD" * 20)),
        ("PD" * 30 + "P" * 6, " ".join("PD" * 16) + " ... P D P D P D P x6"),
    ],
)
def test_step_string(letters: str, said: str) -> None:
    assert step_string(steps(letters)) == said


def test_many_offsets_are_shortened_and_counted() -> None:
    assert shortened([0, 2048, 4096]) == "0 2048 4096"
    assert shortened(range(16)) == " ".join(map(str, range(16)))
    assert shortened(range(20)) == "0 1 2 3 4 5 6 7 ... (20 chunks) ... 16 17 18 19"
