"""Servers of the Model Context Protocol, as tools of an agent (`pip install 'fsm-orchestrator[mcp]'`).

    async with McpServer.stdio("uvx", "mcp-server-git", prefix="git_") as git:
        agent = Agent(my_llm, tools=[*git.tools])
        result = await agent.run("What changed since yesterday?")

    McpServer.http("https://tools.example/mcp", headers={"Authorization": token})
    McpServer.from_file("mcp.json")    # {"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git"]}}}

The output of a server is untrusted. Its tools are fixed when it is connected, names and descriptions are bounded and
cleaned, and no later tool is offered. A tool that cannot be offered, because of its schema or a name that another one
has, is left out with a warning. Arguments are checked against the tool's schema before they are sent.

A tool is disabled if it differs from the version that the host allowed: in name, title, description, schemas or
annotations. The host stores `server.digests` and passes them as `pins=` to the next connection; without `pins` the
first list of a connection is allowed. The tools are compared whenever the server lists them: at each new session, and
before the next call after it announced a change (`tools/list_changed`). A call of a disabled tool is not sent.

    McpServer.stdio("uvx", "mcp-server-git", pins=json.loads(file.read_text()))

The annotations of a tool give its effect: `destructiveHint` means irreversible, else `readOnlyHint` means pure, else
`idempotentHint` means idempotent; without annotations it is irreversible. They are claims of the server:
`effects={"name": "irreversible"}` overrides one, `effects="irreversible"` all of them.

A lost session is opened again at most once for each call. A call that was in flight when the session was lost may
have run: it is sent again only if the tool is pure or idempotent, else the model reads that its outcome is unknown. A
resend by the text or code of the loss was rejected: a proxy reports the same for a call that ran and for one that did
not. If a server left a call without an answer, it is asked for its tools before the next call, and replaced if it
does not answer.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.providers.mcp.answer import Content, Reader, SessionLost, ToolDisabled, content_of
from orchestrator.providers.mcp.offer import (
    NAME_CHARS,
    NotOffered,
    ServerTool,
    ToolChoice,
    clean,
    declared,
    digest_of,
)
from orchestrator.providers.mcp.options import (
    McpOptions,
    Pins,
    Texts,
    message_limit,
    part_limit,
    plain,
    seconds,
)
from orchestrator.providers.mcp.server_file import ServerEntry, read_servers
from orchestrator.providers.mcp.session import McpSession, SessionPool, Unreachable
from orchestrator.providers.mcp.transport import Http, Stdio
from orchestrator.tools.spec import ToolContext, ToolSpec

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

__all__ = ["McpOptions", "McpServer"]

_log = logging.getLogger("orchestrator.mcp")

_GRACE = 1.0
"""Seconds by which the SDK's own read timeout is later than the tool's, so that only one of them fires."""


class McpServer:
    """One MCP server, built by `stdio`, `http` or `parse`.

    `async with` connects it, which sets `tools`, and at its end closes the session or process. It belongs to the
    event loop that entered it.

    Raises:
        ConfigError: On entry: the command does not exist, the server does not answer, or an option names a tool that
            it does not have.

    Example:
        async with McpServer.stdio("uvx", "mcp-server-git", prefix="git_") as git:
            agent = Agent(my_llm, tools=[*git.tools])
    """

    def __init__(self, transport: Stdio | Http, **options: Unpack[McpOptions]) -> None:
        self.name = options.get("name") or transport.label
        """Its name: the option, else the one that the server gives itself, once it is connected."""
        self._options = options
        self._choice = ToolChoice.of(options)
        self._max_bytes = part_limit(options)
        self._timeout = seconds("timeout", options.get("timeout", 60.0))
        connect = seconds("connect_timeout", options.get("connect_timeout", 30.0))
        self._pool = SessionPool(self.name, transport, connect)
        self._offers: tuple[ServerTool, ...] = ()
        self._pins: Pins | Callable[[], Pins] = {}
        self._digests: Mapping[str, str] = {}
        self._disabled: frozenset[str] = frozenset()
        self._tools: tuple[ToolSpec, ...] | None = None

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Texts | None = None,
        cwd: str | Path | None = None,
        **options: Unpack[McpOptions],
    ) -> Self:
        """Describe a server that is a local program, connected by its standard input and output.

        The program gets HOME, LOGNAME, PATH, SHELL, TERM, USER and the variables of `env`, and nothing else of our
        environment. Its standard error goes to the logger `orchestrator.mcp`, bounded.
        """
        if not command.strip() or "\0" in "".join((command, *args)):
            raise ConfigError(f"{command!r} is not a command that can be started")
        folder = None if cwd is None else Path(cwd)
        return cls(Stdio(command, args, plain(env), folder, message_limit(options)), **options)

    @classmethod
    def http(cls, url: str, *, headers: Texts | None = None, **options: Unpack[McpOptions]) -> Self:
        """Describe a server at an address of streamable HTTP; redirects are followed within its origin only."""
        try:
            parts = urlsplit(url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(
                f"{url!r} is not the address of an MCP server; it must start with http:// or https:// and a host"
            )
        return cls(Http(url, plain(headers), message_limit(options)), **options)

    @classmethod
    def parse(cls, text: str, **options: Unpack[McpOptions]) -> Self:
        """Describe a server by one text: an address that starts with http:// or https://, else a command line."""
        if text.startswith(("http://", "https://")):
            return cls.http(text, **options)
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is not a command line: {error}") from error
        return cls.stdio(*words or [""], **options)

    @classmethod
    def of_entry(cls, entry: ServerEntry, **options: Unpack[McpOptions]) -> Self:
        """Describe a server of a file. `options` override those of the file. Raises ConfigError."""
        entry = entry.expanded(os.environ)
        told: Any = {"name": entry.name} | dict(entry.options) | dict(options)
        if entry.url:
            return cls.http(entry.url, headers=entry.headers, **told)
        return cls.stdio(*entry.command, env=entry.env, cwd=entry.cwd, **told)

    @classmethod
    def from_file(cls, path: str | Path, **options: Unpack[McpOptions]) -> dict[str, Self]:
        """Describe the servers of a JSON file with `mcpServers`, by name; each name is a prefix of its tools.

        Raises ConfigError for a file of another form, and for an environment variable that it needs and is not set.
        """
        entries = read_servers(Path(path))
        return {
            entry.name: cls.of_entry(entry, **(McpOptions(prefix=f"{entry.name}_") | options))
            for entry in entries
        }

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The allowed tools, as they were when the server was connected. Raises ConfigError before that."""
        if self._tools is None:
            raise ConfigError(f"MCP server {self.name!r} is not connected; use `async with` before its tools")
        return self._tools

    @property
    def digests(self) -> Mapping[str, str]:
        """The digest of each tool that the server lists now, by its own names: the value to store as `pins`."""
        return dict(self._digests)

    async def __aenter__(self) -> Self:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise MissingExtra("mcp", "mcp", "providers") from error
        try:
            session = await self._pool.start(self._compare)
        except Unreachable as error:
            raise ConfigError(str(error)) from error
        try:
            self._name(session.server_name)
            self._choice.check(self.name, [tool.name for tool in session.tools])
            self._tools = self._declare(session.tools)
        except BaseException:
            await self._pool.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.stop()

    def _name(self, said: str) -> None:
        """Take the name that the server gives itself, unless the host gave it one."""
        if not self._options.get("name") and (name := clean(" ".join(said.split()), NAME_CHARS)):
            self.name = self._pool.name = name

    def _declare(self, tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
        listed = tuple(tools)
        self._offers, without = declared(listed, self._choice)
        for one in without:
            self._leave_out(one)
        pins = self._options.get("pins")
        self._pins = {tool.name: digest_of(tool) for tool in listed} if pins is None else pins
        self._disabled = frozenset()
        self._compare(listed)
        allowed = (offer for offer in self._offers if offer.theirs not in self._disabled)
        return tuple(spec for offer in allowed if (spec := self._spec(offer)) is not None)

    def _leave_out(self, one: NotOffered) -> None:
        name = clean(one.theirs, NAME_CHARS)
        _log.warning("MCP server %r: tool %r is not offered: %s", self.name, name, one.why)

    def _compare(self, tools: Iterable[Tool]) -> None:
        """Disable the tools of a list that differ from the allowed ones; report each newly disabled one."""
        self._digests = {tool.name: digest_of(tool) for tool in tools}
        offered = {offer.theirs for offer in self._offers}
        pins = self._pins() if callable(self._pins) else self._pins
        disabled = {
            name for name, digest in self._digests.items() if name in offered and pins.get(name) != digest
        }
        for name in sorted(disabled - self._disabled):
            change = (
                "has changed since it was allowed" if name in pins else "is new since its tools were allowed"
            )
            self._report(
                f"tool {clean(name, NAME_CHARS)!r} of MCP server {self.name!r} {change}, so it is disabled"
            )
        self._disabled = frozenset(disabled)

    def _report(self, sentence: str) -> None:
        if (on_disabled := self._options.get("on_disabled")) is not None:
            on_disabled(sentence)
        else:
            _log.warning("%s", sentence)

    def _spec(self, offer: ServerTool) -> ToolSpec | None:
        """Return the tool, or None, with a warning, if its arguments cannot be checked."""

        async def call(context: ToolContext, /, **arguments: Any) -> Content:
            reader = Reader(context.reads, self._max_bytes)
            return content_of(await self._call(context, offer, arguments), reader)

        try:
            return ToolSpec(
                offer.name,
                offer.description,
                offer.parameters,
                call,
                kind="mcp",
                effect=offer.effect,
                timeout=self._timeout,
                max_result_chars=self._options.get("max_result_chars", 20_000),
            )
        except ConfigError as error:
            self._leave_out(NotOffered(offer.theirs, str(error)))
            return None

    async def _call(
        self, context: ToolContext, offer: ServerTool, arguments: dict[str, Any]
    ) -> CallToolResult:
        """Call a tool on the open session, or on one new session."""
        left = context.remaining()
        seconds = self._timeout if left is None else left + _GRACE
        session, is_new = await self._open(offer)
        try:
            return await session.call(offer.theirs, arguments, seconds)
        except SessionLost:
            if is_new or offer.effect not in {"pure", "idempotent"}:
                raise
        session, _ = await self._open(offer)
        return await session.call(offer.theirs, arguments, seconds)

    async def _open(self, offer: ServerTool) -> tuple[McpSession, bool]:
        """Return a session on which the tool is unchanged. Raises SessionLost and ToolDisabled."""
        try:
            found = await self._pool.session()
        except Unreachable as error:
            # The reason is for the operator of the server: it names commands and quotes their output.
            _log.warning("%s", error)
            raise SessionLost(f"MCP server {self.name!r} cannot be reached; the call was not sent") from error
        if offer.theirs in self._disabled:
            raise ToolDisabled(
                "the tool has changed at its server since it was allowed; the call was not sent"
            )
        return found
