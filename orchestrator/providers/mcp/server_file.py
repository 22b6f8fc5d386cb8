"""The JSON file of MCP servers that other clients use too: `{"mcpServers": {NAME: {…}}}`.

Our own members of an entry are those of `SERVER_OPTIONS`; unknown members belong to other clients.
`${NAME}`, `${env:NAME}` and `${NAME:-default}` in the texts of an entry are environment variables, so that a file needs
no secret.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file
from orchestrator.providers.mcp.options import SERVER_OPTIONS

_KEYS = ("mcpServers", "servers")
_HTTP = frozenset(("http", "https", "streamable-http", "streamableHttp", "streamable_http"))
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server of a file, with the texts as they are written there."""

    name: str
    command: tuple[str, ...] = ()
    """Program and arguments; empty for an address."""
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The URL or command line, with the names of variables and not their values."""
        return self.url or shlex.join(self.command)

    def expanded(self, variables: Mapping[str, str]) -> ServerEntry:
        """Return the entry with the values of environment variables. Raises ConfigError for one that is not set."""

        def value(text: str) -> str:
            return _VARIABLE.sub(lambda found: self._value(found[1], found[2], variables), text)

        return ServerEntry(
            self.name,
            tuple(map(value, self.command)),
            value(self.url),
            {key: value(text) for key, text in self.env.items()},
            {key: value(text) for key, text in self.headers.items()},
            None if self.cwd is None else value(self.cwd),
            self.options,
        )

    def _value(self, name: str, default: str | None, variables: Mapping[str, str]) -> str:
        found = variables.get(name, default)
        if found is None:
            raise ConfigError(
                f"MCP server {self.name!r} of the file needs the environment variable {name}, which is not set"
            )
        return found


def read_servers(path: Path) -> tuple[ServerEntry, ...]:
    """Return the servers of a file that are not disabled.

    Raises:
        ConfigError: The file cannot be read, or an entry has a wrong form; the message names it.
    """
    try:
        whole = json.loads(read_file(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a JSON file of MCP servers") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    servers = next((whole[key] for key in _KEYS if key in whole), None) if isinstance(whole, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(
            f'{path} has no servers; it must be {{"mcpServers": {{"NAME": {{"command": "…"}}}}}}'
        )
    entries = (_entry(path, name, told) for name, told in servers.items())
    return tuple(entry for entry in entries if entry is not None)


def _entry(path: Path, name: str, told: object) -> ServerEntry | None:
    if not isinstance(told, dict):
        raise ConfigError(f"{path}: server {name!r} is {told!r}; it must be an object with command or url")
    if told.get("disabled") is True:
        return None
    kind = told.get("type", "http" if "url" in told else "stdio")
    url = _text(path, name, told, "url" if "url" in told else "serverUrl")
    command = _text(path, name, told, "command")
    if kind not in {"stdio", *_HTTP} or bool(url) == bool(command):
        raise ConfigError(
            f"{path}: server {name!r} must have a command, or the url of streamable HTTP, and not both; "
            f"its type is {kind!r}"
        )
    return ServerEntry(
        name,
        (command, *_texts(path, name, told, "args")) if command else (),
        url,
        _mapping(path, name, told, "env"),
        _mapping(path, name, told, "headers"),
        _text(path, name, told, "cwd") or None,
        _options(path, name, told),
    )


def _options(path: Path, name: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {one.name: one for one in SERVER_OPTIONS.values() if told.get(one.name) is not None}
    for option in known.values():
        if not option.is_valid(value := told[option.name]):
            raise ConfigError(
                f"{path}: {option.name} of server {name!r} is {value!r}; possible: {option.possible}"
            )
    return {key: told[key] for key in known}


def _text(path: Path, name: str, told: Mapping[str, Any], member: str) -> str:
    found = told.get(member, "")
    if not isinstance(found, str):
        raise ConfigError(f"{path}: {member} of server {name!r} is {found!r}; it must be text")
    return found


def _texts(path: Path, name: str, told: Mapping[str, Any], member: str) -> Sequence[str]:
    found = told.get(member, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{path}: {member} of server {name!r} must be a list of texts")
    return found


def _mapping(path: Path, name: str, told: Mapping[str, Any], member: str) -> Mapping[str, str]:
    found = told.get(member, {})
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigError(f"{path}: {member} of server {name!r} must be an object of texts")
    return found
