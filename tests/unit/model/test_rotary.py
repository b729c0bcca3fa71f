"""Rotary frequencies at the edges of YaRN's ramp."""

import torch

from hocket.model.config import YarnScaling
from hocket.model.rotary import _yarn


def test_a_ramp_without_width_is_a_step():
    """Both ends of the ramp are cut to channel 0: it keeps its frequency, all later ones are divided."""
    scaling = YarnScaling(factor=4.0, beta_fast=32.0, beta_slow=10.5, original_max_position_embeddings=64)
    frequencies = torch.tensor([1.0, 0.5, 0.25, 0.125])
    assert _yarn(frequencies, 10000.0, scaling).tolist() == [1.0, 0.125, 0.0625, 0.03125]
