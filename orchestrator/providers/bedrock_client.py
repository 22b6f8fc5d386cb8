"""Clients of boto3 for Bedrock whose calls end with their caller, and that do not retry.

boto3 blocks the thread of a call until the server answers or its read timeout of 5 minutes passes. pydantic-ai leaves
such a thread behind when the call is cancelled, and an interpreter waits for the threads of its pool before it exits.
So each call runs in a daemon thread here, and the thread of the pool waits for it only as long as the caller does. To
shut down the socket was rejected: no public name of botocore leads to it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

_SERVICE: Final = "bedrock-runtime"
_OPERATIONS: Final = ("converse", "converse_stream")


class _Calls:
    """The calls of one caller. One that starts when the caller has left ends at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Future[Any]] = []
        self._ended = False

    def add(self, answer: Future[Any]) -> None:
        with self._lock:
            self._waiting.append(answer)
            if self._ended:
                answer.cancel()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for answer in self._waiting:
                answer.cancel()


_CALLS: ContextVar[_Calls | None] = ContextVar("orchestrator_bedrock_calls", default=None)


def prepare(client: Any) -> None:
    """Turn off the retries of a client, and let its calls end with the block of `calls_end`."""
    client.meta.events.unregister(f"needs-retry.{_SERVICE}", unique_id=f"retry-config-{_SERVICE}")
    for name in _OPERATIONS:
        setattr(client, name, _in_daemon(getattr(client, name)))


@contextmanager
def calls_end() -> Iterator[None]:
    """Free the threads that wait for calls of this block when the block is left."""
    calls = _Calls()
    token = _CALLS.set(calls)
    try:
        yield
    finally:
        _CALLS.reset(token)
        calls.end()


def _in_daemon(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(**params: Any) -> Any:
        answer: Future[Any] = Future()
        if (calls := _CALLS.get()) is not None:
            calls.add(answer)
        context = contextvars.copy_context()
        work = threading.Thread(
            target=context.run, args=(_settle, answer, operation, params), name="bedrock call", daemon=True
        )
        if not answer.cancelled():
            work.start()
        return answer.result()

    return call


def _settle(answer: Future[Any], operation: Callable[..., Any], params: dict[str, Any]) -> None:
    try:
        result = operation(**params)
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        with suppress(InvalidStateError):
            answer.set_exception(error)
        return
    try:
        answer.set_result(result)
    except InvalidStateError:  # the caller left
        if (stream := result.get("stream")) is not None:
            stream.close()
