"""An oracle of the MTP layer, put together from transformers' parts (which has no MTP of its own).

Its decoder layer, norms, rotary, mask and head collapse make one: a window-only layer, routed by score.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import DeepseekV4ForCausalLM, DynamicCache
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as parts

# Release name -> name in transformers, in this order.
_NAMES = (
    (r"^attn_norm", "input_layernorm"),
    (r"^ffn_norm", "post_attention_layernorm"),
    (r"^hc_(attn|ffn)_", r"\1_hc."),
    (r"^attn\.", "self_attn."),
    (r"attn_sink$", "sinks"),
    (r"wq_a\.", "q_a_proj."),
    (r"wq_b\.", "q_b_proj."),
    (r"wo_a\.", "o_a_proj."),
    (r"wo_b\.", "o_b_proj."),
    (r"wkv\.", "kv_proj."),
    (r"\.q_norm", ".q_a_norm"),
    (r"^ffn\.", "mlp."),
    (r"gate\.bias$", "gate.e_score_correction_bias"),
    (r"shared_experts\.w1", "shared_experts.gate_proj"),
    (r"shared_experts\.w2", "shared_experts.down_proj"),
    (r"shared_experts\.w3", "shared_experts.up_proj"),
)
_OWN = re.compile(r"^(e_proj|h_proj|enorm|hnorm|norm)\.|^hc_head_")


def _layer_tensors(tensors: Mapping[str, Tensor], experts: int) -> dict[str, Tensor]:
    """Tensors of one MTP layer, by release names relative to it, as transformers names those of a layer."""
    found = {}
    for name, tensor in tensors.items():
        if ".experts." in name or _OWN.match(name):
            continue
        for old, new in _NAMES:
            name = re.sub(old, new, name)
        found[name] = tensor
    both = [
        torch.cat((tensors[f"ffn.experts.{e}.w1.weight"], tensors[f"ffn.experts.{e}.w3.weight"]))
        for e in range(experts)
    ]
    found["mlp.experts.gate_up_proj"] = torch.stack(both)
    down = [tensors[f"ffn.experts.{e}.w2.weight"] for e in range(experts)]
    found["mlp.experts.down_proj"] = torch.stack(down)
    return found


class MtpOracle:
    """One MTP layer beside the main model of the same checkpoint."""

    def __init__(self, main: DeepseekV4ForCausalLM, tensors: Mapping[str, Tensor], index: int = 0) -> None:
        prefix = f"mtp.{index}."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        self.main = main
        self.config = type(main.config)(
            **{
                **main.config.to_dict(),
                "num_hidden_layers": 1,
                "layer_types": ["sliding_attention"],
                "mlp_layer_types": ["moe"],
            },
            attn_implementation="eager",
        )
        hidden, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.own = own
        self.norms = {n: parts.DeepseekV4RMSNorm(hidden, eps) for n in ("enorm", "hnorm", "norm")}
        for name, norm in self.norms.items():
            norm.weight.data.copy_(own[f"{name}.weight"])
        self.layer = parts.DeepseekV4DecoderLayer(self.config, 0).eval()
        self.layer.load_state_dict(_layer_tensors(own, self.config.n_routed_experts))
        self.head = parts.DeepseekV4HyperHead(self.config).eval()
        self.head.load_state_dict({n: own[f"hc_head_{n[3:]}"] for n in ("hc_fn", "hc_base", "hc_scale")})
        self.rotary = parts.DeepseekV4RotaryEmbedding(self.config)

    @torch.no_grad()
    def rows(
        self, streams: Tensor, next_ids: Tensor, start: int = 0, cache: DynamicCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits [S, V] and streams [S, n, h] of rows from `start` on: streams [S, n, h], next_ids [S]."""
        positions = torch.arange(start, start + len(next_ids))[None]
        token = self.norms["enorm"](self.main.model.embed_tokens(next_ids[None]))
        x = torch.nn.functional.linear(token, self.own["e_proj.weight"]).unsqueeze(2)
        x = x + torch.nn.functional.linear(self.norms["hnorm"](streams[None]), self.own["h_proj.weight"])
        mask = create_sliding_window_causal_mask(
            config=self.config, inputs_embeds=token, attention_mask=None, cache=cache, position_ids=positions
        )
        angles = {"main": self.rotary(token, position_ids=positions, layer_type="main")}
        y = self.layer(
            x, position_embeddings=angles, position_ids=positions, attention_mask=mask, input_ids=None,
            cache=cache,
        )  # fmt: skip
        return self.main.lm_head(self.norms["norm"](self.head(y)))[0], y[0]

    @torch.no_grad()
    def streams(self, ids: Tensor, chunk: int = 0) -> Tensor:
        """The main model's streams before its collapse, [S, n, h]."""
        got: list[Tensor] = []
        hook = self.main.model.hc_head.register_forward_pre_hook(lambda _, args: got.append(args[0][0]))
        cache = DynamicCache(config=self.main.config)
        for part in ids.split(chunk or len(ids)):
            self.main(input_ids=part[None], cache=cache, use_cache=True)
        hook.remove()
        return torch.cat(got)

    def logits(self, ids: Tensor, chunk: int = 0) -> Tensor:
        """MTP logits [S - 1, V] of all rows of a text whose next tokens are in it."""
        streams = self.streams(ids[:-1], chunk)
        cache = DynamicCache(config=self.config)
        size, found = chunk or len(ids), []
        for start in range(0, len(ids) - 1, size):
            end = min(start + size, len(ids) - 1)
            found.append(self.rows(streams[start:end], ids[start + 1 : end + 1], start, cache)[0])
        return torch.cat(found)

    def drafts(self, ids: Sequence[int], count: int) -> list[int]:
        """`count` greedy drafts for what comes after `ids`, whose last token has not been computed yet."""
        text = torch.tensor(ids)
        streams = self.streams(text[:-1])
        logits, out = self.rows(streams, text[1:])
        found = [int(logits[-1].argmax())]
        while len(found) < count:
            # No cache: the streams of a draft row are those that the layer itself made of the row before.
            streams = torch.cat((streams, out[-1:]))
            text = torch.cat((text, torch.tensor(found[-1:])))
            logits, out = self.rows(streams, text[1:])
            found.append(int(logits[-1].argmax()))
        return found
