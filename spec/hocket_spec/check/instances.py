"""Small closed systems to explore: a configuration, the requests that may arrive, and what may happen to
them.
"""

from typing import NamedTuple

from hocket_spec.state import Config, Group


class Traffic(NamedTuple):
    """A request that may arrive: prompt and limit in tokens, priority (smaller = more senior)."""

    prompt: int
    limit: int
    priority: int = 0


class Instance(NamedTuple):
    """again: finished requests may return, i.e. endless traffic. stops: any sampled token may be the last
    one.
    """

    config: Config
    traffic: tuple[Traffic, ...]
    again: bool = True
    stops: bool = True
    aborts: bool = False
    preempts: int = 0  # external preemptions, in all
    watch: bool = False  # one request, any one, is watched from arrival to end


BASE = Config(groups=(Group(2),), pools=(4,))
