"""Sources of tools that may change while a run is active."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from orchestrator.errors import ConfigError
from orchestrator.tools.context import DepsT
from orchestrator.tools.spec import ToolFunction, ToolSpec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@runtime_checkable
class ToolCollection(Protocol):
    """Tools that may change while a run is active, such as those of an MCP server. Given to an agent like a tool."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools as of the last `refresh`."""
        ...

    async def refresh(self) -> None:
        """Update `tools`, before each request to the model."""
        ...


ToolSource: TypeAlias = ToolSpec[DepsT] | ToolFunction | functools.partial[Any] | ToolCollection
"""What an agent accepts as a tool."""


def check_names(offers: Iterable[ToolSpec]) -> None:
    """Raise ConfigError for a duplicate name or a name that no model could call."""
    seen: set[str] = set()
    for spec in offers:
        if not _NAME.fullmatch(spec.name):
            raise ConfigError(f"tool name {spec.name!r}: possible: 1 to 64 of a-z, A-Z, 0-9, _ and -")
        if spec.name.casefold() in seen:
            raise ConfigError(
                f"two tools are named {spec.name!r}; names that differ only in case count as equal; tools "
                "of an MCP server get other names by `prefix=`, or `--mcp NAME=COMMAND`"
            )
        seen.add(spec.name.casefold())


def listed(items: Iterable[ToolSpec | ToolCollection]) -> list[ToolSpec]:
    """Return the tools of all items. A tool of a collection whose name another tool has is left out."""
    items = list(items)
    taken = {item.name.casefold() for item in items if isinstance(item, ToolSpec)}
    offers: list[ToolSpec] = []
    for item in items:
        if isinstance(item, ToolSpec):
            offers.append(item)
            continue
        new = [spec for spec in item.tools if spec.name.casefold() not in taken]
        taken.update(spec.name.casefold() for spec in new)
        offers += new
    return offers
