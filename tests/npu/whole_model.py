"""The whole model without values: its two entry points under FakeTensorMode, on any device."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from hocket import KVCacheConfig, KVGroupSpec
from hocket.model.cache import GroupedCache
from hocket.model.config import DeepseekV4Config
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, Extent, PrefillDispatch
from hocket.model.kv_geometry import group_geometry
from hocket.model.mtp import MtpLayers
from hocket.model.random_checkpoint import tiny_config
from hocket.model.weights import Kind, main_weights, mtp_weights
from hocket_kernels.registry import NAMESPACE, OPS, Op, choose

CONFIG = tiny_config(compress_ratios=(0, 4, 128, 4), num_hash_layers=1, index_topk=8)

# The sizes that custom kernels insist on; few layers and experts, since without values only shapes matter.
REAL_SIZES = dataclasses.replace(
    CONFIG, hidden_size=4096, num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1024,
    o_groups=8, o_lora_rank=1024, sliding_window=128, index_n_heads=64, index_head_dim=128, index_topk=512,
    moe_intermediate_size=2048, hc_mult=4,
)  # fmt: skip


class Inlined(TorchDispatchMode):
    """Runs `run(op, args, kwargs)` in place of each op of ours, so that one can look into the ops."""

    def __init__(self, run: Callable[[Op, Any, Any], Any]) -> None:
        super().__init__()
        self.run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != NAMESPACE:
            return func(*args, **(kwargs or {}))
        with self:  # an op may call further ones
            return self.run(OPS[func._opname], args, kwargs or {})


def chosen(used: set[str]) -> Callable[[Op, Any, Any], Any]:
    """For `Inlined`: each op as what an accelerator would use; `used` collects the sources."""

    def run(op: Op, args: Any, kwargs: Any) -> Any:
        choice = choose(op.name, *args, **kwargs)
        used.add(choice.source)
        return choice.run(*args, **kwargs)

    return run


def references(op: Op, args: Any, kwargs: Any) -> Any:
    """For `Inlined`: each op as its reference."""
    return op.reference(*args, **kwargs)


@contextmanager
def without_values(device: str) -> Iterator[FakeTensorMode]:
    with FakeTensorMode(allow_non_fake_inputs=False) as mode, torch.device(device):
        yield mode


def run_whole_model(device: str, dtype: torch.dtype, config: DeepseekV4Config = CONFIG) -> dict[str, Tensor]:
    """Prefill, decode with drafts, and the MTP layers; call inside `without_values`. Fake results by name."""
    stored = {
        name: torch.empty(spec.shape, dtype=torch.int64 if spec.kind == Kind.IDS else dtype, device=device)
        for name, spec in (main_weights(config) | mtp_weights(config)).items()
    }
    groups = group_geometry(config, drafts=True)
    # 16 rows a block, as the kernels want, which is 2048 tokens at ratio 128.
    sizes = {name: 16 * group.ratio for name, group in groups.items()}
    pools = KVCacheConfig(
        groups=tuple(
            KVGroupSpec(name, sizes[name], num_blocks=99, window=group.window)
            for name, group in groups.items()
        )
    )
    model = DeepseekV4Model(config, stored, dtype, device)
    mtp = MtpLayers(model, stored)
    cache = GroupedCache(config, pools, dtype, device)
    tables = {
        name: torch.empty(2, -(-400 // size), dtype=torch.int32, device=device)
        for name, size in sizes.items()
    }
    chunks = PrefillDispatch.pack([[1] * 100, [2] * 37], [230, 0], tables, device=device)
    first = model.prefill(chunks, cache)
    every = model.prefill(chunks, cache, streams=True)
    assert every.streams is not None
    rows = DecodeDispatch(
        token_ids=torch.empty(2, 3, dtype=torch.int64, device=device),
        starts=torch.empty(2, dtype=torch.int64, device=device),
        num_tokens=torch.empty(2, dtype=torch.int64, device=device),
        block_tables=tables,
        extent=Extent((330, 37), (3, 1), exact=False),
    )
    decoded = model.decode(rows, cache, streams=True)
    assert decoded.streams is not None
    tails = every.streams.new_empty(2, 1, *every.streams.shape[1:])
    return {
        "prefill": first.logits,
        "streams": every.streams,
        "decode": decoded.logits,
        "mtp prefill": mtp.prefill(chunks, every.streams, tails, cache),
        "mtp decode": mtp.decode(rows, decoded.streams, tails, cache),
        "mtp logits": mtp.logits(0, tails[:, 0]),
    }


def expected_shapes(config: DeepseekV4Config = CONFIG) -> dict[str, tuple[int, ...]]:
    """Of what `run_whole_model` returns."""
    vocab, row = config.vocab_size, (config.hc_mult, config.hidden_size)
    return {
        "prefill": (2, vocab),
        "streams": (137, *row),
        "decode": (2, 3, vocab),
        "mtp prefill": (137, 1, *row),
        "mtp decode": (2, 3, 1, *row),
        "mtp logits": (2, vocab),
    }
