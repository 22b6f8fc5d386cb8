"""The MCP servers that a command line names, and their secrets, which are never stored with a run.

A run stores only its servers' commands or addresses, and the names of environment variables.
Values are read again whenever a run is resumed: a journal is copied, exported and backed up with all its content.
Variables are named one by one, because the whole environment contains the keys of the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from orchestrator.cli.output import complain, shown
from orchestrator.cli.redaction import bare
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.trust.tool_pin import ToolPins, is_address
from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message
from orchestrator.tools.spec import ToolSpec

if TYPE_CHECKING:
    from orchestrator.providers.mcp import McpServer
    from orchestrator.providers.mcp.options import ServerEntry

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SHOWN = 200


def named(text: str) -> tuple[str | None, str]:
    """Split `NAME=COMMAND`; a text whose part before the first `=` is not a plain name is all command."""
    name, mark, where = text.partition("=")
    return (name, where) if mark and _NAME.fullmatch(name) else (None, text)


def kept(text: str) -> str:
    """Return the stored form of the text that names a server. A command is stored unchanged."""
    name, where = named(text)
    if not is_address(where):
        return text
    return bare(where) if name is None else f"{name}={bare(where)}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options about all servers of a command line."""

    variables: tuple[str, ...] = ()
    """Names of environment variables that are passed to commands."""
    choices: tuple[str, ...] = ()
    """Options of single servers, as NAME.OPTION=VALUE."""
    without: tuple[str, ...] = ()
    """Addresses that were stored without user name, password and query."""


@dataclass(frozen=True, slots=True)
class NamedServer:
    """One server that `--mcp` names, itself or in a file."""

    text: str
    """The value of `--mcp`."""
    name: str | None
    where: str
    """Its URL or command line."""
    entry: ServerEntry | None = None
    """What a file says of it."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def described(self, given: ServerOptions, **more: Any) -> McpServer:
        """Return the server, not connected. Raises ConfigError."""
        from orchestrator.providers.mcp import McpServer

        options: dict[str, Any] = {"max_message_bytes": project_settings().max_response_bytes}
        options |= {} if self.name is None else {"name": self.name, "prefix": f"{self.name}_"}
        options |= {**self.options, **more}
        if self.entry is not None:
            return McpServer.of_entry(self.entry, **options)
        environment = _values(given.variables)
        headers = _headers(project_settings().mcp_headers)
        connection = {"headers": headers} if is_address(self.where) else {"env": environment}
        return McpServer.parse(self.where, **connection, **options)


def servers_of(texts: Iterable[str], given: ServerOptions) -> list[NamedServer]:
    """Return the servers that `--mcp` names; a JSON file names several. Raises ConfigError."""
    choices = _choices(given.choices)
    found = [server for text in texts for server in _named_by(text, choices)]
    known = {server.name for server in found if server.name}
    for name in choices:
        if name not in known:
            have = f"known: {', '.join(sorted(known))}" if known else "--mcp NAME=COMMAND gives it one"
            raise ConfigError(f"--mcp-option {shown(name, 80)}: no server has that name; {have}")
    return found


def _named_by(text: str, choices: Mapping[str, Mapping[str, Any]]) -> Iterator[NamedServer]:
    name, where = named(text)
    if not is_server_file(where):
        yield NamedServer(text, name, where, None, choices.get(name or "", {}))
        return
    from orchestrator.providers.mcp.options import read_servers

    entries = read_servers(Path(where))
    chosen = [entry for entry in entries if name in (None, entry.name)]
    if not chosen:
        raise ConfigError(
            f"{where} has no server {name!r} that is enabled; it has: {', '.join(entry.name for entry in entries)}"
        )
    for entry in chosen:
        yield NamedServer(text, entry.name, entry.where, entry, choices.get(entry.name, {}))


def is_server_file(where: str) -> bool:
    """Return whether a text names a JSON file of servers, and no command or address."""
    return where.endswith(".json") and not is_address(where) and not any(map(str.isspace, where))


async def tools_of(
    servers: Sequence[str],
    given: ServerOptions,
    own: Iterable[ToolSpec],
    stack: AsyncExitStack,
    change: Callable[[ToolSpec], ToolSpec],
) -> list[ServerTools]:
    """Connect servers for as long as the stack is open; return their tools. `own` are the other tools of the agent.

    `change` is applied to each tool.

    A tool with the name of an earlier one is left out with a warning. Raises ConfigError that names the option that
    helps.
    """
    owners = {tool.name.casefold(): "--tool" for tool in own}
    tools: list[ServerTools] = []
    for one in servers_of(servers, given):
        pins = ToolPins.of(one.where)
        server = one.described(given, **pins.options())
        try:
            await stack.enter_async_context(server)
        except ConfigError as error:
            if one.text not in given.without:
                raise
            lost = "the user name, password and query of its address are not stored with the run"
            raise ConfigError(f"{error}; {lost}: --mcp URL gives them again") from error
        pins.keep(server.digests)
        found = ServerTools(server, frozenset(owners), change)
        for tool in server.tools:
            _warn_if_taken(one.text, tool, owners)
        owners |= dict.fromkeys((tool.name.casefold() for tool in found.tools), _said(one.text))
        tools.append(found)
    return tools


class ServerTools:
    """The tools of one server for an agent, without those whose names are taken."""

    def __init__(
        self, server: McpServer, taken: frozenset[str], change: Callable[[ToolSpec], ToolSpec]
    ) -> None:
        self._server = server
        self._taken = taken
        self._change = change

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools as of the last `refresh`."""
        return [self._change(tool) for tool in self._server.tools if tool.name.casefold() not in self._taken]

    async def refresh(self) -> None:
        """Update the tools of the server."""
        await self._server.refresh()


async def prompt_messages(
    servers: Sequence[str], given: ServerOptions, named: str, arguments: Mapping[str, str]
) -> list[Message]:
    """Return the messages of a prompt `[SERVER/]NAME`. Raises ConfigError if no server, or several, have it."""
    server_name, mark, prompt = named.rpartition("/")
    found: dict[str, list[Message]] = {}
    known: list[str] = []
    for one in servers_of(servers, given):
        async with one.described(given) as server:
            if mark and server_name not in {one.name, server.name}:
                continue
            names = [each.name for each in await server.prompts()]
            known += [f"{one.name or server.name}/{name}" for name in names]
            if prompt in names:
                found[one.name or server.name] = await server.prompt(prompt, arguments)
    if len(found) != 1:
        why = "several servers have it" if found else "no server has it"
        raise ConfigError(
            f"--prompt {shown(named, 120)}: {why}; the prompts are: {', '.join(known) or 'none'}"
        )
    return next(iter(found.values()))


def _warn_if_taken(text: str, tool: ToolSpec, owners: Mapping[str, str]) -> None:
    """Print a warning if an earlier tool has the name of a tool."""
    first = owners.get(tool.name.casefold())
    if first is not None:
        complain(
            f"tool {tool.name!r} of {_said(text)} is not offered: {first} has one of that name; --mcp NAME=COMMAND "
            f"offers the tools of a server as NAME_{tool.name}"
        )


def _choices(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Parse options of single servers: name of the server -> options of McpServer. Raises ConfigError."""
    from orchestrator.providers.mcp.options import SERVER_OPTIONS

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, mark, value = text.partition("=")
        name, _, option_name = key.rpartition(".")
        option = SERVER_OPTIONS.get(option_name)
        if option is None or not (mark and name):
            forms = ", ".join(f"NAME.{one.form}" for one in SERVER_OPTIONS.values())
            raise ConfigError(f"--mcp-option {shown(text, 120)!r}: possible: {forms}")
        data = option.of_text(value)
        if not option.is_valid(data):
            raise ConfigError(f"--mcp-option {shown(text, 120)!r}: possible: {option.possible}")
        found.setdefault(name, {})[option.name] = data
    return found


def _said(text: str) -> str:
    return f"--mcp {shown(kept(text), _SHOWN)!r}"


def _values(variables: Iterable[str]) -> dict[str, str]:
    """Return the variables with their current values."""
    for name in variables:
        if "=" in name:
            given = name.partition("=")[0]
            raise ConfigError(
                f"--mcp-env {given}=…: give the name alone; the value is read from the environment"
            )
        if name not in os.environ:
            raise ConfigError(
                f"--mcp-env {shown(name, 80)}: no such environment variable is set; set it and start again"
            )
    return {name: os.environ[name] for name in variables}


def _headers(given: Mapping[str, SecretStr]) -> dict[str, SecretStr]:
    """Return the headers of the settings in their sent form: names of variables cannot contain a `-`."""
    headers = {name.replace("_", "-").lower(): value for name, value in given.items()}
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ConfigError(f"setting mcp_headers: {shown(name, 80)!r} is no name of a header")
        text = value.get_secret_value()
        if not text.isascii() or not text.isprintable():
            raise ConfigError(f"setting mcp_headers.{name}: possible: printable ASCII on one line")
    return headers
