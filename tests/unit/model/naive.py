"""The equations once more, token by token and without a cache: a second oracle, slow and plain.

Everything about token t is computed from the inputs of tokens 0..t alone. Ties of the indexer and of the
router go to the lowest index. Float64, so that only the model under test rounds.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from hocket.model.config import DeepseekV4Config


class Naive:
    """A state dict of release names, run one request at a time."""

    def __init__(self, config: DeepseekV4Config, tensors: Mapping[str, Tensor]) -> None:
        self.c = config
        self.w = {k: v if v.dtype == torch.int64 else v.double() for k, v in tensors.items()}

    def logits(self, ids: Tensor) -> Tensor:
        """[T, V] in float32 for int64 [T]."""
        c = self.c
        streams = self.w["embed.weight"][ids][:, None].repeat(1, c.hc_mult, 1)
        for i, ratio in enumerate(c.compress_ratios):
            at = f"layers.{i}."
            x, post, comb = self._mix(streams, f"{at}hc_attn_")
            y = self._attention(self._norm(x, f"{at}attn_norm"), f"{at}attn.", ratio)
            streams = self._expand(y, streams, post, comb)
            x, post, comb = self._mix(streams, f"{at}hc_ffn_")
            y = self._experts(self._norm(x, f"{at}ffn_norm"), f"{at}ffn.", c.is_hash_layer(i), ids)
            streams = self._expand(y, streams, post, comb)
        flat = self._norm(streams.flatten(1)) @ self.w["hc_head_fn"].T
        pre = torch.sigmoid(flat * self.w["hc_head_scale"] + self.w["hc_head_base"]) + c.hc_eps
        hidden = (pre[..., None] * streams).sum(1)
        return (self._norm(hidden, "norm") @ self.w["head.weight"].T).float()

    def _norm(self, x: Tensor, name: str = "") -> Tensor:
        y = x / (x.pow(2).mean(-1, keepdim=True) + self.c.rms_norm_eps).sqrt()
        return y * self.w[f"{name}.weight"] if name else y

    def _mix(self, streams: Tensor, at: str) -> tuple[Tensor, Tensor, Tensor]:
        n, eps = self.c.hc_mult, self.c.hc_eps
        m = self._norm(streams.flatten(1)) @ self.w[f"{at}fn"].T
        s, b = self.w[f"{at}scale"], self.w[f"{at}base"]
        pre = torch.sigmoid(s[0] * m[:, :n] + b[:n]) + eps
        post = 2 * torch.sigmoid(s[1] * m[:, n : 2 * n] + b[n : 2 * n])
        comb = (s[2] * m[:, 2 * n :] + b[2 * n :]).view(-1, n, n).softmax(-1) + eps
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        for _ in range(self.c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(2, keepdim=True) + eps)
            comb = comb / (comb.sum(1, keepdim=True) + eps)
        return (pre[..., None] * streams).sum(1), post, comb

    def _expand(self, y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        return post[..., None] * y[:, None] + torch.einsum("tjk,tjd->tkd", comb, streams)

    def _rotate(self, x: Tensor, position: int, compressed: bool, back: bool = False) -> Tensor:
        """x [..., D] at one position."""
        c = self.c
        dim = c.qk_rope_head_dim
        theta = c.compress_rope_theta if compressed else c.rope_theta
        out = x.clone()
        for i in range(dim // 2):
            f = theta ** (-2 * i / dim)
            if compressed and c.rope_scaling is not None:
                y = c.rope_scaling

                def channel(turns: float) -> float:
                    return (
                        dim
                        * math.log(c.rope_scaling.original_max_position_embeddings / (2 * math.pi * turns))
                        / (2 * math.log(c.compress_rope_theta))
                    )

                low = max(math.floor(channel(y.beta_fast)), 0)
                high = min(math.ceil(channel(y.beta_slow)), dim - 1)
                ramp = min(max((i - low) / (high - low or 0.001), 0.0), 1.0)
                f = f / y.factor * ramp + f * (1 - ramp)
            angle = -position * f if back else position * f
            a, b = x[..., 2 * i - dim], x[..., 2 * i + 1 - dim]
            out[..., 2 * i - dim] = a * math.cos(angle) - b * math.sin(angle)
            out[..., 2 * i + 1 - dim] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def _entries(self, x: Tensor, at: str, ratio: int) -> list[Tensor]:
        """Compressed entry after entry."""
        kv, score = x @ self.w[f"{at}wkv.weight"].T, x @ self.w[f"{at}wgate.weight"].T
        ape, dim = self.w[f"{at}ape"], len(self.w[f"{at}norm.weight"])
        found = []
        for j in range(len(x) // ratio):
            slots = []
            for s in range(ratio * j, ratio * (j + 1)):
                if ratio == 4:
                    if j:
                        slots.append((kv[s - 4][:dim], score[s - 4][:dim] + ape[s % 4][:dim]))
                    slots.append((kv[s][dim:], score[s][dim:] + ape[s % 4][dim:]))
                else:
                    slots.append((kv[s], score[s] + ape[s % ratio]))
            p = torch.stack([score for _, score in slots]).softmax(0)
            pooled = (p * torch.stack([value for value, _ in slots])).sum(0)
            found.append(self._rotate(self._norm(pooled, f"{at}norm"), ratio * j, compressed=True))
        return found

    def _attention(self, x: Tensor, at: str, ratio: int) -> Tensor:
        c, w, compressed = self.c, self.w, ratio > 0
        low = self._norm(x @ w[f"{at}wq_a.weight"].T, f"{at}q_norm")
        q = self._norm((low @ w[f"{at}wq_b.weight"].T).view(len(x), c.num_attention_heads, c.head_dim))
        kv = self._norm(x @ w[f"{at}wkv.weight"].T, f"{at}kv_norm")
        kv = torch.stack([self._rotate(k, t, compressed) for t, k in enumerate(kv)])
        entries = self._entries(x, f"{at}compressor.", ratio) if ratio else []
        index_keys = self._entries(x, f"{at}indexer.compressor.", 4) if ratio == 4 else []
        outputs = []
        for t in range(len(x)):
            keys = list(kv[max(0, t - c.sliding_window + 1) : t + 1])
            seen = range((t + 1) // ratio if ratio else 0)
            if ratio == 4:
                seen = self._choose(x[t], low[t], t, index_keys[: len(seen)], f"{at}indexer.")
            keys += [entries[j] for j in seen]
            stacked = torch.stack(keys)
            scores = self._rotate(q[t], t, compressed) @ stacked.T / math.sqrt(c.head_dim)
            p = torch.cat((scores, w[f"{at}attn_sink"][:, None]), 1).softmax(1)[:, :-1]
            outputs.append(self._rotate(p @ stacked, t, compressed, back=True))
        grouped = torch.stack(outputs).view(len(x), c.o_groups, -1)
        wo_a = w[f"{at}wo_a.weight"].view(c.o_groups, c.o_lora_rank, -1)
        z = torch.cat([grouped[:, g] @ wo_a[g].T for g in range(c.o_groups)], 1)
        return z @ w[f"{at}wo_b.weight"].T

    def _choose(self, x: Tensor, low: Tensor, t: int, keys: list[Tensor], at: str) -> list[int]:
        c = self.c
        q = (low @ self.w[f"{at}wq_b.weight"].T).view(c.index_n_heads, c.index_head_dim)
        q = self._rotate(q, t, compressed=True)
        u = (self.w[f"{at}weights_proj.weight"] @ x) * (c.index_head_dim * c.index_n_heads) ** -0.5
        # Rounded, because what is a tie in exact arithmetic must be one here.
        scores = [round(float((u * (q @ key).relu()).sum()), 9) for key in keys]
        return sorted(sorted(range(len(keys)), key=lambda j: (-scores[j], j))[: c.index_topk])

    def _experts(self, x: Tensor, at: str, hashed: bool, ids: Tensor) -> Tensor:
        c, w = self.c, self.w
        rows = []
        for t in range(len(x)):
            scores = torch.nn.functional.softplus(w[f"{at}gate.weight"] @ x[t]).sqrt()
            if hashed:
                chosen = w[f"{at}gate.tid2eid"][ids[t]].tolist()
            else:
                biased = (scores + w[f"{at}gate.bias"]).tolist()
                chosen = sorted(range(len(biased)), key=lambda e: (-biased[e], e))[: c.num_experts_per_tok]
            total = sum(float(scores[e]) for e in chosen)
            y = self._swiglu(x[t], f"{at}shared_experts.")
            for e in chosen:
                weight = float(scores[e]) / total * c.routed_scaling_factor
                y = y + weight * self._swiglu(x[t], f"{at}experts.{e}.")
            rows.append(y)
        return torch.stack(rows)

    def _swiglu(self, x: Tensor, at: str) -> Tensor:
        limit = self.c.swiglu_limit
        gate = (self.w[f"{at}w1.weight"] @ x).clamp(max=limit)
        up = (self.w[f"{at}w3.weight"] @ x).clamp(-limit, limit)
        return self.w[f"{at}w2.weight"] @ (torch.nn.functional.silu(gate) * up)
