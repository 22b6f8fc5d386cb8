"""The tools that a server lists, compared with those that the host allowed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from orchestrator.providers.mcp.offer import (
    NAME_CHARS,
    NotOffered,
    ServerTool,
    ToolChoice,
    clean,
    declared,
    digest_of,
)
from orchestrator.providers.mcp.options import Pins
from orchestrator.tools.spec import ToolSpec

if TYPE_CHECKING:
    from mcp_types import Tool

_log = logging.getLogger("orchestrator.mcp")


class ToolList:
    """The offered and the disabled tools of one server. `make` builds the tool of an offer."""

    def __init__(
        self,
        name: str,
        choice: ToolChoice,
        options: Mapping[str, Any],
        make: Callable[[ServerTool], ToolSpec | None],
    ) -> None:
        self.tools: tuple[ToolSpec, ...] | None = None
        """The allowed tools; None before the first list."""
        self.digests: Mapping[str, str] = {}
        """Digest of each listed tool, by the server's own names."""
        self.disabled: frozenset[str] = frozenset()
        """Names of the tools that differ from the allowed ones."""
        self._name = name
        self._choice = choice
        self._options = options
        self._make = make
        self._pins: Pins | Callable[[], Pins] = {}
        self._allowed: Pins = {}
        """The pins of the last comparison."""
        self._listed: tuple[Tool, ...] = ()
        self._own: tuple[ToolSpec, ...] = ()
        self._made: dict[str, tuple[ServerTool, ToolSpec | None]] = {}
        self._reported: set[NotOffered] = set()

    def start(self, name: str, tools: Iterable[Tool], own: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Take the first list of a connection; `own` are tools of ours about this server. Return the allowed ones."""
        listed = tuple(tools)
        self._name, self._own = name, tuple(own)
        pins = cast("Pins | Callable[[], Pins] | None", self._options.get("pins"))
        self._pins = {tool.name: digest_of(tool) for tool in listed} if pins is None else pins
        self.disabled, self._reported = frozenset(), set()
        return self.compare(listed)

    def compare(self, tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
        """Offer the tools of a list that are as they were allowed; disable and report the others."""
        listed = self._listed = tuple(tools)
        offers, without = declared(listed, self._choice)
        for one in without:
            self.leave_out(one)
        self.digests = {tool.name: digest_of(tool) for tool in listed}
        pins = self._allowed = self._present_pins()
        disabled = {offer.theirs for offer in offers if pins.get(offer.theirs) != self.digests[offer.theirs]}
        for name in sorted(disabled - self.disabled):
            change = (
                "has changed since it was allowed" if name in pins else "is new since its tools were allowed"
            )
            self._report(
                f"tool {clean(name, NAME_CHARS)!r} of MCP server {self._name!r} {change}, so it is disabled"
            )
        self.disabled = frozenset(disabled)
        made = [self._tool(offer) for offer in offers if offer.theirs not in disabled]
        taken = {offer.name for offer in offers}
        own = (spec for spec in self._own if spec.name not in taken)
        self.tools = (*(spec for spec in made if spec is not None), *own)
        return self.tools

    def refresh(self) -> None:
        """Compare the last list again if the host allows other tools now."""
        if self.tools is not None and self._allowed != self._present_pins():
            self.compare(self._listed)

    def _present_pins(self) -> Pins:
        return dict(self._pins() if callable(self._pins) else self._pins)

    def leave_out(self, one: NotOffered) -> None:
        """Log, once for each connection, that a tool cannot be offered."""
        if one in self._reported:
            return
        self._reported.add(one)
        name = clean(one.theirs, NAME_CHARS)
        _log.warning("MCP server %r: tool %r is not offered: %s", self._name, name, one.why)

    def _tool(self, offer: ServerTool) -> ToolSpec | None:
        """Return the tool of an offer; the same one as long as the offer is the same."""
        known = self._made.get(offer.theirs)
        if known is None or known[0] != offer:
            known = self._made[offer.theirs] = offer, self._make(offer)
        return known[1]

    def _report(self, sentence: str) -> None:
        on_disabled = self._options.get("on_disabled")
        if on_disabled is not None:
            on_disabled(sentence)
        else:
            _log.warning("%s", sentence)
