"""Devices that are asked for: there, or an error that says what is missing."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from hocket.runner.device import DeviceRuntime, DeviceUnavailableError, open_device, runtime_for


def test_the_cpu_is_always_there():
    assert open_device("cpu") == torch.device("cpu")


def accelerator(monkeypatch, found):
    def current_accelerator(check_available=False):
        assert check_available
        return found

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)


class Broken:
    """Finds torch_npu, which cannot be loaded."""

    def __init__(self, error):
        self.error = error

    def find_spec(self, name, path=None, target=None):
        if name == "torch_npu":
            raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libhccl.so: cannot open shared object file"),
        RuntimeError("two lines\n  of an error"),
        OSError("version"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_error_of_an_import_is_told_with_what_to_do(monkeypatch, error):
    monkeypatch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with pytest.raises(DeviceUnavailableError) as found:
        open_device("npu")
    said = str(found.value)
    assert f"{type(error).__name__}: {' '.join(str(error).split())}" in said
    for word in ("hocket[npu]", "CANN", "set_env.sh", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"):
        assert word in said
    assert "\n" not in said
    assert found.value.__cause__ is error


@pytest.mark.parametrize("name", ["npu", "cuda"])
@pytest.mark.parametrize(
    ("there", "said"), [(None, "finds no accelerator"), (torch.device("xpu"), "finds 'xpu'")]
)
def test_another_accelerator_or_none_is_not_taken_instead(monkeypatch, name, there, said):
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    accelerator(monkeypatch, there)
    with pytest.raises(
        DeviceUnavailableError, match=f"device {name!r} cannot be used: torch .* {said}; it needs"
    ):
        open_device(name)


def test_the_one_that_was_asked_for(monkeypatch):
    chosen = []
    accelerator(monkeypatch, torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    assert open_device("cuda") == torch.device("cuda", 0)
    assert chosen == [0]


def test_the_null_form_copies_and_waits_for_nothing():
    runtime = runtime_for(torch.device("cpu"), 3)
    assert type(runtime) is DeviceRuntime
    assert not runtime.asynchronous
    array = np.arange(6).reshape(2, 3)
    there = runtime.put({"a": array, "b": np.zeros(0, np.float32)})
    array[:] = 0
    assert there["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (there["b"].dtype, there["b"].shape) == (torch.float32, (0,))
    fetched = runtime.fetch([there["a"]])
    assert fetched.ready()
    assert fetched.wait()[0] is there["a"]
    assert runtime.largest(there["a"], 99) == 5
