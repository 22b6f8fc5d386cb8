"""An async event source as a synchronous one, for `machine.run`, also inside a running event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from orchestrator.errors import ConfigError

S = TypeVar("S")
E = TypeVar("E")
C = TypeVar("C")


class BlockingSource(Generic[S, E, C]):
    """Calls an async source in its own event loop in a thread, and waits for the result.

    The loop lives as long as this object, because resources of a source (a worker process, connections) belong to one
    loop. Close it, or use it as a context manager; a source with a `close` method is closed with it.
    """

    def __init__(self, source: Callable[[S, C], Awaitable[E | None]]) -> None:
        self._source = source
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-source", daemon=True)
        self._thread.start()

    def __call__(self, state: S, context: C) -> E | None:
        """Return the next event. Raises the errors of the source."""
        event: E | None = self._wait(lambda: self._source(state, context))
        return event

    def close(self) -> None:
        """Close the source, the loop and its thread. A second call has no effect."""
        if self._loop.is_closed():
            return
        close: Any = getattr(self._source, "close", None)
        try:
            if close is not None:
                self._wait(close)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            return await work()

        if self._loop.is_closed():
            raise ConfigError("this event source is closed; make another one")
        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()
