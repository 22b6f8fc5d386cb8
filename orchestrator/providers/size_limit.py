"""Limit the size of an answer: bytes after decompression, counted as they arrive.

One number, `max_response_bytes` of a model, limits three things: the body of an answer that is not streamed, each
event of a stream, and the stored part of a stream. It limits the stored part and not the transferred one, because
servers wrap each token into some 300 bytes: 32 MB of those would end an answer of 100,000 tokens that is 400 kB long.

The HTTP library decompresses in steps of 1 MiB, so that the limit applies before a small body has become a large one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

from orchestrator.errors import ConfigError, LLMError

DEFAULT_BYTES = 32 * 1024 * 1024
_ERROR_BYTES = 1024 * 1024
"""Maximum bytes that are read of the body of an HTTP error; its message is in the first kilobyte."""
_PIECE_BYTES = 64
"""Cost of a short text beside its characters, so that a stream of tiny pieces cannot fill the memory."""

_CUTS_ERRORS: ContextVar[bool] = ContextVar("orchestrator_cuts_errors", default=False)


def check_limit(name: str, limit: int) -> int:
    """Return a limit of bytes. Raises ConfigError for a number below 0."""
    if type(limit) is not int or limit < 0:
        raise ConfigError(f"{name} is {limit!r}; possible: bytes, 1 or more, or 0 for no limit")
    return limit


def too_large(limit: int) -> LLMError:
    """Return the error of an answer that exceeds the limit. It contains nothing of the answer."""
    return LLMError(
        f"the provider's answer has more than {limit:,} bytes and was not read to its end; "
        "raise max_response_bytes of the model where such answers are expected (0 = no limit)",
        kind="malformed",
        retryable=False,  # a retry would exceed the limit again
    )


def kept_size(*pieces: str) -> int:
    """Return the approximate bytes of some texts in memory, 0 for empty ones."""
    return sum(_PIECE_BYTES + len(piece) for piece in pieces if piece)


async def body_of(beginning: bytes, chunks: AsyncIterator[bytes], limit: int) -> bytearray:
    """Return the beginning and all chunks as one. Raises LLMError as soon as they exceed the limit."""
    body = bytearray()
    chunk: bytes | None = beginning
    while chunk is not None:
        body += chunk
        if 0 < limit < len(body):
            raise too_large(limit)
        chunk = await anext(chunks, None)
    return body


# ---- bodies that the SDK reads itself ----


@contextmanager
def short_errors() -> Iterator[None]:
    """Cut the bodies of HTTP errors for the requests inside: the SDK reads them whole before it raises."""
    token = _CUTS_ERRORS.set(True)
    try:
        yield
    finally:
        _CUTS_ERRORS.reset(token)


def watch_errors(client: Any) -> None:
    """Make the HTTP client of an SDK's client apply `short_errors`; other requests through it are unchanged."""
    http = getattr(client, "_client", None)
    hooks = getattr(http, "event_hooks", None)
    if http is not None and hooks is not None and _cut not in hooks["response"]:
        http.event_hooks = {**hooks, "response": [*hooks["response"], _cut]}


async def _cut(response: Any) -> None:
    """End the body of an HTTP error after its first bytes: an event hook of the HTTP library."""
    if not (_CUTS_ERRORS.get() and response.is_error):
        return
    whole = response.aiter_bytes

    async def first(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = 0
        async with aclosing(whole(chunk_size)) as chunks:
            async for chunk in chunks:
                yield chunk
                size += len(chunk)
                if size >= _ERROR_BYTES:
                    return

    response.aiter_bytes = first
