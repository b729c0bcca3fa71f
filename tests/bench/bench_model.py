"""Prefill and decode times of the model beside transformers', on the shipped checkpoint.

    python tests/bench/bench_model.py [--threads 1] [--repeats 5] [--tokens 8192] [--chunks 2048 1000 512]

The two sides alternate within each repeat, so that a busy machine slows both. Printed are medians, in wall
seconds and in CPU seconds (all threads together), and ratios of the CPU medians: above 1 means that
transformers takes longer. Transformers computes the head for the last row only, as the model does. "streams"
is prefill that also returns the residual streams of every row, as draft layers need them: without it the last
layer attends with sampled rows only. One thread is the default: at this size more of them gain nothing, and
on a busy machine they spin while they wait for each other (ten times the CPU time was seen).
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import DeepseekV4ForCausalLM, DynamicCache

from hocket.model.checkpoint import load_checkpoint
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, PrefillDispatch
from hocket.model.recall import recall_folder
from tests.unit.model.oracle import load_oracle
from tests.unit.model.support import Driver, token_ids

DECODED = 32


class Seconds(NamedTuple):
    """Of one run."""

    wall: float
    cpu: float


def timed(run: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


class Ours:
    """The model, one or several requests of `tokens` tokens side by side."""

    def __init__(self, model: DeepseekV4Model, tokens: int, requests: int = 1) -> None:
        self.model, self.names = model, [f"r{i}" for i in range(requests)]
        self.ids = token_ids(tokens + DECODED, seed=1, vocab=model.config.vocab_size)
        self.tokens = tokens
        self.driver = Driver(model, "engine", tokens=requests * (tokens + DECODED), spare=requests)
        for name in self.names:
            self.driver.pages.grow(name, 0, tokens + DECODED)
        self.tables = self.driver.pages.block_tables(self.names)

    def prefill(self, chunk: int, streams: bool) -> None:
        one = {group: table[:1] for group, table in self.tables.items()}
        for at in range(0, self.tokens, chunk):
            piece = self.ids[at : min(at + chunk, self.tokens)].tolist()
            sampled = None if at + chunk >= self.tokens else ()
            dispatch = PrefillDispatch.pack([piece], [at], one, sampled)
            self.model.prefill(dispatch, self.driver.cache, streams)

    def decode(self) -> None:
        n = len(self.names)
        for at in range(self.tokens, self.tokens + DECODED):
            dispatch = DecodeDispatch(
                self.ids[at].expand(n, 1), torch.full((n,), at), torch.ones(n, dtype=torch.int64), self.tables
            )
            self.model.decode(dispatch, self.driver.cache)


class Theirs:
    """transformers with its own cache."""

    def __init__(self, oracle: DeepseekV4ForCausalLM, ids: torch.Tensor, tokens: int) -> None:
        self.oracle, self.ids, self.tokens = oracle, ids, tokens
        self.cache = DynamicCache(config=oracle.config)

    @torch.no_grad()
    def prefill(self, chunk: int) -> None:
        self.cache = DynamicCache(config=self.oracle.config)
        for part in self.ids[: self.tokens].split(chunk):
            self.oracle(input_ids=part[None], cache=self.cache, use_cache=True, logits_to_keep=1)

    @torch.no_grad()
    def decode(self) -> None:
        for token in self.ids[self.tokens :]:
            self.oracle(input_ids=token.view(1, 1), cache=self.cache, use_cache=True)


def line(name: str, runs: dict[str, list[Seconds]], scale: float = 1.0, unit: str = "s") -> None:
    """One row per side, and the ratio to transformers."""
    medians = {
        side: Seconds(statistics.median(r.wall for r in found), statistics.median(r.cpu for r in found))
        for side, found in runs.items()
    }
    theirs = medians["transformers"]
    for side, median in medians.items():
        ratio = f"{theirs.cpu / median.cpu:7.1f}x" if side != "transformers" else "       -"
        print(f"{name:22} {side:20} {median.wall * scale:9.2f} {median.cpu * scale:9.2f} {unit:9} {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2048, 1000, 512])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    checkpoint = load_checkpoint(recall_folder())
    model = DeepseekV4Model(checkpoint.config, checkpoint.tensors)
    ours, eight = Ours(model, options.tokens), Ours(model, options.tokens, requests=8)
    theirs = Theirs(load_oracle(recall_folder()), ours.ids, options.tokens)
    print(f"torch {torch.__version__}, threads: {options.threads}, repeats: {options.repeats}")
    print(f"a prompt of {options.tokens} tokens, then {DECODED} decode steps")
    print(f"{'what':22} {'side':20} {'wall':>9} {'cpu':>9} {'':9} {'ratio':>8}")
    for chunk in options.chunks:
        runs: dict[str, list[Seconds]] = {"hocket": [], "hocket, streams": [], "transformers": []}
        for _ in range(options.repeats):
            runs["hocket"].append(timed(lambda c=chunk: ours.prefill(c, streams=False)))
            runs["hocket, streams"].append(timed(lambda c=chunk: ours.prefill(c, streams=True)))
            runs["transformers"].append(timed(lambda c=chunk: theirs.prefill(c)))
        line(f"prefill, chunks {chunk}", runs)
    # The eight requests' caches hold nothing; what is read does not change the time.
    eight.driver.cache.fill_(0.0)
    runs = {"hocket": [], "hocket, 8 requests": [], "transformers": []}
    for _ in range(options.repeats):
        runs["hocket"].append(timed(ours.decode))
        runs["hocket, 8 requests"].append(timed(eight.decode))
        theirs.prefill(512)
        runs["transformers"].append(timed(theirs.decode))
    line("decode, one step", runs, scale=1000 / DECODED, unit="ms")


if __name__ == "__main__":
    main()
