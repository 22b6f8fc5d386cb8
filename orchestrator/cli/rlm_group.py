"""The commands of the group `rlm`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given

group = typer.Typer(
    help="Long contexts: a model that writes code, or calls tools, to look at what it is asked about.",
    rich_markup_mode=None,
)

Least = Annotated[
    Literal["limits", "partial", "full"] | None,
    typer.Option("--least", help="The level of isolation below which no code is run. Default: limits."),
]


@group.callback()
def rlm_group() -> None:
    """Ask about a text that is too long for a prompt: it is a variable in a REPL, not a message."""


@group.command()
def isolation(*, least: Least = None, json: given.Json = False) -> None:
    """Say how far code of models is locked up on this machine, and by what; exit code 1 below --least."""
    from orchestrator.cli.rlm.isolation import show_isolation

    raise typer.Exit(show_isolation(json=json, least=least))
