"""What the scheduler raises.

`ValueError` is for bad input and always comes before any state changes. `SchedulerError` is for a
caller that breaks the protocol of `schedule()` / `update_from_output()`; state is unchanged then too.
"""

from __future__ import annotations


class SchedulerError(RuntimeError):
    """The caller broke the scheduler's protocol. The scheduler's state is unchanged."""


class UnknownRequestError(SchedulerError):
    """The request id names no live request."""


class StepOrderError(SchedulerError):
    """A result was handed in for a step that is not the oldest one in flight."""


class QueueFullError(SchedulerError):
    """`max_num_queued_reqs` requests are waiting already; try again later."""
