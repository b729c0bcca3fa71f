"""Checkpoints: what is supported loads exactly, the rest is refused by name before a tensor is allocated."""

import dataclasses
import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file

from hocket.model import checkpoint
from hocket.model.checkpoint import CheckpointError, load_checkpoint, read_folder
from hocket.model.random_checkpoint import random_tensors, write_random_checkpoint
from hocket.model.weights import Kind, main_weights, mtp_weights
from tests.unit.model.checkpoints import DEEP, SMALL, refused, write

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A small checkpoint; tests copy it before they damage it."""
    folder = tmp_path_factory.mktemp("source")
    write_random_checkpoint(folder, SMALL, seed=3)
    return folder


@pytest.fixture
def stored(source):
    return load_file(source / "model.safetensors")


# -- what is supported


def test_every_tensor_comes_back_as_it_was_written(source):
    loaded = load_checkpoint(source)
    expected = random_tensors(SMALL, seed=3)
    assert loaded.config == SMALL
    assert list(loaded.tensors) == list(main_weights(SMALL))
    assert list(loaded.mtp) == list(mtp_weights(SMALL))
    for name, tensor in (loaded.tensors | loaded.mtp).items():
        assert tensor.dtype == (torch.int64 if name.endswith("tid2eid") else torch.float32), name
        assert torch.equal(tensor, expected[name]), name


def test_shards_load_as_one_file_does(source, tmp_path):
    write_random_checkpoint(tmp_path, SMALL, seed=3, shards=3)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    one, many = load_checkpoint(source), load_checkpoint(tmp_path)
    assert one.tensors.keys() == many.tensors.keys()
    assert all(torch.equal(one.tensors[name], many.tensors[name]) for name in one.tensors)
    assert one.mtp.keys() == many.mtp.keys()


def test_bfloat16_keeps_the_sensitive_tensors_in_float32(source):
    full, half = load_checkpoint(source), load_checkpoint(source, dtype=torch.bfloat16)
    kept = 0
    for name, spec in main_weights(SMALL).items():
        if spec.kind in (Kind.FLOAT, Kind.IDS):
            kept += 1
            assert torch.equal(half.tensors[name], full.tensors[name]), name
        else:
            assert half.tensors[name].dtype == torch.bfloat16, name
            assert torch.equal(half.tensors[name], full.tensors[name].bfloat16()), name
    assert kept > 40


def test_bfloat16_files_and_int32_tables_load_exactly(stored, tmp_path):
    narrow = {n: t.to(torch.int32) if t.dtype == torch.int64 else t.bfloat16() for n, t in stored.items()}
    loaded = load_checkpoint(write(tmp_path, narrow))
    for name, tensor in (loaded.tensors | loaded.mtp).items():
        assert torch.equal(tensor, narrow[name].to(tensor.dtype)), name
        assert tensor.dtype in (torch.int64, torch.float32)


def test_draft_tensors_are_apart_and_may_be_absent_unread_or_surplus(source, stored, tmp_path):
    main = {n: t for n, t in stored.items() if not n.startswith("mtp.")}
    assert len(load_checkpoint(source).mtp) == len(stored) - len(main) > 30
    assert load_checkpoint(source, load_mtp=False).mtp == {}
    for name, tensors, config in (
        ("absent", main, SMALL),
        ("surplus", stored, dataclasses.replace(SMALL, num_nextn_predict_layers=0, draft_kind=None)),
    ):
        (tmp_path / name).mkdir()
        loaded = load_checkpoint(write(tmp_path / name, tensors, config))
        assert (set(loaded.tensors), loaded.mtp) == (set(main), {})


def test_a_loaded_tensor_does_not_depend_on_the_file_any_more(stored, tmp_path):
    loaded = load_checkpoint(write(tmp_path, stored))
    os.truncate(tmp_path / "model.safetensors", 0)
    assert torch.equal(loaded.tensors["embed.weight"], stored["embed.weight"])


# -- wrong tensors


@pytest.mark.parametrize("value", [-1, 3])
def test_expert_ids_outside_the_experts_are_refused(stored, tmp_path, value):
    stored["layers.0.ffn.gate.tid2eid"][5, 1] = value
    write(tmp_path, stored)
    with pytest.raises(CheckpointError, match=r"tid2eid': expert ids must be in \[0, 2\], got"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("head.weight"), "the checkpoint misses tensors: head.weight$"),
        (
            lambda t: [t.pop(n) for n in list(t) if "w2" in n and "layers" in n],
            r"misses tensors: .* and 8 more$",
        ),
        (lambda t: t.pop("mtp.0.e_proj.weight"), "misses tensors: mtp.0.e_proj.weight$"),
        (lambda t: t.update({"extra": torch.ones(2)}), "has unknown tensors: extra$"),
        (
            lambda t: t.update({"mtp.1.enorm.weight": torch.ones(64)}),
            "has unknown tensors: mtp.1.enorm.weight$",
        ),
        (
            lambda t: t.update({"embed.weight": torch.ones(64, 128)}),
            r"shape must be \[128, 64\] \(F32\), got \[64, 128\]",
        ),
        (
            lambda t: t.update({"norm.weight": torch.ones(64, 1)}),
            r"shape must be \[64\] \(F32\), got \[64, 1\]",
        ),
        (
            lambda t: t.update({"norm.weight": torch.ones(64).half()}),
            "'norm.weight': dtype must be F32, BF16, got F16",
        ),
        (lambda t: t.update({"norm.weight": torch.ones(64).double()}), "got F64: not supported"),
        (
            lambda t: t.update({"embed.weight": torch.ones(128, 64).to(torch.float8_e5m2)}),
            "got F8_E5M2: not supported",
        ),
        (
            lambda t: t.update({"layers.0.ffn.gate.tid2eid": torch.ones(128, 2)}),
            "dtype must be I32, I64, got F32",
        ),
    ],
)
def test_missing_surplus_and_misshapen_tensors_are_refused(stored, tmp_path, change, message):
    change(stored)
    refused(write(tmp_path, stored), message)


def test_other_drafts_are_refused_unless_they_are_not_wanted(stored, tmp_path):
    write(tmp_path, stored, dataclasses.replace(SMALL, draft_kind="dspark"))
    refused(tmp_path, "dspark draft layers are not supported; load without MTP")
    assert load_checkpoint(tmp_path, load_mtp=False).mtp == {}


def test_the_dtype_asked_for_is_checked(source):
    with pytest.raises(ValueError, match=r"dtype must be torch.float32 or torch.bfloat16, got torch.float16"):
        load_checkpoint(source, dtype=torch.float16)


def test_a_huge_configuration_is_refused_by_shape_before_anything_is_allocated(source, tmp_path):
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    huge = dataclasses.replace(SMALL, vocab_size=1 << 24, hidden_size=1 << 20)
    (tmp_path / "config.json").write_text(json.dumps(huge.to_release_dict()))
    refused(tmp_path, r"'embed.weight': shape must be \[16777216, 1048576\]")


# -- damaged files


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_files_cut_anywhere_are_refused(source, tmp_path, size):
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    data = (source / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:size])
    refused(tmp_path, "too short|truncated|after the last tensor")


def test_a_file_that_shrinks_while_it_is_read_gives_an_error_and_no_model(source, tmp_path):
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    checked = read_folder(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "read_folder", lambda _: checked)
        with pytest.raises(CheckpointError, match="ended while its tensors were read"):
            load_checkpoint(tmp_path)


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no such regular file"):
        read_folder(tmp_path)


# -- shards and folders


def index_of(folder, change):
    path = folder / INDEX
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def set_home(value):
    return lambda raw: raw["weight_map"].update({"embed.weight": value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_home("../model-00001-of-00002.safetensors"), "must be the plain name of a .safetensors file"),
        (set_home("/etc/x.safetensors"), "must be the plain name"),
        (set_home("sub/x.safetensors"), "must be the plain name"),
        (set_home("sub\\x.safetensors"), "must be the plain name"),
        (set_home("..safetensors"), "must be the plain name"),
        (set_home("x\0.safetensors"), "must be the plain name"),
        (set_home("a" * 300 + ".safetensors"), "must be the plain name"),
        (set_home("config.json"), "must be the plain name"),
        (set_home(7), "must be the plain name"),
        (set_home("other.safetensors"), "misses tensors|has unknown|no such regular file"),
        (
            lambda raw: raw["weight_map"].update(more="model-00001-of-00002.safetensors"),
            "misses tensors: more$",
        ),
        (lambda raw: raw["weight_map"].pop("embed.weight"), "has unknown tensors: embed.weight$"),
        (lambda raw: raw.update(weight_map={}), "weight_map must be a non-empty JSON object"),
        (lambda raw: raw.update(weight_map=[1]), "weight_map must be a non-empty JSON object"),
        (lambda raw: raw.pop("weight_map"), "weight_map must be a non-empty JSON object"),
    ],
)
def test_hostile_indices_are_refused(tmp_path, change, message):
    write_random_checkpoint(tmp_path, SMALL, shards=2)
    index_of(tmp_path, change)
    refused(tmp_path, message)


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"[1]", DEEP])
def test_an_index_that_is_no_json_object_is_refused(tmp_path, content):
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(INDEX)):
        read_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    write_random_checkpoint(tmp_path, SMALL, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(tmp_path, "model-00002-of-00002.safetensors: no such regular file")


def test_a_folder_holds_one_way_to_load_it(source, tmp_path):
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    refused(tmp_path, "holds neither model.safetensors nor model.safetensors.index.json")
    write_random_checkpoint(tmp_path, SMALL, shards=2)
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    refused(tmp_path, "holds both model.safetensors and model.safetensors.index.json; remove one")
