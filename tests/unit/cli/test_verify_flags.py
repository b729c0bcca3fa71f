"""`hocket verify`: a flag that what was asked for would not look at is refused before anything runs."""

import pytest

from hocket.cli import verify
from hocket.cli.main import main


@pytest.fixture(autouse=True)
def _runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str) -> None:
        raise AssertionError(f"{name} would run")

    monkeypatch.setattr(verify, "_tool", run)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "5"], "--seed must be given with --soak only"),
        (["--seed", "0"], "--seed must be given with --soak only"),
        (["--profile", "quick", "--seed", "5"], "--seed must be given with --soak only"),
        (["--proofs", "--seed", "5"], "--seed must be given with --soak only"),
        (["--claims", "--seed", "5"], "--seed must be given with --soak only"),
        (["--refuted", "--seed", "5"], "--seed must be given with --soak only"),
        (["--soak", "1", "--seed", "-3"], "--seed must be an int >= 0, got -3"),
        (["--soak", "1", "--profile", "quick"], "--profile must not be given with --soak"),
        (["--soak", "1", "--processes", "3"], "--processes must not be given with --soak"),
        (["--claims", "--profile", "standard"], "--profile must not be given with --claims"),
        (["--refuted", "harm", "--processes", "2"], "--processes must not be given with --refuted"),
        (["--processes", "0"], "--processes must be an int in [1, 64], got 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_go_nowhere_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hocket verify: error: {message}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--soak", "1"], ["--soak", "1", "--seed", "0"], ["--proofs", "--processes", "1"], []], ids=str
)
def test_the_others_run(words: list[str]) -> None:
    with pytest.raises(AssertionError, match="would run"):
        main(["verify", *words])
