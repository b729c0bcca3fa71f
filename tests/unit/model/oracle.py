"""Hugging Face transformers as the oracle, on the checkpoint files that the product itself reads."""

import functools
from pathlib import Path

import torch
from torch import Tensor
from transformers import DeepseekV4ForCausalLM, DynamicCache

from hocket.model.checkpoint import load_checkpoint
from hocket.model.config import DeepseekV4Config
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.random_checkpoint import write_random_checkpoint


class Pair:
    """One random checkpoint, read by both sides."""

    def __init__(self, folder: Path, config: DeepseekV4Config) -> None:
        write_random_checkpoint(folder, config)
        self.config = config
        self.tensors = load_checkpoint(folder).tensors
        self.model = DeepseekV4Model(config, self.tensors)
        self.oracle = load_oracle(folder)
        self._folder = folder

    @functools.cached_property
    def oracle_bfloat16(self) -> DeepseekV4ForCausalLM:
        """transformers in bfloat16 (what it keeps in float32 stays so)."""
        return load_oracle(self._folder, torch.bfloat16)

    def reference(self, ids: Tensor, chunk: int = 0) -> Tensor:
        """Logits [T, V] of one request by the oracle, at once or, to save memory, in chunks."""
        return oracle_logits(self.oracle, ids, chunk or len(ids))


def load_oracle(folder: Path, dtype: torch.dtype = torch.float32) -> DeepseekV4ForCausalLM:
    """The checkpoint in `folder` as transformers reads it, eager attention (the only kind that it has)."""
    return DeepseekV4ForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()


@torch.no_grad()
def oracle_logits(oracle: DeepseekV4ForCausalLM, ids: Tensor, chunk: int) -> Tensor:
    """Logits [T, V] in chunks through its own cache."""
    cache = DynamicCache(config=oracle.config)
    parts = [oracle(input_ids=part[None], cache=cache, use_cache=True).logits[0] for part in ids.split(chunk)]
    return torch.cat(parts).float()
