"""Multi-token prediction: draft layers that look one token further than the main model.

Row p of an MTP layer takes the residual streams of position p and the token at p + 1; from its output comes a
guess of the token at p + 2. The block is that of the main layers (window only, routed by score), with a cache
group of its own; embedding and head are the main model's. Layer 0 takes the main model's streams, layer j > 0
what layer j - 1 made of the position before (zeros at position 0).

A dispatch that is given to an MTP layer names the rows' positions as ever, but its `token_ids` are those that
*follow* the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.model.cache import GroupedCache
from hocket.model.config import DeepseekV4Config
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, PrefillDispatch
from hocket.model.layers import LayerWeights, WeightSource, decoder_layer, load_layer
from hocket.model.step import Step, decode_step, prefill_step
from hocket_kernels.hyper_connection import hc_head
from hocket_kernels.rms_norm import rms_norm


@dataclass(frozen=True, eq=False, slots=True)
class MtpWeights:
    """One MTP layer. e_proj, h_proj: [h, h]. enorm, hnorm, norm: float32 [h]. head_hc: fn, scale, base of the
    collapse before the head, float32.
    """

    e_proj: Tensor
    h_proj: Tensor
    enorm: Tensor
    hnorm: Tensor
    norm: Tensor
    head_hc: tuple[Tensor, Tensor, Tensor]
    layer: LayerWeights

    @classmethod
    def load(cls, source: WeightSource, config: DeepseekV4Config) -> MtpWeights:
        """From a source whose names are relative to the layer ("e_proj.weight", "attn.wq_a.weight", ...)."""
        return cls(
            e_proj=source.matrix("e_proj.weight"),
            h_proj=source.matrix("h_proj.weight"),
            enorm=source.exact("enorm.weight"),
            hnorm=source.exact("hnorm.weight"),
            norm=source.exact("norm.weight"),
            head_hc=(
                source.exact("hc_head_fn"),
                source.exact("hc_head_scale"),
                source.exact("hc_head_base"),
            ),
            layer=load_layer(source, config, ratio=0, hashed=False),
        )


class MtpLayers:
    """All MTP layers of a checkpoint. They hold no state of requests: that is in the cache and with the
    caller, who keeps each request's *tail*, the outputs [layers, n, h] of its last confirmed row.
    """

    def __init__(self, model: DeepseekV4Model, tensors: Mapping[str, Tensor]) -> None:
        """`tensors` by release names ("mtp.0.e_proj.weight", ...)."""
        self.model, self.config = model, model.config
        source = WeightSource(tensors, model.dtype, model.device)
        count = self.config.num_nextn_predict_layers
        self.layers = [MtpWeights.load(source.at(f"mtp.{i}."), self.config) for i in range(count)]

    def prefill(
        self, dispatch: PrefillDispatch, streams: Tensor, tails: Tensor, cache: GroupedCache
    ) -> Tensor:
        """Run every row of the chunks. streams: the main model's, [T, n, h]. tails: [N, layers to run, n, h],
        as the last chunk left them; zeros where a chunk begins at position 0. Returns [T, layers, n, h].
        """
        with torch.inference_mode():
            step = prefill_step(dispatch, cache, self.model.frequencies, drafting=True)
            firsts = dispatch.query_start_loc[:-1].to(torch.int64)
            return self._confirmed(step, dispatch.token_ids, streams, firsts, tails, cache).clone()

    def decode(self, dispatch: DecodeDispatch, streams: Tensor, tails: Tensor, cache: GroupedCache) -> Tensor:
        """As `prefill` for rows of a decode dispatch that have been confirmed: num_tokens of each request.
        streams: [N, Q, n, h]. Returns [N, Q, layers, n, h], meaningless past num_tokens.
        """
        requests, width = dispatch.token_ids.shape
        with torch.inference_mode():
            step = decode_step(dispatch, cache, self.model.frequencies, drafting=True)
            firsts = torch.arange(requests, device=dispatch.starts.device) * width
            flat = self._confirmed(
                step, dispatch.token_ids.flatten(), streams.flatten(0, 1), firsts, tails, cache
            )
            return flat.view(requests, width, *flat.shape[1:]).clone()

    def draft(self, index: int, dispatch: DecodeDispatch, streams: Tensor, cache: GroupedCache) -> Tensor:
        """One row of each request past what is confirmed, in layer `index`: streams [N, n, h] of the position
        before and the draft that follows the row give the next streams [N, n, h].
        """
        with torch.inference_mode():
            step = decode_step(dispatch, cache, self.model.frequencies, drafting=True)
            return self._layer(index, step, dispatch.token_ids.flatten(), streams, cache).clone()

    def logits(self, index: int, streams: Tensor) -> Tensor:
        """Collapse, norm and head of layer `index`: [R, n, h] -> float32 [R, V]."""
        w, config = self.layers[index], self.config
        with torch.inference_mode():
            hidden = hc_head(streams, *w.head_hc, config.hc_eps, config.rms_norm_eps)
            hidden = rms_norm(hidden, w.norm, config.rms_norm_eps)
            return torch.nn.functional.linear(hidden, self.model.head).to(torch.float32).clone()

    def _confirmed(
        self,
        step: Step,
        next_ids: Tensor,
        streams: Tensor,
        firsts: Tensor,
        tails: Tensor,
        cache: GroupedCache,
    ) -> Tensor:
        """All layers over T rows; `firsts`: int64 [N], each request's first row. -> [T, layers, n, h]."""
        outputs: list[Tensor] = []
        for index in range(tails.shape[1]):
            if outputs:
                streams = outputs[-1].roll(1, 0)
                streams[firsts] = tails[:, index - 1]
            outputs.append(self._layer(index, step, next_ids, streams, cache))
        return torch.stack(outputs, dim=1)

    def _layer(
        self, index: int, step: Step, next_ids: Tensor, streams: Tensor, cache: GroupedCache
    ) -> Tensor:
        """streams [T, n, h], next_ids int64 [T] -> [T, n, h]."""
        w, eps = self.layers[index], self.config.rms_norm_eps
        # As the reference does, the row at position 0 keeps its embedding.
        token = torch.nn.functional.linear(rms_norm(self.model.embedding[next_ids], w.enorm, eps), w.e_proj)
        x = torch.nn.functional.linear(rms_norm(streams, w.hnorm, eps), w.h_proj) + token.unsqueeze(1)
        layer = self.config.num_hidden_layers + index
        return decoder_layer(w.layer, x, step, step.all_rows, cache, layer, self.config)
