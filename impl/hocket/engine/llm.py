"""`LLM`: load a checkpoint folder, generate for a list of prompts.

llm = LLM("path/to/checkpoint", prefill_chunk_size=2048)
for result in llm.generate(["..."], SamplingParams(max_tokens=32)):
    print(result.text)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from hocket.core.checks import shown
from hocket.core.config import SchedulerConfig
from hocket.core.request import Request, SamplingParams
from hocket.core.speculative import agreed_tokens
from hocket.engine.build import LoadedModel, ModelOptions, build_engine, load_model
from hocket.engine.engine import Engine
from hocket.engine.errors import EngineDeadError
from hocket.engine.progress import Progress
from hocket.engine.results import RequestResult
from hocket.obs.trace import TraceWriter

Prompt = str | Sequence[int]


class LLM:
    """Offline generation. Not thread-safe.

    model: a checkpoint folder, or a model that was loaded before.
    dtype, device, kv_cache_memory, block_size, block_sizes, shared_pool: see `ModelOptions`, also for what
        holds where they are not given. A model that was loaded before has its options already: `ValueError`.
    seed: for requests without a seed of their own.
    trace: write an NDJSON trace to this file. It is opened here; the first action replaces what it held.
    shadow_check: hold every action of the scheduler against the specification, see `Engine`.
    speculative_config: as vLLM takes it, `{"method": "mtp", "num_speculative_tokens": 1}` or its JSON text;
        the same as the knob `num_speculative_tokens`.
    scheduler_knobs: fields of `SchedulerConfig`. Without `max_model_len` its default holds, or the model's
        `max_position_embeddings` if that is less.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        dtype: str | None = None,
        device: str | None = None,
        kv_cache_memory: int | None = None,
        block_size: int | None = None,
        block_sizes: Mapping[str, int] | None = None,
        shared_pool: bool | None = None,
        seed: int = 0,
        trace: str | Path | None = None,
        shadow_check: bool = False,
        speculative_config: str | Mapping[str, Any] | None = None,
        **scheduler_knobs: Any,
    ) -> None:
        if speculative_config is not None:
            plain = scheduler_knobs.get("num_speculative_tokens")
            scheduler_knobs["num_speculative_tokens"] = agreed_tokens(plain, speculative_config)
        for name in scheduler_knobs:
            if name not in SchedulerConfig.__dataclass_fields__:
                raise TypeError(
                    f"LLM got an unexpected keyword argument {name!r}: neither one of its own nor a field of "
                    "SchedulerConfig"
                )
        config = SchedulerConfig(**scheduler_knobs)
        options = {
            "dtype": dtype,
            "device": device,
            "kv_cache_memory": kv_cache_memory,
            "block_size": block_size,
            "block_sizes": block_sizes,
            "shared_pool": shared_pool,
        }
        self.model = _loaded(model, options, mtp=config.num_speculative_tokens > 0)
        if "max_model_len" not in scheduler_knobs:
            limit = self.model.config.max_position_embeddings
            config = replace(config, max_model_len=min(config.max_model_len, limit))
        with ExitStack() as failed:
            self._trace = None if trace is None else failed.enter_context(TraceWriter(trace))
            self.engine: Engine = build_engine(
                self.model, config, seed=seed, trace=self._trace, shadow_check=shadow_check
            )
            failed.pop_all()
        self._calls = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        use_tqdm: bool = True,
    ) -> list[RequestResult]:
        """Run all prompts, return their results in the order of the prompts.

        A prompt is a text or its token ids; `sampling_params` and `priority` are for all or one per prompt. A
        bad prompt refuses the call with a `ValueError` before anything starts. Raises `EngineDeadError` if
        the engine dies.
        """
        requests = self._requests(prompts, sampling_params, priority)
        for request in requests:
            self.engine.check_request(request)
        self._calls += 1
        results: dict[str, RequestResult] = {}
        unsent = deque(requests)
        try:
            with Progress(len(requests), use_tqdm) as progress:
                while unsent or self.engine.has_unfinished_requests():
                    while unsent and self._has_room():
                        self.engine.add_request(unsent.popleft())
                    ended = [update.result for update in self.engine.step() if update.result is not None]
                    results.update({result.request_id: result for result in ended})
                    progress.show(self.engine.stats, len(ended))
        except BaseException:
            self._drop(requests)
            raise
        return [results[request.request_id] for request in requests]

    def shutdown(self) -> None:
        """Stop the engine's thread and close the trace."""
        self.engine.shutdown()
        if self._trace is not None:
            self._trace.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.shutdown()

    def _drop(self, requests: Sequence[Request]) -> None:
        """Leave nothing behind of a call that was interrupted."""
        with suppress(EngineDeadError):
            for request in requests:
                self.engine.abort_request(request.request_id)
            while self.engine.has_unfinished_requests():
                self.engine.step()

    def _has_room(self) -> bool:
        limit = self.engine.scheduler.config.max_num_queued_reqs
        return limit is None or self.engine.scheduler.num_waiting < limit

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int],
    ) -> list[Request]:
        listed = _listed(prompts)
        if sampling_params is None:
            sampling_params = SamplingParams()
        params = _one_each("sampling_params", sampling_params, len(listed), SamplingParams)
        priorities = _one_each("priority", priority, len(listed), int)
        return [
            self.model.request(f"{self._calls}-{i}", prompt, params[i], priorities[i])
            for i, prompt in enumerate(listed)
        ]


def _loaded(model: str | Path | LoadedModel, options: Mapping[str, Any], mtp: bool) -> LoadedModel:
    """The model, loaded with those `options` that are not None. ValueError for options that come too late."""
    given = {name: value for name, value in options.items() if value is not None}
    if not isinstance(model, LoadedModel):
        return load_model(model, ModelOptions(**given), mtp=mtp)
    if given:
        raise ValueError(
            f"{', '.join(given)} must not be given with a model that is loaded already: "
            "its ModelOptions were given to load_model"
        )
    return model


def _listed(prompts: Any) -> list[str | tuple[int, ...]]:
    """One prompt or several, as a list of texts and token ids; what the ids are is checked later."""
    if isinstance(prompts, str):
        return [prompts]
    # Iterating over a tensor or an array gives scalars that can be iterated over themselves, up to an error.
    prompts = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    if not _is_sequence(prompts):
        raise ValueError(f"prompts must be a text, token ids, or a list of them, got {shown(prompts)}")
    entries = [entry.tolist() if hasattr(entry, "tolist") else entry for entry in prompts]
    if entries and not any(isinstance(entry, str) or _is_sequence(entry) for entry in entries):
        return [tuple(entries)]
    for at, entry in enumerate(entries):
        if not isinstance(entry, str) and not _is_sequence(entry):
            raise ValueError(f"prompts[{at}] must be a text or a list of token ids, got {shown(entry)}")
    return [entry if isinstance(entry, str) else tuple(entry) for entry in entries]


def _is_sequence(value: object) -> bool:
    """Lists, tuples, arrays; not bytes and not mappings, which iterate over something else than prompts."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping))


def _one_each(field: str, value: Any, count: int, kind: type) -> list[Any]:
    """`value` for each of `count` prompts, or its entries if it is a list of as many."""
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or len(value) != count:
        got = f"{len(value)} of them" if isinstance(value, Sequence) else shown(value)
        raise ValueError(f"{field} must be one for all or one for each of the {count} prompts, got {got}")
    return list(value)
