"""The options of a server, and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypedDict

from pydantic import SecretStr

from orchestrator.errors import ConfigError
from orchestrator.providers.size_limit import DEFAULT_BYTES, check_limit
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
    return check_limit("max_questions", options.get("max_questions", 10))


def seconds(name: str, value: float) -> float:
    """Return a checked time. Raises ConfigError for anything but seconds above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value!r}; possible: seconds above 0")
    return value
