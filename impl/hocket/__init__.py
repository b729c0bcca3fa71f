"""hocket: a formally specified, starvation-free phase scheduler and runner for LLM serving.

Every public name is loaded on first use, so that `import hocket` costs next to nothing and brings in neither
torch nor a server. `LLM`, `Engine` and `AsyncEngine` need the extra `model`, all else NumPy at most.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hocket._version import __version__ as __version__

if TYPE_CHECKING:
    from hocket.core.config import KVCacheConfig as KVCacheConfig
    from hocket.core.config import KVGroupSpec as KVGroupSpec
    from hocket.core.config import SchedulerConfig as SchedulerConfig
    from hocket.core.errors import SchedulerError as SchedulerError
    from hocket.core.phase import Phase as Phase
    from hocket.core.records import ModelRunnerOutput as ModelRunnerOutput
    from hocket.core.records import RequestOutput as RequestOutput
    from hocket.core.records import SchedulerOutput as SchedulerOutput
    from hocket.core.request import Request as Request
    from hocket.core.request import SamplingParams as SamplingParams
    from hocket.engine.async_engine import AsyncEngine as AsyncEngine
    from hocket.engine.engine import Engine as Engine
    from hocket.engine.llm import LLM as LLM
    from hocket.runner.packed import validate_packed_prefill as validate_packed_prefill
    from hocket.sched.scheduler import Scheduler as Scheduler

# Public name -> the module that defines it.
_HOME = {
    "KVCacheConfig": "hocket.core.config",
    "KVGroupSpec": "hocket.core.config",
    "ModelRunnerOutput": "hocket.core.records",
    "Phase": "hocket.core.phase",
    "Request": "hocket.core.request",
    "RequestOutput": "hocket.core.records",
    "SamplingParams": "hocket.core.request",
    "Scheduler": "hocket.sched.scheduler",
    "SchedulerConfig": "hocket.core.config",
    "SchedulerError": "hocket.core.errors",
    "SchedulerOutput": "hocket.core.records",
    "validate_packed_prefill": "hocket.runner.packed",
}

# As above, for the names whose modules need torch. `from hocket import *` works without it,
# and so leaves them out.
_HOME_WITH_TORCH = {
    "AsyncEngine": "hocket.engine.async_engine",
    "Engine": "hocket.engine.engine",
    "LLM": "hocket.engine.llm",
}

__all__ = [
    "KVCacheConfig",
    "KVGroupSpec",
    "ModelRunnerOutput",
    "Phase",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "SchedulerOutput",
    "__version__",
    "validate_packed_prefill",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    home = _HOME.get(name) or _HOME_WITH_TORCH.get(name)
    if home is None:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_HOME_WITH_TORCH})
