"""Connect to a server with the SDK's transports, and add the parts that they leave to their callers.

The SDK joins each piece that it reads with the unfinished line and splits the whole again, without a limit. It
accepts the name of an encoding: ours returns whole lines only, so that the SDK has nothing to join. The context
in which the SDK starts its reader holds the limit and the name of the server.

The transports report a lost connection only when a request is sent, they write a program's standard error to our
terminal, and they raise failures as groups of exceptions, which are not sentences.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TextIO
from urllib.parse import urlsplit

from pydantic_core import to_json

from orchestrator.llm.message import encodable
from orchestrator.providers.connection import (
    DEFAULT_BYTES,
    SecretMask,
    secrets_of_address,
    secrets_of_headers,
    shared_context,
)
from orchestrator.providers.mcp.offer import clean

if TYPE_CHECKING:
    import httpx2
    from mcp_types import LoggingMessageNotificationParams

ENCODING = "orchestrator_mcp_lines"
"""UTF-8 by whole lines; invalid bytes are replaced."""


class LineSource(NamedTuple):
    """The server of the stream, the maximum bytes of a line (0 is no limit), and the function that ends its session."""

    name: Callable[[], str] = str
    limit: int = 0
    end: Callable[[], None] = lambda: None


SOURCE: ContextVar[LineSource] = ContextVar("orchestrator_mcp_source")


class LineTooLong(ConnectionError):
    """A line exceeds the limit. The SDK treats it as a failed connection, and drops the rest."""


class LineDecoder(codecs.IncrementalDecoder):
    """Returns the complete lines. Raises LineTooLong."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._line = bytearray()
        self._source = SOURCE.get(LineSource())

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override]  # noqa: FBT001, FBT002
        """Return the text up to the last line end in `data`; with `final`, also the rest."""
        first, last = data.find(b"\n"), data.rfind(b"\n")
        self._check(len(self._line) + (len(data) if first < 0 else first))
        if last < 0 and not final:
            self._line += data
            return ""
        end = len(data) if final else last + 1
        self._line += data[:end]
        text = self._line.decode(errors="replace")
        self._line[:] = data[end:]
        return text

    def reset(self) -> None:
        self._line.clear()

    def _check(self, size: int) -> None:
        name, limit, end = self._source
        if 0 < limit < size:
            _log.warning(
                "MCP server %r wrote a message of more than %d bytes; its session is closed (max_message_bytes, 0 = no "
                "limit)",
                name(),
                limit,
            )
            end()
            raise LineTooLong(f"a line has more than {limit:,} bytes")


def _codec(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=LineDecoder, name=ENCODING)


codecs.register(_codec)


_log = logging.getLogger("orchestrator.mcp")

_LINE_CHARS = 500
_LINES = 1_000
_PENDING_BYTES = 64 * 1024
_LAST_WORDS = 0.2
_CONNECT = 10.0
_SHOWN = 200

Ended = Callable[[], None]


def leaf_of(error: BaseException) -> BaseException:
    """Return the first single exception of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(frozen=True, slots=True)
class Stdio:
    """A local program."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path | None
    limit: int = DEFAULT_BYTES
    """Maximum bytes of one message; 0 is no limit."""
    said: list[str] = field(default_factory=list, compare=False, repr=False)
    """The last line of standard error."""
    mask: SecretMask = field(init=False, compare=False, repr=False)
    """Masks the secrets among the variables of the program."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", SecretMask(secrets_of_headers(self.env)))

    @property
    def label(self) -> str:
        return Path(self.command).name

    def why(self, error: BaseException) -> str:
        """Return the reason why there is no session with the program."""
        first = leaf_of(error)
        if isinstance(first, OSError) and self.cwd is not None and not self.cwd.is_dir():
            return f"there is no folder {str(self.cwd)!r} to start it in"
        if isinstance(first, FileNotFoundError):
            return f"there is no command {self.command!r}"
        if isinstance(first, OSError):
            return f"the command {self.command!r} cannot be started: {first.strerror or first}"
        last = f"; it wrote: {self.said[-1]}" if self.said else ""
        return self.mask.masked(f"{_plainly(first, 'the program ended before it answered')}{last}")

    @asynccontextmanager
    async def opened(self, name: Callable[[], str], ended: Ended) -> AsyncIterator[Any]:
        """Start the program; yield the SDK's streams."""
        from mcp.client.stdio import StdioServerParameters, stdio_client

        _quieten()
        self.said.clear()
        program = StdioServerParameters(
            command=self.command,
            args=list(self.args),
            env=dict(self.env),
            cwd=self.cwd,
            encoding=ENCODING,
            encoding_error_handler="replace",
        )
        SOURCE.set(LineSource(name, self.limit, ended))
        async with (
            _logged(name, self.said, self.mask) as written,
            stdio_client(program, written) as (read, write),
        ):
            written.close()  # the program has its own
            yield _Watched(read, ended, name, {}), write


@dataclass(frozen=True, slots=True)
class Http:
    """An address."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    limit: int = DEFAULT_BYTES
    """Maximum bytes of one message; 0 is no limit."""
    seen: list[int] = field(default_factory=list, compare=False, repr=False)
    """The last error status."""
    mask: SecretMask = field(init=False, compare=False, repr=False)
    """Masks the secrets of address and headers."""

    def __post_init__(self) -> None:
        secrets = (*secrets_of_address(self.url), *secrets_of_headers(self.headers))
        object.__setattr__(self, "mask", SecretMask(secrets))

    @property
    def label(self) -> str:
        return urlsplit(self.url).hostname or self.url

    @property
    def shown(self) -> str:
        """The address without parts that may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def why(self, error: BaseException) -> str:
        """Return the reason why there is no session with the address."""
        import httpx2

        first = leaf_of(error)
        if isinstance(first, httpx2.TransportError):
            return f"{self.shown} does not answer ({type(first).__name__}: {first})"
        status = f" (HTTP {self.seen[-1]})" if self.seen else ""
        said = self.mask.masked(_plainly(first, "the connection closed"))
        return f"{self.shown} is not an MCP server, or refuses us{status}: {said}"

    @asynccontextmanager
    async def opened(self, name: Callable[[], str], ended: Ended) -> AsyncIterator[Any]:
        """Create a client for the address; yield the SDK's streams."""
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        _quieten()
        self.seen.clear()
        failed: dict[Any, int] = {}

        async def look(response: httpx2.Response) -> None:
            _limit_body(response, self.limit)
            if response.status_code >= httpx2.codes.BAD_REQUEST:
                self.seen[:] = [response.status_code]
            if response.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR and (
                sent := await response.request.aread()
            ):
                failed[json.loads(sent).get("id")] = response.status_code
            if (
                response.status_code == httpx2.codes.NOT_FOUND
                and "mcp-session-id" in response.request.headers
            ):
                ended()  # the protocol's status for a session that the server does not know any more

        # Reads have no limit here: a call has its own, and a quiet stream is not a fault.
        limits = httpx2.Timeout(_CONNECT, read=None)
        async with (
            httpx2.AsyncClient(
                headers=dict(self.headers),
                timeout=limits,
                event_hooks={"response": [look]},
                verify=shared_context(httpx2.AsyncClient),
            ) as client,
            streamable_http_client(self.url, http_client=client, max_sse_event_size=self.limit or None) as (
                read,
                write,
            ),
        ):
            yield _Watched(read, ended, name, failed), write


def _limit_body(response: httpx2.Response, limit: int) -> None:
    """Fail the read of a body at the limit; the SDK limits the events of a stream itself."""
    import httpx2

    if not limit or response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    whole = response.aiter_bytes

    async def limited(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = 0
        async with aclosing(whole(chunk_size)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise httpx2.StreamError(f"the answer has more than {limit:,} bytes (max_message_bytes)")
                yield chunk

    setattr(response, "aiter_bytes", limited)  # noqa: B010  the SDK's reader, of this response only


def _plainly(error: BaseException, closed: str) -> str:
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if not isinstance(error, MCPError):
        return (
            clean(f"{type(error).__name__}: {error}", _SHOWN)
            if not isinstance(error, ValueError)
            else str(error)
        )
    if isinstance(error.data, FromServer):
        return clean(error.message, _SHOWN)
    if error.code == CONNECTION_CLOSED:
        return closed
    return "it gave no answer in time" if error.code == REQUEST_TIMEOUT else clean(error.message, _SHOWN)


def _quieten() -> None:
    """Keep the SDK's log lines off the terminal of a host without configured logging; they quote servers."""
    logger = logging.getLogger("mcp")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    logging.getLogger("mcp.client.stdio").addFilter(_is_no_line_of_ours)  # a second time has no effect


def _is_no_line_of_ours(record: logging.LogRecord) -> bool:
    """Return False for the SDK's traceback about a line of one of our servers: `_Watched` logs it, once."""
    return SOURCE.get(None) is None or not str(record.msg).startswith("Failed to parse JSONRPC message")


def _is_readable(tool: object) -> bool:
    """Return whether the SDK accepts a listed tool."""
    from mcp_types import Tool
    from pydantic import ValidationError

    if not isinstance(tool, dict):
        return False
    schema = tool.get("inputSchema")
    try:
        Tool.model_validate(tool)
    except ValidationError:
        return False
    return isinstance(schema, dict) and schema.get("type") == "object"


class FromServer:
    """Marks an error that came from the server and has a code that the SDK gives to errors of its own, too.

    It takes the place of the `data` of the error, so that no server can forge it.
    """


class Unread(FromServer):
    """Marks an error of ours in place of an answer that could not be read."""


class Unanswered(FromServer):
    """Marks an error of the SDK in place of an answer, if the server may have carried out the request.

    A proxy answers with a status of 5xx whether the server had the request or not.
    """

    def __init__(self, got: str) -> None:
        self.got = got
        """What came in place of the answer, as a clause."""


_OF_TRANSPORT: Final = ("SSE stream failed: ", "SSE stream ended")
"""Starts of the texts with which the SDK's HTTP transport ends a request, through the stream of the server's messages.

An error of a server with such a text and the SDK's code is therefore taken for a lost connection.
"""
_UNPARSED: Final = ("Failed to parse JSON response: ", "Failed to parse SSE message: ")
"""Starts of the texts with which that transport replaces an answer that it could not read."""
_REFUSED: Final = "Server returned an error response"
"""The text with which it replaces an answer with an error status that is no message of the protocol."""
_NO_MESSAGE: Final = ("server answered a request with 202 Accepted", "Unexpected content type: ")
"""Starts of the texts with which it replaces an answer of success that is no message of the protocol."""
_UNFIT: Final = ("Tool ", "Invalid ")
"""Starts of the texts of a RuntimeError about a result that does not fit the output schema of its tool."""


def _marked(message: Any, failed: dict[Any, int]) -> Any:
    """Mark an error of the server whose code the SDK uses itself, and one of the SDK in place of an answer.

    `failed` has the status of each request that was answered with one of 5xx.
    """
    from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, REQUEST_TIMEOUT

    error = getattr(getattr(message, "message", None), "error", None)
    if error is None:
        return message
    status = failed.pop(message.message.id, 0)
    if error.code in {CONNECTION_CLOSED, REQUEST_TIMEOUT} and not error.message.startswith(_OF_TRANSPORT):
        error.data = FromServer()
    elif status and (error.code, error.message) == (INTERNAL_ERROR, _REFUSED):
        error.data = Unanswered(f"HTTP {status}")
    elif error.code == INVALID_REQUEST and error.message.startswith(_NO_MESSAGE):
        error.data = Unanswered(clean(error.message, _SHOWN))
    return message


def unreadable_answer(error: Exception) -> str | None:
    """Return why the answer to a request could not be read; None if the error is another one."""
    from mcp import MCPError
    from mcp_types import PARSE_ERROR
    from pydantic import ValidationError

    text = str(error)
    if isinstance(error, MCPError):
        unread = isinstance(error.data, Unread) or (error.code == PARSE_ERROR and text.startswith(_UNPARSED))
    elif isinstance(error, RuntimeError):
        unread = text.startswith(_UNFIT)
    else:
        unread = isinstance(error, ValidationError)
    return clean(" ".join(text.split()), _LINE_CHARS) if unread else None


_ID: Final = r'"id"\s*:\s*(?:(\d+)|"([^"\\]*)")\s*'
_ID_FIRST: Final = re.compile(rf'\s*\{{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?{_ID},\s*"result"')
_ID_LAST: Final = re.compile(rf'{_ID}(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}}\s*\Z')
_EDGE: Final = 300
"""Characters at each end of a message in which its id is searched."""


def _repaired(problem: Exception) -> Any:
    """Return the message of a line that the SDK could not parse, or an error that answers its request; else None.

    The SDK refuses JSON with lone surrogates and JSON that is nested deeply. The request would wait for its timeout,
    although its tool has run.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
    from pydantic import ValidationError

    line = problem.errors(include_url=False)[0]["input"] if isinstance(problem, ValidationError) else None
    if not isinstance(line, str):
        return None
    try:
        return SessionMessage(
            jsonrpc_message_adapter.validate_python(encodable(json.loads(line)), by_name=False)
        )
    except (ValueError, RecursionError):
        found = _ID_FIRST.match(line[:_EDGE]) or (
            _ID_LAST.search(line[-_EDGE:]) if '"result"' in line[:_EDGE] else None
        )
    if found is None:
        return None
    why = clean(str(problem.errors(include_url=False)[0]["msg"]), _SHOWN)  # type: ignore[attr-defined]
    error = ErrorData(code=INTERNAL_ERROR, message=why, data=Unread())
    return SessionMessage(
        JSONRPCError(jsonrpc="2.0", id=int(found[1]) if found[1] else found[2], error=error)
    )


class _Watched:
    """The SDK's stream of messages, with a callback at its end, and without tools that the SDK cannot read.

    Errors of the server are marked, and lines that are no messages are logged once.
    """

    def __init__(self, inner: Any, ended: Ended, name: Callable[[], str], failed: dict[Any, int]) -> None:
        self._inner = inner
        self._ended = ended
        self._name = name
        self._failed = failed
        self._warned = False

    def _seen(self, message: Any) -> Any:
        if isinstance(message, Exception):
            if (repaired := _repaired(message)) is None:
                self._warn()
                return message
            message = repaired
        # Leave tools of a wrong form out of a list of tools, because the SDK refuses the whole list for one of them.
        result = getattr(getattr(message, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(tools := result.get("tools"), list):
            bad = [tool for tool in tools if not _is_readable(tool)]
            for tool in bad:
                called = clean(str(tool.get("name")), _SHOWN) if isinstance(tool, dict) else "without a name"
                _log.warning(
                    "MCP server %r: tool %r is not offered: its schema or another part has a wrong form",
                    self._name(),
                    called,
                )
            if bad:
                result["tools"] = [tool for tool in tools if tool not in bad]
        with_readable_tools = message
        return _marked(with_readable_tools, self._failed)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "MCP server %r writes lines to its standard output that are no messages of the protocol; they are "
                "ignored. A server must write its own lines to standard error",
                self._name(),
            )

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        return self._seen(await self._inner.receive())

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._seen(await self._inner.__anext__())
        except Exception:  # StopAsyncIteration too
            self._ended()
            raise

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        result: bool | None = await self._inner.__aexit__(*error)
        return result


@asynccontextmanager
async def _logged(name: Callable[[], str], said: list[str], mask: SecretMask) -> AsyncIterator[TextIO]:
    """Yield a file for a program's output; its lines become log lines."""
    import anyio

    reading, writing = os.pipe()
    protocol = LineLogger(name, said, mask)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: protocol, os.fdopen(reading, "rb")
    )
    written = os.fdopen(writing, "w")
    try:
        yield written
    finally:
        written.close()
        # The last lines explain most; a descendant that keeps the pipe open is not waited for.
        with anyio.move_on_after(_LAST_WORDS, shield=True):
            await protocol.ended.wait()
        transport.close()


class LogLines:
    """Logs texts of a server, each cut to a limit, up to a number of lines."""

    def __init__(self, name: Callable[[], str], mask: SecretMask) -> None:
        self._name = name
        self._mask = mask
        self._count = 0

    def write(self, text: str, level: int = logging.INFO) -> None:
        """Log a clean text; nothing for an empty one."""
        if not text:
            return
        self._count += 1
        if self._count <= _LINES:
            _log.log(level, "MCP server %r wrote: %s", self._name(), self._mask.masked(text))
        elif self._count == _LINES + 1:
            _log.warning("MCP server %r wrote more than %d lines; the rest is dropped", self._name(), _LINES)

    async def take(self, params: LoggingMessageNotificationParams) -> None:
        """Log a message of the protocol."""
        data = params.data if isinstance(params.data, str) else to_json(params.data, fallback=str).decode()
        self.write(clean(data, _LINE_CHARS), _LEVELS.get(params.level, logging.WARNING))


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO}
"""Levels of the protocol that are less than a warning. No message of a server is an error of ours."""


class LineLogger(asyncio.Protocol):
    """Logs the lines of a program's standard error."""

    def __init__(self, name: Callable[[], str], said: list[str], mask: SecretMask) -> None:
        self.ended = asyncio.Event()
        self._lines = LogLines(name, mask)
        self._said = said
        self._pending = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._pending = self._pending[-_PENDING_BYTES:]
        for line in lines:
            self._log(line)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._log(self._pending)
        self.ended.set()

    def _log(self, line: bytes) -> None:
        text = clean(line.decode(errors="replace"), _LINE_CHARS)
        if text:
            self._said[:] = [text[:_SHOWN]]
        self._lines.write(text)
