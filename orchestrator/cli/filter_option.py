"""The conditions on runs, as options of the commands that list runs or control several."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.runtime.runs.listing import RunFilter


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Conditions on runs; a run must meet each."""

    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Runs of this agent.")] = None
    graph: Annotated[
        str | None, typer.Option("--graph", "--machine", metavar="NAME", help="Runs of this machine.")
    ] = None
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="open, parked or ended.")] = None
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Runs in this state.")] = None
    outcome: Annotated[str | None, typer.Option(metavar="NAME", help="Runs that ended so.")] = None
    reason: Annotated[str | None, typer.Option(metavar="NAME", help="Why they ended or parked.")] = None
    tags: Annotated[
        tuple[str, ...], typer.Option("--tag", metavar="NAME=VALUE", help="Runs with this tag; repeatable.")
    ] = ()
    waiting: Annotated[bool, typer.Option("--waiting", help="Runs that wait for a person.")] = False
    waiting_for: Annotated[
        str | None, typer.Option(metavar="TOOL", help="Runs that wait for a call of this tool.")
    ] = None
    older_than: given.OlderThan = None

    @property
    def conditions(self) -> RunFilter:
        """The conditions for the library. Raises ConfigError for a text that is no tag or no duration."""
        from orchestrator.cli.runs.phrase import seconds_in

        return {
            "agent": self.agent,
            "machine": self.graph,
            "status": self.status,
            "state": self.state,
            "outcome": self.outcome,
            "reason": self.reason,
            "tag": dict(_tag(text) for text in self.tags) or None,
            "waiting": self.waiting_for or (True if self.waiting else None),
            "older_than": None if self.older_than is None else time.time() - seconds_in(self.older_than),
        }


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"tag {text!r} is not of the form NAME=VALUE")
    return name, value
