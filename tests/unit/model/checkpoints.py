"""What the tests of checkpoint loading share: a small model, a writer, and the shape of a refusal."""

import json

import pytest
from safetensors.torch import save_file

from hocket.model import checkpoint
from hocket.model.checkpoint import CheckpointError, load_checkpoint
from hocket.model.random_checkpoint import tiny_config

SMALL = tiny_config(compress_ratios=(0, 128, 4), n_routed_experts=3)
DEEP = b'{"a":' * 100_000  # deeper than any parser recurses


def write(folder, tensors, config=SMALL):
    (folder / "config.json").write_text(json.dumps(config.to_release_dict()))
    save_file(tensors, folder / "model.safetensors")
    return folder


def refused(folder, message, **options):
    """The load fails with the message, reads no tensor, and changes no file."""
    before = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            checkpoint, "_bytes", lambda _: pytest.fail("a tensor was read before all were checked")
        )
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(folder, **options)
    assert {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
