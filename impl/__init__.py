"""In a checkout `import impl` is hocket. This file is in no wheel."""

from typing import Any

import hocket
from hocket import *  # noqa: F403

# No submodule can be found below `impl`, so no second copy of hocket can be loaded by another name.
__path__: list[str] = []


def __getattr__(name: str) -> Any:
    """The names that need torch (`LLM`, `Engine`, `AsyncEngine`), loaded when they are used."""
    return getattr(hocket, name)
