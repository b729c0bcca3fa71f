"""Engines on a simulated runner, and a tokenizer of one letter a token."""

import time
from dataclasses import replace

from hocket import KVCacheConfig, KVGroupSpec, Request, SamplingParams, SchedulerConfig
from hocket.engine.engine import Engine
from hocket.runner.simulated import SimulatedRunner, simulated_tokens

VOCAB = 26
KV = KVCacheConfig(groups=(KVGroupSpec("full", 4, 60), KVGroupSpec("near", 2, 60, window=5)))
CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=16, prefill_chunk_size=8, max_model_len=100, async_depth=2
)


class Letters:
    """Token i is the i-th letter; a space stands before every token but the first of a text."""

    def decode(self, token_ids, *, skip_special_tokens=True):
        return " ".join(chr(ord("a") + token) for token in token_ids)


def make_engine(depth=2, kv=KV, runner=None, tokenizer=None, config=CONFIG, wrap=None, **knobs):
    names = {"trace", "seed", "on_result", "clock", "shadow_check"}
    config = replace(config, async_depth=depth, **{k: v for k, v in knobs.items() if k not in names})
    runner = runner or SimulatedRunner(
        kv, max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len, vocab_size=VOCAB
    )
    if wrap is not None:
        runner = wrap(runner)
    return Engine(
        config, kv, runner, tokenizer=tokenizer or Letters(), **{k: v for k, v in knobs.items() if k in names}
    )


def request(name, prompt=(1, 2, 3), **params):
    eos = params.pop("eos", None)
    priority = params.pop("priority", 0)
    return Request(name, tuple(prompt), SamplingParams(**params), priority, eos)


def tokens_of(prompt, count):
    return tuple(simulated_tokens(list(prompt), count, VOCAB))


def text_of(tokens):
    return Letters().decode(tokens)


def drain(engine, updates=None):
    """Step to the end; all updates by request."""
    updates = {} if updates is None else updates
    while engine.has_unfinished_requests():
        step_into(engine, updates)
    return updates


def step_into(engine, updates):
    """One step; its updates join the others."""
    for update in engine.step():
        updates.setdefault(update.request_id, []).append(update)


def wait_for_runner(engine):
    """Until everything dispatched has been executed."""
    while len(engine._executor._results) < len(engine._in_flight):
        time.sleep(0.001)


def results(updates):
    """The one result of each request; checks that it came last and once."""
    found = {}
    for name, news in updates.items():
        assert [update.finished for update in news] == [False] * (len(news) - 1) + [True]
        result = news[-1].result
        assert sum((update.new_token_ids for update in news), ()) == result.token_ids
        assert "".join(update.new_text for update in news) == result.text
        assert result.finish_reason == news[-1].finish_reason
        found[name] = result
    return found


class Wrapped:
    """A runner around a runner; subclasses spoil something."""

    def __init__(self, inner):
        self.inner = inner

    vocab_size = property(lambda self: self.inner.vocab_size)

    def describe(self):
        return self.inner.describe()

    def execute(self, output, new_requests=()):
        return self.inner.execute(output, new_requests)
