"""Servers of the Model Context Protocol, as tools of an agent (`pip install 'fsm-orchestrator[mcp]'`).

    async with McpServer.stdio("uvx", "mcp-server-git", prefix="git_") as git:
        agent = Agent(my_llm, tools=[git])
        result = await agent.run("What changed since yesterday?")

    McpServer.http("https://tools.example/mcp", headers={"Authorization": token})
    McpServer.from_file("mcp.json")    # {"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git"]}}}

The output of a server is untrusted: names and descriptions are bounded and cleaned. A tool that cannot be offered,
because of its schema or a name that another one has, is left out with a warning. Arguments are checked against the
tool's schema before they are sent.

A tool is disabled if it differs from the version that the host allowed: in name, title, description, schemas or
annotations. The host stores `server.digests` and passes them as `pins=` to the next connection; without `pins` the
first list of a connection is allowed. The tools are compared whenever the server lists them: at each new session, and
before the next turn and call after it announced a change (`tools/list_changed`). A call of a disabled tool is not
sent. With `tools=[git]` the next turn offers the tools that are allowed then; with `tools=[*git.tools]` an agent keeps
those of its start.

    McpServer.stdio("uvx", "mcp-server-git", pins=json.loads(file.read_text()))

The annotations of a tool give its effect: `destructiveHint` means irreversible, else `readOnlyHint` means pure, else
`idempotentHint` means idempotent; without annotations it is irreversible. They are claims of the server:
`effects={"name": "irreversible"}` overrides one, `effects="irreversible"` all of them.

An error that arrives from the server is the server's, whatever its code. The SDK gives -32000 to lost connections and
-32001 to timeouts of its own, so errors of the server with these codes are marked when they arrive. One case remains
open: over HTTP the SDK reports a lost stream as a message of the server, which is recognized by its text. An answer to
a call that cannot be read, such as a result that does not fit its schema, is a call that ran (`result_unreadable`).

A lost session is opened again at most once for each call. A call that was in flight when the session was lost may
have run: it is sent again only if the tool is pure or idempotent, else the model reads that its outcome is unknown. A
resend by the text or code of the loss was rejected: a proxy reports the same for a call that ran and for one that did
not. If a server left a call without an answer, it is asked for its tools before the next call, and replaced if it
does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError, MissingExtra, ResultUnreadable, RunError
from orchestrator.llm.message import Message
from orchestrator.providers.mcp.answer import (
    LIST,
    LIST_SCHEMA,
    READ,
    READ_SCHEMA,
    CallRefused,
    Content,
    Reader,
    ServerPrompt,
    SessionLost,
    ToolFailed,
    all_prompts,
    check_arguments,
    content_of,
    described_prompts,
    list_resources,
    prompt_messages,
    read_resource,
)
from orchestrator.providers.mcp.offer import (
    NAME_CHARS,
    NotOffered,
    ServerTool,
    ToolChoice,
    clean,
)
from orchestrator.providers.mcp.options import (
    McpOptions,
    ServerEntry,
    Texts,
    message_limit,
    part_limit,
    plain,
    question_limit,
    read_servers,
    sampling_rules,
    seconds,
)
from orchestrator.providers.mcp.session import SessionPool, Unreachable
from orchestrator.providers.mcp.tool_call import ToolCaller, ToolList
from orchestrator.providers.mcp.transport import Http, Stdio
from orchestrator.tools.result import explain
from orchestrator.tools.spec import Effect, ToolContext, ToolSpec

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool

__all__ = ["McpOptions", "McpServer"]

_log = logging.getLogger("orchestrator.mcp")

T = TypeVar("T")


class McpServer:
    """One MCP server, built by `stdio`, `http` or `parse`.

    `async with` connects it, which sets `tools`, and at its end closes the session or process. It belongs to the
    event loop that entered it.

    Raises:
        ConfigError: On entry: the command does not exist, the server does not answer, or an option names a tool that
            it does not have.

    Example:
        async with McpServer.stdio("uvx", "mcp-server-git", prefix="git_") as git:
            agent = Agent(my_llm, tools=[git])
    """

    def __init__(self, transport: Stdio | Http, **options: Unpack[McpOptions]) -> None:
        self.name = options.get("name") or transport.label
        """Its name: the option, else the one that the server gives itself, once it is connected."""
        self._options = options
        self._choice = ToolChoice.of(options)
        self._max_bytes = part_limit(options)
        self._timeout = seconds("timeout", options.get("timeout", 60.0))
        total = options.get("total_timeout")
        self._total_timeout = None if total is None else seconds("total_timeout", total)
        connect = seconds("connect_timeout", options.get("connect_timeout", 30.0))
        self._mask = transport.mask
        self._pool = SessionPool(self.name, transport, connect, sampling_rules(options))
        self._list = ToolList(self.name, self._choice, options, self._spec)
        self._caller = ToolCaller(
            self._pool, lambda: self._list.disabled, self._timeout, question_limit(options)
        )

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
        """The allowed tools, as of the last `refresh`. Raises ConfigError before the server is connected."""
        if self._list.tools is None:
            raise ConfigError(f"MCP server {self.name!r} is not connected; use `async with` before its tools")
        return self._list.tools

    async def refresh(self) -> None:
        """Compare the tools if the server announced a change of them, or if the host allows others now.

        An agent with the server among its `tools` does it before each request to the model.
        """
        await self._pool.compare()
        self._list.refresh()

    async def prompts(self) -> list[ServerPrompt]:
        """Return the prompts that the server offers. Raises RunError if it does not answer."""
        return list(described_prompts(await self._ask(lambda client: all_prompts(client, self.name))))

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> list[Message]:
        """Return the messages of a prompt, as the prompt of a run.

        Raises ConfigError for an unknown prompt or argument, RunError if the server does not answer.
        """
        given = dict(arguments or {})
        known = {prompt.name: prompt for prompt in await self.prompts()}
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"MCP server {self.name!r} has no prompt {name!r}; it has: {have}")
        check_arguments(self.name, known[name], given)
        result = await self._ask(lambda client: client.get_prompt(name, given))
        return prompt_messages(result, self._max_bytes)

    async def _ask(self, send: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request that is not a call of a tool. Raises RunError."""
        try:
            session, _ = await self._pool.session()
            async with asyncio.timeout(self._timeout):
                return await session.request(send, self._timeout)
        except (Unreachable, SessionLost, CallRefused, TimeoutError) as error:
            why = str(error) or f"it gave no answer within {self._timeout:g} s"
            raise RunError(f"MCP server {self.name!r}: {why}") from error

    @property
    def digests(self) -> Mapping[str, str]:
        """The digest of each tool that the server lists now, by its own names: the value to store as `pins`."""
        return dict(self._list.digests)

    async def __aenter__(self) -> Self:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise MissingExtra("mcp", "mcp", "providers") from error
        try:
            session = await self._pool.start(self._list.compare)
        except Unreachable as error:
            raise ConfigError(str(error)) from error
        try:
            # Take the name that the server gives itself, unless the host gave it one.
            if not self._options.get("name") and (
                name := clean(" ".join(session.server_name.split()), NAME_CHARS)
            ):
                self.name = self._pool.name = name
            known = [tool.name for tool in session.tools]
            self._choice.check(self.name, [*known, LIST, READ] if session.has_resources else known)
            self._declare(session.tools, resources=session.has_resources)
        except BaseException:
            await self._pool.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._caller.stop()
        await self._pool.stop()

    def _declare(self, tools: Iterable[Tool], *, resources: bool = False) -> tuple[ToolSpec, ...]:
        """Take the first list of a connection, and return the allowed tools."""
        own = map(self._resource_tool, (LIST, READ)) if resources else ()
        return self._list.start(self.name, tools, [spec for spec in own if spec is not None])

    def _spec(self, offer: ServerTool) -> ToolSpec | None:
        """Return the tool, or None, with a warning, if its arguments cannot be checked."""

        async def call(context: ToolContext, /, **arguments: Any) -> Content:
            result = await self._caller.call(context, offer, arguments)
            try:
                return content_of(result, Reader(context.reads, self._max_bytes))
            except ToolFailed as error:
                raise ToolFailed(self._mask.masked(str(error))) from None
            except Exception as error:
                why = f"the server's answer cannot be read ({explain(error)})"
                raise ResultUnreadable(why, result) from error

        try:
            return self._tool(offer.name, offer.description, offer.parameters, call, offer.effect)
        except ConfigError as error:
            self._list.leave_out(NotOffered(offer.theirs, str(error)))
            return None

    def _tool(
        self, name: str, about: str, schema: Mapping[str, Any], call: Callable[..., Any], effect: Effect
    ) -> ToolSpec:
        most = self._options.get("max_result_chars", 20_000)
        return ToolSpec(
            name,
            about,
            schema,
            call,
            kind="mcp",
            effect=effect,
            timeout=self._timeout,
            total_timeout=self._total_timeout,
            max_result_chars=most,
        )

    def _resource_tool(self, name: str) -> ToolSpec | None:
        """Return the tool that lists or reads the resources of the server; None if the host does not want it."""

        async def listing(context: ToolContext, /, cursor: str | None = None) -> str:  # noqa: ARG001  as for the other
            return await self._ask(lambda client: list_resources(client, cursor))

        async def reading(context: ToolContext, /, uri: str) -> Content:
            reader = Reader(context.reads, self._max_bytes)
            return await self._ask(lambda client: read_resource(client, uri, reader))

        if not self._choice.has(name):
            return None
        full = f"{self._choice.prefix}{name}"[:NAME_CHARS]
        if name == LIST:
            return self._tool(full, f"List the resources of {self.name}.", LIST_SCHEMA, listing, "pure")
        return self._tool(full, f"Read a resource of {self.name}.", READ_SCHEMA, reading, "pure")
