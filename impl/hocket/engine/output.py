"""From the scheduler's news to the caller's: detokenisation, stop strings, logprobs, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hocket.core.records import FinishReason, RequestOutput
from hocket.core.request import Request
from hocket.engine.results import RequestMetrics, RequestResult, RequestUpdate
from hocket.engine.stop import StopStrings
from hocket.runner.api import TokenLogprobs

if TYPE_CHECKING:
    from hocket.model.tokenizer import Decoder, IncrementalDetokenizer


def _detokenizer(tokenizer: Decoder) -> IncrementalDetokenizer:
    # Imported here: an engine without a tokenizer does without the library behind it.
    from hocket.model.tokenizer import IncrementalDetokenizer

    return IncrementalDetokenizer(tokenizer)


class Processed(NamedTuple):
    """An update, and whether a stop string ended the request (which the scheduler may not know of yet)."""

    update: RequestUpdate
    stopped: bool


class _Transcript:
    """What a live request has said so far."""

    def __init__(self, request: Request, tokenizer: Decoder | None, now: float) -> None:
        self.request = request
        self.metrics = RequestMetrics(arrival_s=now)
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprobs] | None = None if request.sampling_params.logprobs is None else []
        self._detokenizer = None if tokenizer is None else _detokenizer(tokenizer)
        self._stops = StopStrings(request.sampling_params.stop)

    def append(self, token_ids: Sequence[int]) -> tuple[int, str, bool]:
        """Add tokens up to a stop string: (tokens taken, text settled by them, whether a stop string ended
        it).
        """
        said: list[str] = []
        for count, token in enumerate(token_ids, 1):
            self.token_ids.append(token)
            if self._detokenizer is None:
                continue
            armed = len(self.token_ids) >= self.request.sampling_params.min_tokens
            match = self._stops.add(self._detokenizer.push((token,)), armed)
            said.append(match.text)
            if match.stopped:
                return count, self._say(said), True
        return len(token_ids), self._say(said), False

    def flush(self) -> tuple[str, bool]:
        """Text held back so far, at the end; it may hold a stop string that was waiting for its last
        character.
        """
        if self._detokenizer is None:
            return "", False
        match = self._stops.add(self._detokenizer.flush())
        said = match.text if match.stopped else match.text + self._stops.flush()
        return self._say([said]), match.stopped

    def _say(self, said: Sequence[str]) -> str:
        text = "".join(said)
        self.text += text
        return text


class OutputProcessor:
    """Keeps the transcripts of live requests. An exception concerns the request whose output it was, nobody
    else.
    """

    def __init__(self, tokenizer: Decoder | None) -> None:
        self._tokenizer = tokenizer
        self._live: dict[str, _Transcript] = {}

    def add(self, request: Request, now: float) -> None:
        """A request was accepted at `now`."""
        self._live[request.request_id] = _Transcript(request, self._tokenizer, now)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Live requests, in order of arrival."""
        return tuple(self._live)

    def preempted(self, request_id: str) -> None:
        """Count a preemption."""
        live = self._live.get(request_id)
        if live is not None:
            live.metrics.num_preemptions += 1

    def process(
        self,
        news: RequestOutput,
        logprobs: Sequence[TokenLogprobs] | None,
        now: float,
        drafts: int = 0,
        accepted: int = 0,
    ) -> Processed:
        """Turn the scheduler's news of a live request into an update; ends its transcript if it finished.

        drafts: how many its row carried. accepted: how many of them the target chose; those after the
        request's end do not count.
        """
        live = self._live[news.request_id]
        if news.new_token_ids:
            live.metrics.tokens_at(now)
        taken, text, stopped = live.append(news.new_token_ids)
        live.metrics.num_draft_tokens += drafts
        live.metrics.num_accepted_tokens += min(accepted, taken)
        finished = news.finished or stopped
        if finished and not stopped:
            rest, stopped = live.flush()
            text += rest
        reason: FinishReason | None = "stop" if stopped else news.finish_reason
        new_logprobs = None
        if live.logprobs is not None and logprobs is not None:
            new_logprobs = tuple(logprobs[:taken])
            live.logprobs.extend(new_logprobs)
        result = self._result(live, reason, None, now) if finished and reason is not None else None
        update = RequestUpdate(
            news.request_id, news.new_token_ids[:taken], text, finished, reason, new_logprobs, result
        )
        return Processed(update, stopped)

    def end(self, request_id: str, reason: FinishReason, error: str | None, now: float) -> RequestUpdate:
        """End a live request from outside (abort, error): its text so far is its text."""
        live = self._live[request_id]
        result = self._result(live, reason, error, now)
        return RequestUpdate(request_id, (), "", True, reason, None, result)

    def _result(
        self, live: _Transcript, reason: FinishReason, error: str | None, now: float
    ) -> RequestResult:
        del self._live[live.request.request_id]
        live.metrics.finished_s = now
        return RequestResult(
            request_id=live.request.request_id,
            prompt_token_ids=live.request.prompt_token_ids,
            token_ids=tuple(live.token_ids),
            text=live.text,
            finish_reason=reason,
            metrics=live.metrics,
            logprobs=None if live.logprobs is None else tuple(live.logprobs),
            error=error,
        )
