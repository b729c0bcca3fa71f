"""From a checkpoint folder to an engine: configuration, weights, cache, runner, tokenizer. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hocket.core.checks import require_int, shown
from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.core.request import Request, SamplingParams
from hocket.engine.engine import Engine
from hocket.model.cache import GroupedCache
from hocket.model.checkpoint import load_checkpoint
from hocket.model.config import DeepseekV4Config
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.kv_geometry import build_kv_cache_config
from hocket.model.mtp import MtpLayers
from hocket.model.tokenizer import TOKENIZER_FILE, Tokenizer
from hocket.obs.trace import TraceWriter
from hocket.runner.device import DEVICES, open_device, runtime_for
from hocket.runner.model_runner import ModelRunner

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Where and how a model runs.

    dtype: "float32" or "bfloat16", of weights and cache.
    device: cpu, npu or cuda. One that is not there is an error, never replaced by another.
    kv_cache_memory: bytes of the KV cache at most.
    block_size: rows of a KV block; groups that compress hold as many more tokens in it, states fewer.
    block_sizes: tokens of a block, by group, instead of what follows from `block_size`.
    shared_pool: all groups draw on one pool of blocks instead of one pool each.
    """

    dtype: str = "float32"
    device: str = "cpu"
    kv_cache_memory: int = 1 << 30
    block_size: int = 128
    block_sizes: Mapping[str, int] | None = None
    shared_pool: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {shown(self.dtype)}")
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {shown(self.device)}")
        require_int("kv_cache_memory", self.kv_cache_memory, 1)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer (None if the folder has none) and its MTP layers (None if it has none, or if
    they were not asked for). Engines share it; each has a cache of its own.
    """

    model: DeepseekV4Model
    tokenizer: Tokenizer | None
    options: ModelOptions
    mtp: MtpLayers | None = None

    @property
    def config(self) -> DeepseekV4Config:
        """The model's configuration."""
        return self.model.config

    def kv_cache_config(self, scheduler_config: SchedulerConfig) -> KVCacheConfig:
        """Groups and block counts that the options' memory pays for."""
        options = self.options
        return build_kv_cache_config(
            self.config,
            scheduler_config,
            budget_bytes=options.kv_cache_memory,
            budget_field="kv_cache_memory",
            dtype=options.dtype,
            block_size=options.block_size,
            block_sizes=options.block_sizes,
            shared_pool=options.shared_pool,
        )

    def request(
        self, request_id: str, prompt: str | tuple[int, ...], params: SamplingParams, priority: int = 0
    ) -> Request:
        """A request that ends at the model's end-of-sequence tokens. `ValueError` names the field that is
        wrong.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError(
                    f"request {request_id!r}: prompt must be token ids: the model has no tokenizer"
                )
            try:
                prompt = tuple(self.tokenizer.encode(prompt))
            except ValueError as error:
                raise ValueError(f"request {request_id!r}: prompt: {error}") from error
        eos = self.config.eos_token_ids
        if len(eos) > 1 and not params.ignore_eos:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *eos[1:]))
        return Request(request_id, prompt, params, priority, eos[0] if eos else None)


def load_model(
    folder: str | Path,
    options: ModelOptions | None = None,
    *,
    mtp: bool = False,
    random_mtp_seed: int | None = None,
) -> LoadedModel:
    """Load the checkpoint in `folder`. `ValueError` names file, tensor or option; for a device that is not
    there it says what is missing.

    mtp: the MTP layers too, which speculation needs. With `random_mtp_seed` a checkpoint that has none gets
        a random one: it guesses badly, and all else is as with a good one.
    """
    if not isinstance(folder, (str, Path)):
        raise ValueError(f"model must be the path of a checkpoint folder, got {shown(folder)}")
    options = options or ModelOptions()
    device, dtype = open_device(options.device), DTYPES[options.dtype]
    config, tensors, drafts = load_checkpoint(folder, dtype=dtype, load_mtp=mtp)
    if mtp and not drafts and random_mtp_seed is not None:
        from hocket.model.random_checkpoint import random_mtp_tensors  # nobody else needs it

        config = replace(config, num_nextn_predict_layers=1, draft_kind="mtp")
        drafts = random_mtp_tensors(config, random_mtp_seed)
    model = DeepseekV4Model(config, tensors, dtype, device)
    tokenizer = Tokenizer.from_folder(folder) if (Path(folder) / TOKENIZER_FILE).exists() else None
    return LoadedModel(model, tokenizer, options, MtpLayers(model, drafts) if drafts else None)


def build_engine(
    loaded: LoadedModel,
    scheduler_config: SchedulerConfig,
    *,
    kv_cache_config: KVCacheConfig | None = None,
    seed: int = 0,
    trace: TraceWriter | None = None,
    on_result: Callable[[], None] | None = None,
    shadow_check: bool = False,
) -> Engine:
    """An engine with a fresh cache for a loaded model; `kv_cache_config` overrides what the memory budget
    gives. The others as `Engine` takes them.
    """
    limit = loaded.config.max_position_embeddings
    if scheduler_config.max_model_len > limit:
        raise ValueError(
            f"max_model_len must be at most the model's max_position_embeddings = {limit}, "
            f"got {scheduler_config.max_model_len}"
        )
    if scheduler_config.num_speculative_tokens and loaded.mtp is None:
        raise ValueError(
            "num_speculative_tokens must be 0 for this model (its checkpoint has no MTP layers, "
            f"or they were not loaded), got {scheduler_config.num_speculative_tokens}"
        )
    kv_cache_config = kv_cache_config or loaded.kv_cache_config(scheduler_config)
    model = loaded.model
    runner = ModelRunner(
        model,
        GroupedCache(model.config, kv_cache_config, model.dtype, model.device),
        kv_cache_config,
        max_num_seqs=scheduler_config.max_num_seqs,
        max_model_len=scheduler_config.max_model_len,
        mtp=loaded.mtp,
        num_speculative_tokens=scheduler_config.num_speculative_tokens,
        runtime=runtime_for(model.device, scheduler_config.async_depth),
    )
    return Engine(
        scheduler_config,
        kv_cache_config,
        runner,
        tokenizer=loaded.tokenizer,
        seed=seed,
        trace=trace,
        on_result=on_result,
        shadow_check=shadow_check,
    )
