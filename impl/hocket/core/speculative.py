"""The other spelling of `num_speculative_tokens`: a speculative configuration as vLLM takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hocket.core.checks import require_int, shown

METHODS = ("mtp", "deepseek_mtp")
_KEYS = ("method", "num_speculative_tokens")


def speculative_tokens(config: str | Mapping[str, Any]) -> int:
    """The drafts of a decode row that `config` asks for, a mapping or its JSON text, such as
    '{"method": "mtp", "num_speculative_tokens": 1}'.

    `ValueError` for anything but MTP: the draft layers of the checkpoint itself are the only method.
    """
    values: object = config
    if isinstance(config, str):
        try:
            values = json.loads(config)
        except (ValueError, RecursionError) as error:
            said = f"speculative_config must be a JSON object, got {shown(config)}: {error}"
            raise ValueError(said) from None
    if not isinstance(values, Mapping):
        raise ValueError(f"speculative_config must be a JSON object, got {shown(values)}")
    unknown = sorted(shown(key) for key in values if key not in _KEYS)
    if unknown:
        raise ValueError(f"speculative_config must have the keys {', '.join(_KEYS)} only, got {unknown[0]}")
    if values.get("method") not in METHODS:
        raise ValueError(
            f"speculative_config: method must be 'mtp' (the checkpoint's own draft layers), "
            f"got {shown(values.get('method'))}"
        )
    if "num_speculative_tokens" not in values:
        raise ValueError("speculative_config must have num_speculative_tokens, an int >= 1")
    return require_int("speculative_config: num_speculative_tokens", values["num_speculative_tokens"], 1)


def agreed_tokens(plain: int | None, config: str | Mapping[str, Any] | None) -> int:
    """What `num_speculative_tokens` (None: not given) and a speculative configuration (None: not given) say
    together; 0 if nothing. `ValueError` if both are given and differ.
    """
    if config is None:
        return plain or 0
    tokens = speculative_tokens(config)
    if plain not in (None, tokens):
        raise ValueError(
            f"num_speculative_tokens must be what speculative_config says, {tokens}, or left out, "
            f"got {shown(plain)}"
        )
    return tokens
