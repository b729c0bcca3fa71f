"""A report is whole or not there."""

import json
import os
import threading

import pytest

from hocket.cli import report_file
from hocket.cli.report_file import ReportFile


def test_it_stands_there_once_it_is_written(tmp_path):
    place = tmp_path / "report"
    with ReportFile(place) as report:
        assert not place.exists()
        report.write({"passed": True})
    assert place.read_text() == '{\n "passed": true\n}\n'
    assert os.listdir(tmp_path) == ["report"]


def test_a_full_disk_is_told_with_the_name_of_the_file():
    with ReportFile("/dev/full") as report, pytest.raises(OSError, match="device: '/dev/full'"):
        report.write({"a": 1})


def test_an_old_one_stays_until_then(tmp_path):
    place = tmp_path / "report"
    place.write_text("old\n")
    place.chmod(0o640)
    with ReportFile(place):
        pass
    assert place.read_text() == "old\n"
    with ReportFile(place) as report:
        assert place.read_text() == "old\n"
        report.write({"passed": False})
    assert json.loads(place.read_text()) == {"passed": False}
    assert place.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["report"]


@pytest.mark.parametrize("fails", ["what is no JSON", "a full disk"])
def test_what_fails_half_way_leaves_the_old_one(fails, tmp_path, monkeypatch):
    place = tmp_path / "report"
    place.write_text("old\n")

    def full(*_):
        raise OSError("No space left on device")

    if fails == "a full disk":
        monkeypatch.setattr(report_file.Path, "replace", full)
    with (
        pytest.raises((TypeError, OSError), match=r"serializable|No space left"),
        ReportFile(place) as report,
    ):
        report.write({"passed": object() if fails == "what is no JSON" else True})
    assert place.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["report"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "place").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "place" / "report")
    with ReportFile(link) as report:
        report.write({})
    assert link.is_symlink()
    assert json.loads((tmp_path / "place" / "report").read_text()) == {}


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with ReportFile(pipe) as report:
        report.write({"passed": True})
    reader.join(10)
    assert json.loads(read[0]) == {"passed": True}
    assert pipe.is_fifo()


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path, monkeypatch):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)), ReportFile(tmp_path):
        pass
    with pytest.raises(FileNotFoundError, match="'/nowhere/report'"), ReportFile("/nowhere/report"):
        pass
    old = tmp_path / "report"
    old.write_text("old\n")
    monkeypatch.setattr(report_file.os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=str(old)), ReportFile(old):
        pass
    assert old.read_text() == "old\n"
