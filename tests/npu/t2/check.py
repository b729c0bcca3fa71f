"""What has to hold of a run on the fake device; asked of the product, and of the product with faults."""

import functools
from collections.abc import Mapping

from hocket.engine.results import RequestResult
from tests.npu.fake_cann.device import fake_device
from tests.npu.t2.world import Watch, engine, loaded, on_cpu, prompt, request, run

LIVE = request("live", prompt(9, 1), max_tokens=10, logprobs=2)
REQUESTS = (
    LIVE,
    request("long", prompt(44, 2), max_tokens=4, temperature=0.9, top_k=8, seed=7),
    request("warm", prompt(5, 3), max_tokens=5, temperature=1.3, top_p=0.9, min_p=0.01, seed=8),
)


@functools.cache
def expected() -> Mapping[str, RequestResult]:
    """What the CPU says without drafts, one step at a time."""
    with engine(on_cpu(), 1) as built:
        return run(built, REQUESTS)


def check(depth: int, drafts: int, event: str = "", sanitized: bool = True) -> tuple[Watch, dict[str, int]]:
    """Run the engine on the fake device: values as on the CPU, the host waits for nothing but results.

    event: "preempted" or "again", what happens to the live request with rows in flight. Raises an
    AssertionError, or what the device or the sanitizer found. Returns what was watched, and counts.
    """
    expected()  # on the CPU, and not while the device is there
    with fake_device(sanitized) as device, engine(loaded("npu"), depth, drafts) as built:
        watch = Watch(built, device)
        found = run(built, REQUESTS, event, LIVE)
        counts = device.counts()
    for name, result in expected().items():
        assert found[name].token_ids == result.token_ids, f"values: {name}"
        assert_same_logprobs(found[name], result)
    assert not watch.guards, f"the host waits while a step is launched: {watch.guards}"
    waits = {tuple(sync.what for sync in wait) for wait in watch.waits}
    assert waits <= {("sync_event",)}, f"the host waits for more than a result: {waits}"
    return watch, counts


def assert_same_logprobs(mine: RequestResult, theirs: RequestResult) -> None:
    """The same tokens, and log probabilities up to rounding."""
    assert (mine.logprobs is None) == (theirs.logprobs is None)
    for a, b in zip(mine.logprobs or (), theirs.logprobs or (), strict=True):
        assert (a.token_id, [t for t, _ in a.top]) == (b.token_id, [t for t, _ in b.top])
        assert abs(a.logprob - b.logprob) < 2e-4
