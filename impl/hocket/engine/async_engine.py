"""The engine behind asyncio: requests stream while one thread drives the engine.

    async with AsyncEngine.from_model(folder, SchedulerConfig()) as engine:
        async for update in engine.stream(request):
            ...

The engine thread sleeps until something happens: a request or an abort from the event loop, a result from the
worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from hocket.core.config import SchedulerConfig
from hocket.core.request import Request
from hocket.engine.engine import Engine
from hocket.engine.errors import EngineDeadError
from hocket.engine.results import RequestResult, RequestUpdate

if TYPE_CHECKING:
    from hocket.engine.build import ModelOptions
    from hocket.obs.trace import TraceWriter

Action = Callable[[], object]


class _Command(NamedTuple):
    action: Action
    done: Future[object]


class RequestStream:
    """The updates of one accepted request, as an async iterator; the last one has `finished`.

    Close it (`aclose`) to abort a request that nobody waits for any more.
    """

    def __init__(self, request_id: str, close: Callable[[RequestStream], object]) -> None:
        self.request_id = request_id
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[RequestUpdate | EngineDeadError] = asyncio.Queue()
        self._ended = False

    def put(self, item: RequestUpdate | EngineDeadError) -> None:
        """From any thread; a loop that is closed has nobody left who waits."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestUpdate:
        """The next update. Raises `EngineDeadError` if the engine dies meanwhile."""
        if self._ended:
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, EngineDeadError):
            self._ended = True
            raise item
        self._ended = item.finished
        return item

    async def aclose(self) -> None:
        """Abort the request if it lives; do not wait for that."""
        if not self._ended:
            self._ended = True
            self._close(self)


class AsyncEngine:
    """Add, stream and abort from any event loop. `build` makes the engine; it is called with the callback
    that the engine must be given as `on_result`.
    """

    def __init__(self, build: Callable[[Callable[[], None]], Engine]) -> None:
        self._wake = threading.Event()
        self._commands: deque[_Command] = deque()
        self._streams: dict[str, RequestStream] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._dead: EngineDeadError | None = None
        self.engine = build(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="hocket-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_model(
        cls,
        folder: str | Path,
        scheduler_config: SchedulerConfig,
        options: ModelOptions | None = None,
        *,
        seed: int = 0,
        trace: TraceWriter | None = None,
        shadow_check: bool = False,
    ) -> AsyncEngine:
        """Load a checkpoint folder and serve it; `seed`, `trace`, `shadow_check` as `Engine` takes them."""
        from hocket.engine.build import build_engine, load_model  # torch

        loaded = load_model(folder, options, mtp=scheduler_config.num_speculative_tokens > 0)
        return cls(
            lambda on_result: build_engine(
                loaded,
                scheduler_config,
                seed=seed,
                trace=trace,
                on_result=on_result,
                shadow_check=shadow_check,
            )
        )

    @property
    def is_dead(self) -> bool:
        """True once the engine has died or was shut down: every call raises `EngineDeadError`."""
        return self._dead is not None

    async def add_request(self, request: Request) -> RequestStream:
        """Accept a request and return its updates.

        Raises `ValueError` or `QueueFullError` if the request is refused, `EngineDeadError` if the engine is
        dead.
        """
        stream = RequestStream(request.request_id, self._drop)
        try:
            await self._call(lambda: self._add(request, stream))
        except asyncio.CancelledError:
            self._drop(stream)  # it may have been added already
            raise
        return stream

    async def stream(self, request: Request) -> AsyncIterator[RequestUpdate]:
        """`add_request`, and its updates. Leaving the iteration early aborts the request."""
        updates = await self.add_request(request)
        try:
            async for update in updates:
                yield update
        finally:
            await updates.aclose()

    async def generate(self, request: Request) -> RequestResult:
        """Run a request to its end."""
        last: RequestUpdate | None = None
        async for update in self.stream(request):
            last = update
        assert last is not None
        assert last.result is not None
        return last.result

    async def abort(self, request_id: str) -> bool:
        """End a request now; its stream gets a last update with finish_reason "abort". False if it is
        unknown.
        """
        return bool(await self._call(lambda: self._abort(request_id, None)))

    async def call(self, action: Callable[[Engine], object]) -> object:
        """Run `action` on the engine, in the engine's thread, between two steps (to read its state, say)."""
        return await self._call(lambda: action(self.engine))

    def shutdown(self) -> None:
        """Abort what lives, stop both threads. Waits for the dispatches that are in flight."""
        with self._lock:
            self._stopping = True
        self._wake.set()
        self._thread.join()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    # --- From the event loops ---------------------------------------------------------------------

    def _post(self, action: Action) -> Future[object]:
        """Queue an action for the engine's thread."""
        done: Future[object] = Future()
        with self._lock:
            if self._dead is None:
                self._commands.append(_Command(action, done))
            else:
                done.set_exception(_copy(self._dead))
        self._wake.set()
        return done

    def _drop(self, stream: RequestStream) -> None:
        """Abort a stream's request, unless it has ended or its id was used again."""
        self._post(lambda: self._abort(stream.request_id, stream))

    async def _call(self, action: Action) -> object:
        return await asyncio.wrap_future(self._post(action))

    # --- In the engine's thread -------------------------------------------------------------------

    def _add(self, request: Request, stream: RequestStream) -> None:
        self.engine.add_request(request)
        self._streams[request.request_id] = stream

    def _abort(self, request_id: str, stream: RequestStream | None) -> bool:
        """Abort; with a `stream` only if the id is still that stream's (it may have been used again)."""
        if stream is not None and self._streams.get(request_id) is not stream:
            return False
        update = self.engine.abort_request(request_id)
        if update is not None:
            self._deliver(update)
        return update is not None

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                self._obey()
                for update in self.engine.step(wait=False):
                    self._deliver(update)
                if not self.engine.can_step():
                    self._wake.wait()
            for request_id in tuple(self._streams):
                self._abort(request_id, None)
            death = EngineDeadError("the engine was shut down")
        except EngineDeadError as error:
            death = error
        except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            death = EngineDeadError(f"the engine died: {type(error).__name__}: {error}")
            death.__cause__ = error
        self._die(death)

    def _obey(self) -> None:
        """Carry out what the event loops asked for; what a request's action raises is that request's own."""
        while self._commands:
            action, done = self._commands.popleft()
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(action())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                done.set_exception(error)

    def _deliver(self, update: RequestUpdate) -> None:
        stream = self._streams.get(update.request_id)
        if stream is not None:
            stream.put(update)
        if update.finished:
            self._streams.pop(update.request_id, None)

    def _die(self, error: EngineDeadError) -> None:
        """Tell everybody who waits."""
        with self._lock:
            self._dead = error
            commands = tuple(self._commands)
            self._commands.clear()
        for command in commands:
            if command.done.set_running_or_notify_cancel():
                command.done.set_exception(_copy(error))
        for stream in self._streams.values():
            stream.put(_copy(error))
        self._streams.clear()
        self.engine.shutdown()


def _copy(error: EngineDeadError) -> EngineDeadError:
    """For one who is told: an exception that is raised again and again collects all their tracebacks."""
    copy = EngineDeadError(*error.args)
    copy.__cause__ = error.__cause__
    return copy
