"""The MCP servers that a command line names, and their secrets, which are never stored with a run.

A run stores only its servers' commands or addresses, and the names of environment variables.
Values are read again whenever a run is resumed: a journal is copied, exported and backed up with all its content.
Variables are named one by one, because the whole environment contains the keys of the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from orchestrator.cli.output import shown
from orchestrator.cli.redaction import bare
from orchestrator.cli.trust.configuration import project_settings
from orchestrator.cli.trust.tool_pin import ToolPins, is_address
from orchestrator.errors import ConfigError
from orchestrator.tools.spec import ToolSpec

if TYPE_CHECKING:
    from orchestrator.providers.mcp import McpServer

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


async def tools_of(
    servers: Sequence[str],
    variables: Sequence[str],
    own: Iterable[ToolSpec],
    stack: AsyncExitStack,
    *,
    without: Sequence[str] = (),
) -> list[ToolSpec]:
    """Connect servers for as long as the stack is open; return their tools.

    `variables` are names, `own` the other tools of the agent, `without` the addresses that were stored without user
    name and password. Raises ConfigError that names the option that helps.
    """
    environment, headers = _values(variables), _headers(project_settings().mcp_headers)
    owners = {tool.name.casefold(): "--tool" for tool in own}
    tools: list[ToolSpec] = []
    for text in servers:
        pins = ToolPins.of(named(text)[1])
        server = _described(text, environment, headers, pins.options())
        try:
            await stack.enter_async_context(server)
        except ConfigError as error:
            if text not in without:
                raise
            lost = "the user name and password in its address were not kept with the run"
            raise ConfigError(f"{error}; {lost}: --mcp URL gives them again") from error
        pins.keep(server.digests)
        _refuse_twice(text, server.tools, owners)
        owners |= dict.fromkeys((tool.name.casefold() for tool in server.tools), _said(text))
        tools += server.tools
    return tools


def server_at(where: str, variables: Sequence[str]) -> McpServer:
    """Return the server of a command line or URL, without a check of its tools. Raises ConfigError."""
    return _described(where, _values(variables), _headers(project_settings().mcp_headers), {})


def _described(
    text: str, environment: Mapping[str, str], headers: Mapping[str, SecretStr], pins: Mapping[str, Any]
) -> McpServer:
    from orchestrator.providers.mcp import McpServer

    name, where = named(text)
    options: dict[str, Any] = {"max_message_bytes": project_settings().max_response_bytes}
    options |= {} if name is None else {"name": name, "prefix": f"{name}_"}
    given = {"headers": headers} if is_address(where) else {"env": environment}
    return McpServer.parse(where, **given, **options, **pins)


def _refuse_twice(text: str, tools: Iterable[ToolSpec], owners: Mapping[str, str]) -> None:
    for tool in tools:
        if (first := owners.get(tool.name.casefold())) is not None:
            raise ConfigError(
                f"{first} and {_said(text)} both offer a tool {tool.name!r}; --mcp NAME=COMMAND offers the tools of a "
                f"server as NAME_{tool.name}"
            )


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
