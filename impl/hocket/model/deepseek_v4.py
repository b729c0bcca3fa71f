"""DeepSeek-V4 with the two entry points of an accelerator: packed prefill and batched decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hocket.model.cache import GroupedCache
from hocket.model.config import DeepseekV4Config
from hocket.model.dispatch import DecodeDispatch, PrefillDispatch
from hocket.model.layers import WeightSource, decoder_layer, load_layer
from hocket.model.rotary import inverse_frequencies
from hocket.model.step import Frequencies, Step, decode_step, prefill_step
from hocket_kernels.hyper_connection import hc_head
from hocket_kernels.rms_norm import rms_norm


class ForwardOutput(NamedTuple):
    """logits: float32 [R, V] (prefill) or [N, 1 + K, V] (decode). streams: the residual streams after the
    last layer, before the final collapse, [T, n, h] or [N, 1 + K, n, h], if asked for.
    """

    logits: Tensor
    streams: Tensor | None


class DeepseekV4Model:
    """The main model. Reads and writes the cache that it is given; holds no state of requests itself."""

    def __init__(
        self,
        config: DeepseekV4Config,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """`tensors` by release names, as a checked checkpoint holds them. Matrices are held in `dtype`;
        norms, mixing weights, sinks, gates and compressors in float32.
        """
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        source = WeightSource(tensors, dtype, self.device)
        self.embedding = source.matrix("embed.weight")
        self.layers = [
            load_layer(source.at(f"layers.{i}."), config, ratio, config.is_hash_layer(i))
            for i, ratio in enumerate(config.compress_ratios)
        ]
        self._head_hc = (
            source.exact("hc_head_fn"),
            source.exact("hc_head_scale"),
            source.exact("hc_head_base"),
        )
        self._norm = source.exact("norm.weight")
        self.head = source.matrix("head.weight")
        self.frequencies = Frequencies(
            inverse_frequencies(config, compressed=False).to(self.device),
            inverse_frequencies(config, compressed=True).to(self.device),
        )

    def prefill(self, dispatch: PrefillDispatch, cache: GroupedCache, streams: bool = False) -> ForwardOutput:
        """Write the chunks' rows to the cache; logits of `dispatch.sample_rows`, in their order.

        Without `streams` the last layer computes queries and experts of the sampled rows only.
        """
        with torch.inference_mode():
            step = prefill_step(dispatch, cache, self.frequencies)
            x = self._layers(dispatch.token_ids, step, cache, narrow=not streams)
            logits = self.logits(x[dispatch.sample_rows] if streams else x)
        return _ordinary(logits, x if streams else None)

    def decode(self, dispatch: DecodeDispatch, cache: GroupedCache, streams: bool = False) -> ForwardOutput:
        """Write 1 + K rows of each request to the cache; logits of all rows, meaningless past num_tokens."""
        shape = dispatch.token_ids.shape
        with torch.inference_mode():
            step = decode_step(dispatch, cache, self.frequencies)
            x = self._layers(dispatch.token_ids.flatten(), step, cache, narrow=False)
            logits = self.logits(x).view(*shape, -1)
        return _ordinary(logits, x.view(*shape, *x.shape[1:]) if streams else None)

    def logits(self, streams: Tensor) -> Tensor:
        """Collapse, norm and head: [R, n, h] -> float32 [R, V]."""
        hidden = hc_head(streams, *self._head_hc, self.config.hc_eps, self.config.rms_norm_eps)
        hidden = rms_norm(hidden, self._norm, self.config.rms_norm_eps)
        return torch.nn.functional.linear(hidden, self.head).to(torch.float32)

    def _layers(self, token_ids: Tensor, step: Step, cache: GroupedCache, narrow: bool) -> Tensor:
        """Streams after the last layer: of all rows, or (`narrow`) of the sampled ones only."""
        n, last = self.config.hc_mult, len(self.layers) - 1
        x = self.embedding[token_ids].unsqueeze(1).expand(-1, n, -1).contiguous()
        for i, weights in enumerate(self.layers):
            queries = step.sampled if narrow and i == last else step.all_rows
            x = decoder_layer(weights, x, step, queries, cache, i, self.config)
        return x


def _ordinary(logits: Tensor, streams: Tensor | None) -> ForwardOutput:
    """Copies that may be changed in place, which tensors made in inference mode may not."""
    return ForwardOutput(logits.clone(), None if streams is None else streams.clone())
