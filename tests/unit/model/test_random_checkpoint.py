"""Random checkpoints: complete, without constants, deterministic, and what transformers reads."""

import json

import pytest
import torch

from hocket.model.checkpoint import load_checkpoint
from hocket.model.random_checkpoint import TINY_CONFIG, random_tensors, tiny_config, write_random_checkpoint
from hocket.model.weights import Kind, main_weights, mtp_weights

SMALL = tiny_config(compress_ratios=(0, 128, 4), n_routed_experts=3)


def test_names_shapes_and_kinds_are_those_of_the_model():
    tensors = random_tensors(TINY_CONFIG)
    specs = main_weights(TINY_CONFIG) | mtp_weights(TINY_CONFIG)
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: s.shape for n, s in specs.items()}
    for name, spec in specs.items():
        assert (tensors[name].dtype == torch.int64) == (spec.kind is Kind.IDS), name


def test_nothing_is_constant_zero_or_one():
    for name, tensor in random_tensors(TINY_CONFIG).items():
        values = tensor.float()
        if tensor.numel() == 1:
            assert values.item() not in (0.0, 1.0), name
            continue
        assert values.std() > 0, name
        if tensor.dtype != torch.int64:
            assert not ((values == 0) | (values == 1)).any(), name


def test_hash_tables_send_a_token_to_different_experts():
    tables = [t for n, t in random_tensors(TINY_CONFIG).items() if n.endswith("tid2eid")]
    assert len(tables) == 2
    for table in tables:
        assert (table[:, 0] != table[:, 1]).all()
        assert set(table.flatten().tolist()) == set(range(8))


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_random_checkpoint(tmp_path / name, SMALL, seed=seed)
    files = {n: (tmp_path / n / "model.safetensors").read_bytes() for n in "abc"}
    assert files["a"] == files["b"]
    one, other = random_tensors(SMALL, 1), random_tensors(SMALL, 2)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_a_tensor_depends_on_nothing_but_its_name_shape_and_seed():
    alone = tiny_config(compress_ratios=(0, 128, 4), n_routed_experts=3, num_nextn_predict_layers=0)
    more, less = random_tensors(SMALL), random_tensors(alone)
    assert set(more) > set(less)
    assert all(torch.equal(more[name], less[name]) for name in less)


def expert_tensors(model):
    """The experts of transformers' model under released names: it joins the tensors of all of them."""
    out = {}
    for name, value in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            for expert, both in enumerate(value):
                gate, up = both.chunk(2)
                out[f"layers.{layer}.ffn.experts.{expert}.w1.weight"] = gate
                out[f"layers.{layer}.ffn.experts.{expert}.w3.weight"] = up
    return out


@pytest.mark.parametrize("config", [TINY_CONFIG, SMALL, tiny_config(compress_ratios=(4, 128, 0, 4))])
@pytest.mark.parametrize("shards", [1, 3])
def test_transformers_loads_what_was_written_with_nothing_missing(config, shards, tmp_path):
    transformers = pytest.importorskip("transformers")
    assert write_random_checkpoint(tmp_path, config, seed=5, shards=shards) == config
    model, info = transformers.DeepseekV4ForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    tensors = load_checkpoint(tmp_path).tensors
    # Every value of ours is in there: the sums of all values agree, and the experts' halves are not swapped.
    theirs = sum(p.double().sum() for n, p in model.state_dict().items() if "inv_freq" not in n)
    ours = sum(t.double().sum() for t in tensors.values())
    assert abs(theirs - ours) < 1e-6 * sum(t.double().abs().sum() for t in tensors.values())
    for name, value in expert_tensors(model).items():
        assert torch.equal(value, tensors[name]), name
    with torch.no_grad():
        logits = model(
            input_ids=torch.randint(2, 128, (1, 300), generator=torch.Generator().manual_seed(0))
        ).logits
    assert 1 < logits.std() < 4


def test_the_index_lists_every_tensor_once(tmp_path):
    write_random_checkpoint(tmp_path, SMALL, shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(random_tensors(SMALL))
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in random_tensors(SMALL).values())


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    quantised = tiny_config(quantized=True, expert_dtype="fp4")
    for config in (quantised, tiny_config(draft_kind="dspark")):
        with pytest.raises(ValueError, match="config must be one of plain weights and MTP drafts"):
            write_random_checkpoint(tmp_path / "new", config)
    with pytest.raises(ValueError, match=r"shards must be an int in \[1, 999\], got 0"):
        write_random_checkpoint(tmp_path / "new", SMALL, shards=0)
    assert not (tmp_path / "new").exists()


def test_weights_are_never_overwritten(tmp_path):
    write_random_checkpoint(tmp_path, SMALL)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="already holds weights"):
        write_random_checkpoint(tmp_path, SMALL, seed=9)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_overrides_keep_the_dependent_fields_in_step():
    config = tiny_config(compress_ratios=(4,), num_nextn_predict_layers=0)
    assert (config.num_hidden_layers, config.num_hash_layers, config.draft_kind) == (1, 1, None)
    with pytest.raises(TypeError):
        tiny_config(no_such_field=1)
