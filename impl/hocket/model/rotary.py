"""Rotary frequencies of the two kinds of layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hocket.model.config import DeepseekV4Config, YarnScaling


def inverse_frequencies(config: DeepseekV4Config, compressed: bool) -> Tensor:
    """float32 [R / 2]: theta^(-2i / R) with the theta of window-only layers, or, for layers with compressed
    entries (their queries and window rows included), with the compress theta and YaRN.
    """
    dim = config.qk_rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if compressed and config.rope_scaling is not None:
        frequencies = _yarn(frequencies, theta, config.rope_scaling)
    return frequencies


def _yarn(frequencies: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """Blend f (fast channels) into f / factor (slow ones) by a ramp between the channels that turn beta_fast
    and beta_slow times over the original length.
    """
    dim = 2 * frequencies.numel()

    def channel(turns: float) -> float:
        return (
            dim
            * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low = max(math.floor(channel(scaling.beta_fast)), 0)
    high = float(min(math.ceil(channel(scaling.beta_slow)), dim - 1))
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * ramp + frequencies * (1.0 - ramp)
