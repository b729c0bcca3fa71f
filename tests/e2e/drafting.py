"""Tiny random models with MTP layers behind an engine; what their MTP layers say; drafts that are right when
told to.

A vocabulary of 12 tokens, so that now and then a random layer guesses right.
"""

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hocket import Request, SamplingParams
from hocket.engine.build import LoadedModel, ModelOptions, load_model
from hocket.engine.engine import Engine, run_all
from hocket.engine.results import RequestResult
from hocket.model.checkpoint import load_checkpoint
from hocket.model.mtp import MtpLayers
from hocket.model.random_checkpoint import tiny_config, write_random_checkpoint
from tests.e2e import world
from tests.unit.model.mtp_oracle import MtpOracle
from tests.unit.model.oracle import load_oracle

VOCAB = 12
BLOCK_SIZES = world.BLOCK_SIZES | {"mtp_swa": 8}


@functools.cache
def folder(layers: int = 1) -> Path:
    """A checkpoint with so many MTP layers; it lives as long as the process."""
    keep = tempfile.TemporaryDirectory()
    _KEPT.append(keep)
    config = tiny_config(
        vocab_size=VOCAB, hidden_size=32, compress_ratios=(0, 4, 128), num_hash_layers=1, head_dim=16,
        index_topk=4, sliding_window=16, n_routed_experts=4, num_nextn_predict_layers=layers,
    )  # fmt: skip
    write_random_checkpoint(keep.name, config, seed=5)
    return Path(keep.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def loaded(layers: int = 1) -> LoadedModel:
    """The model with its MTP layers."""
    options = ModelOptions(kv_cache_memory=1 << 25, block_sizes=BLOCK_SIZES)
    return load_model(folder(layers), options, mtp=True)


@functools.cache
def oracle(layers: int = 1) -> MtpOracle:
    """transformers' parts on the same files."""
    where = folder(layers)
    return MtpOracle(load_oracle(where), load_checkpoint(where).mtp)


def engine(depth: int = 1, drafts: int = 1, layers: int = 1, **knobs) -> Engine:
    """An engine whose caches are full of NaN."""
    knobs = {"max_model_len": 720, "max_num_batched_tokens": 720} | knobs
    return world.engine(depth, loaded=loaded(layers), num_speculative_tokens=drafts, **knobs)


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Reproducible tokens without end of text."""
    return tuple(2 + (i * i * 7 + i * (salt + 3) + i // 5 + salt) % (VOCAB - 2) for i in range(length))


def request(name: str, tokens: Sequence[int], **params) -> Request:
    return Request(name, tuple(tokens), SamplingParams(**params))


@functools.cache
def plain(wanted: Request, layers: int = 1) -> RequestResult:
    """What the request says without drafts, by itself, synchronously, its prompt in one chunk."""
    with engine(1, 0, layers, prefill_chunk_size=720) as built:
        result = run_all(built, [wanted])[wanted.request_id].result
    assert result is not None
    return result


def whole(wanted: Request, layers: int = 1) -> tuple[int, ...]:
    """Prompt and plain output."""
    return wanted.prompt_token_ids + plain(wanted, layers).token_ids


class Recorder:
    """Stands where an engine's MTP layers stand, and keeps what they make of the rows of each request.

    logits: (request, MTP layer, position) -> [V], of confirmed rows. offered: (request, position of the row's
    first token) -> its drafts. rows: (request, start, length) of decode rows.
    """

    def __init__(self, built: Engine) -> None:
        runner = built.runner
        self.real: MtpLayers = runner.drafter.mtp
        self.logits_of: dict[tuple[str, int, int], Tensor] = {}
        self.offered: dict[tuple[str, int], list[int]] = {}
        self.rows: list[tuple[str, int, int]] = []
        self._runner, self._names = runner, ()
        self._execute, self._propose = runner.execute, runner.drafter.propose
        runner.execute, runner.drafter.propose, runner.drafter.mtp = self.execute, self.propose, self

    def __getattr__(self, name: str):
        return getattr(self.real, name)

    def execute(self, output, new_requests=()):
        self._names = output.request_ids
        return self._execute(output, new_requests)

    def propose(self, rows, dispatch):
        drafts = self._propose(rows, dispatch)
        for line, name in enumerate(self._names):
            start, length = int(dispatch.starts[line]), rows.lengths[line]
            self.offered[name, start] = drafts[line, : length - 1].tolist()
            self.rows.append((name, start, length))
        return drafts

    def prefill(self, dispatch, streams, tails, cache):
        found = self.real.prefill(dispatch, streams, tails, cache)
        begins = dispatch.query_start_loc.tolist()
        for i, name in enumerate(self._names):
            rows = slice(begins[i], begins[i + 1])
            self._keep(name, int(dispatch.chunk_starts[i]), found[rows])
        return found

    def decode(self, dispatch, streams, tails, cache):
        found = self.real.decode(dispatch, streams, tails, cache)
        for i, name in enumerate(self._names):
            self._keep(name, int(dispatch.starts[i]), found[i, : int(dispatch.num_tokens[i])])
        return found

    def _keep(self, name: str, start: int, found: Tensor) -> None:
        for layer in range(found.shape[1]):
            for i, line in enumerate(self.real.logits(layer, found[:, layer])):
                self.logits_of[name, layer, start + i] = line

    def table(self, name: str, layer: int, count: int) -> Tensor:
        """Logits [count, V] of the first rows of a request."""
        return torch.stack([self.logits_of[name, layer, position] for position in range(count)])


def guide(built: Engine, texts: Mapping[str, Sequence[int]], is_right: Callable[[str, int], bool]) -> None:
    """Replace what the MTP layers propose, after they have proposed: the draft for a position of a request's
    known text is that text's token where `is_right`, and another one where not.
    """
    runner = built.runner
    propose = runner.drafter.propose

    def guided(rows, dispatch):
        drafts = propose(rows, dispatch)
        names = {runner.slots.slot_of(name): name for name in runner.slots.request_ids}
        for line, slot in enumerate(rows.slots.tolist()):
            name, start = names[slot], int(dispatch.starts[line])
            for i in range(drafts.shape[1]):
                position = start + 1 + i
                if position < len(texts[name]):
                    wrong = 0 if is_right(name, position) else 1
                    drafts[line, i] = (texts[name][position] + wrong) % VOCAB
        return drafts

    runner.drafter.propose = guided
