"""What an engine raises."""

from __future__ import annotations


class EngineDeadError(RuntimeError):
    """The engine cannot go on: scheduler or runner failed in a way that concerns every request.

    `__cause__` is the first failure. Every waiter and every later call gets this error; start a new engine.
    """
