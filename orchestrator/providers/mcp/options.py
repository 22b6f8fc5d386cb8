"""The options of a server, and the JSON file of servers that other clients use too.

Our own members of an entry are those of `SERVER_OPTIONS`; unknown members belong to other clients.
`${NAME}`, `${env:NAME}` and `${NAME:-default}` in the texts of an entry are environment variables, so that a file needs
no secret.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, get_args

from pydantic import SecretStr

from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file
from orchestrator.providers.connection import DEFAULT_BYTES, check_limit
from orchestrator.providers.mcp.server_request import SamplingMode, SamplingRules
from orchestrator.tools.spec import Effect

Texts: TypeAlias = Mapping[str, str | SecretStr]
Pins: TypeAlias = Mapping[str, str]


class McpOptions(TypedDict, total=False):
    """Options of both kinds of server. Times are seconds."""

    name: str
    """Name of the server in errors and log lines; by default the name that the server gives itself."""
    prefix: str
    """Prefix of each tool's name, so that two servers do not clash."""
    include: Iterable[str]
    """The only tools to offer, by the server's own names; by default all."""
    exclude: Iterable[str]
    """Tools not to offer, by the server's own names."""
    effects: Mapping[str, Effect] | Effect
    """Effects that override the annotations: by the server's own names, or one word for all."""
    timeout: float
    """Maximum time without an answer or a report of progress in one call; 60."""
    total_timeout: float
    """Maximum time of one call in all; by default nine tenths of the time that the state of its run has left."""
    connect_timeout: float
    """Maximum time until a server's tools are known; 30."""
    max_result_chars: int
    """Longer results are cut and marked; 20,000, and 0 is no limit."""
    max_part_bytes: int
    """Larger images, recordings and documents are named with their size instead; 5,000,000, and 0 is no limit."""
    pins: Pins | Callable[[], Pins]
    """Digests of the tools that the host allowed, as `digests` returned them, or a function that returns them, called
    for each list of the server; by default the first list is allowed."""
    on_disabled: Callable[[str], None]
    """Called with a sentence for each disabled tool; by default a warning is logged."""
    max_questions: int
    """Maximum questions of the server to a person in one call; 10, and 0 is no limit. Further ones are refused."""
    sampling: SamplingMode
    """Whether the server may ask the model of the run during a call, within the budgets of the run: `deny` (default),
    `allow`, or `ask` a person each time."""
    max_sampling: int
    """Maximum requests of the server to the model in one call; 10, and 0 is no limit. Further ones are refused."""
    max_message_bytes: int
    """Maximum bytes of one message, after decompression; 32 MiB, and 0 is no limit. A longer message fails its call."""


DEFAULT_PART_BYTES = 5_000_000
"""The smallest limit of a vendor for an image."""


def plain(texts: Texts | None) -> dict[str, str]:
    """Return texts with the values of their secrets."""
    known = {} if texts is None else texts
    return {
        key: text.get_secret_value() if isinstance(text, SecretStr) else text for key, text in known.items()
    }


def message_limit(options: McpOptions) -> int:
    """Return the checked limit of a message in bytes. Raises ConfigError."""
    return check_limit("max_message_bytes", options.get("max_message_bytes", DEFAULT_BYTES))


def part_limit(options: McpOptions) -> int:
    """Return the checked limit of a part in bytes. Raises ConfigError."""
    return check_limit("max_part_bytes", options.get("max_part_bytes", DEFAULT_PART_BYTES))


def question_limit(options: McpOptions) -> int:
    """Return the checked limit of questions in one call. Raises ConfigError."""
    return _count("max_questions", options.get("max_questions", 10))


def sampling_rules(options: McpOptions) -> SamplingRules:
    """Return the checked rules for sampling requests. Raises ConfigError."""
    mode = options.get("sampling", "deny")
    if not _is_mode(mode):
        raise ConfigError(f"sampling is {mode!r}; possible: {_MODES}")
    return SamplingRules(mode, _count("max_sampling", options.get("max_sampling", 10)), part_limit(options))


def seconds(name: str, value: float) -> float:
    """Return a checked time. Raises ConfigError for anything but seconds above 0."""
    if not _is_time(value):
        raise ConfigError(f"{name} is {value!r}; possible: {_TIME}")
    return value


def _count(name: str, limit: int) -> int:
    if not _is_count(limit):
        raise ConfigError(f"{name} is {limit!r}; possible: {_COUNT}")
    return limit


# ---- options of a file of servers and of the command line ----

_TIME: Final = "seconds above 0"
_COUNT: Final = "a whole number, and 0 for no limit"
_MODES: Final = ", ".join(get_args(SamplingMode))


class ServerOption(NamedTuple):
    """An option that a file of servers and `--mcp-option` can give."""

    name: str
    """Its name in McpOptions and in a file."""
    form: str
    """Its form on the command line, after the name of a server."""
    possible: str
    """The allowed values, as a clause of an error."""
    is_valid: Callable[[Any], bool]
    """Whether JSON data is a value."""
    of_text: Callable[[str], Any]
    """Returns the data of a text of the command line; a text that is none is returned unchanged."""


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[operator, arg-type]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_mode(value: object) -> bool:
    return isinstance(value, str) and value in get_args(SamplingMode)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_effects(value: object) -> bool:
    """Return whether a value is a word, or name -> word; which words are effects is checked with the tools."""
    return isinstance(value, str) or (isinstance(value, dict) and _is_texts([*value.values()]))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _effects(text: str) -> str | dict[str, str]:
    if ":" not in text:
        return text.strip()
    return {tool: effect for tool, _, effect in (part.rpartition(":") for part in _parts(text))}


def _number(kind: Callable[[str], float]) -> Callable[[str], Any]:
    def number_of(text: str) -> float | str:
        try:
            return kind(text)
        except ValueError:
            return text

    return number_of


SERVER_OPTIONS: Final[Mapping[str, ServerOption]] = {
    "include": ServerOption("include", "include=TOOL,…", "a list of texts", _is_texts, _parts),
    "exclude": ServerOption("exclude", "exclude=TOOL,…", "a list of texts", _is_texts, _parts),
    "effect": ServerOption(
        "effects",
        "effect=EFFECT or effect=TOOL:EFFECT,…",
        "an effect, or an object of tools and effects",
        _is_effects,
        _effects,
    ),
    "timeout": ServerOption("timeout", "timeout=SECONDS", _TIME, _is_time, _number(float)),
    "total_timeout": ServerOption("total_timeout", "total_timeout=SECONDS", _TIME, _is_time, _number(float)),
    "max_questions": ServerOption("max_questions", "max_questions=N", _COUNT, _is_count, _number(int)),
    "sampling": ServerOption("sampling", "sampling=MODE", _MODES, _is_mode, str.strip),
    "max_sampling": ServerOption("max_sampling", "max_sampling=N", _COUNT, _is_count, _number(int)),
}
"""Name on the command line -> option."""


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
    known = {one.name: one for one in SERVER_OPTIONS.values() if told.get(one.name) is not None}
    for option in known.values():
        if not option.is_valid(value := told[option.name]):
            raise ConfigError(
                f"{path}: {option.name} of server {name!r} is {value!r}; possible: {option.possible}"
            )
    return ServerEntry(
        name,
        (command, *_texts(path, name, told, "args")) if command else (),
        url,
        _mapping(path, name, told, "env"),
        _mapping(path, name, told, "headers"),
        _text(path, name, told, "cwd") or None,
        {key: told[key] for key in known},
    )


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
