"""Input tokens of a decode dispatch, some of which only the device knows yet."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, op


def _fake(token_ids: Tensor, sources: Tensor, device_tokens: Tensor) -> Tensor:
    return torch.empty_like(token_ids, memory_format=torch.contiguous_format)


def _triton(token_ids: Tensor, sources: Tensor, device_tokens: Tensor) -> Tensor:
    from hocket_kernels.vector_kernels import token_gather

    return token_gather(token_ids, sources, device_tokens)


def _refuses(token_ids: Tensor, sources: Tensor, device_tokens: Tensor) -> str:
    return ""


@op(
    "(Tensor token_ids, Tensor sources, Tensor device_tokens) -> Tensor",
    _fake,
    [Implementation("triton", ("token_gather",), _triton, _refuses)],
)
def token_gather(token_ids: Tensor, sources: Tensor, device_tokens: Tensor) -> Tensor:
    """token_ids where the host knows the token, else the one that an earlier dispatch left on the device.

    token_ids, sources: int64 of one shape. device_tokens: int64 [S], one per seat. A source >= 0 names the
    seat whose token replaces the host's; -1 keeps the host's. Returns int64, the shape of token_ids.
    """
    return torch.where(sources < 0, token_ids, device_tokens[sources.clamp(min=0)])
