"""The commands of the group `operate`. Their body is in `operate`, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given

group = typer.Typer(help="Give orders to engines that live, and see how they are.", rich_markup_mode=None)

_Engine = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name or run id of the engine, or all. Default: the only one."),
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="As the engine knows it.")]
_Slots = Annotated[int, typer.Argument(metavar="N", help="How many runs may go on at once.")]
_Grace = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long runs get to end. Default: the engine's own.")
]


@group.callback()
def operate_group() -> None:
    """Give orders to engines that live, and see how they are.

    An order is journalled, with who gave it and why, in the records of the run that stands for the engine, and
    holds until it is taken back or the engine stops. Exit code 1 when an engine refuses or does not answer.
    """


@group.command("stop-admitting")
def stop_admitting(
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Refuse what is submitted from now on; what is queued or under way goes on."""
    _order("stop_admitting", engine, by, why, json=json, journal=journal)


@group.command("start-admitting")
def start_admitting(
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Admit runs again."""
    _order("start_admitting", engine, by, why, json=json, journal=journal)


@group.command()
def drain(
    *,
    grace: _Grace = None,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Stop the engine: runs get some time to end, the rest is left in the journal."""
    _order("drain", engine, by, why, json=json, journal=journal, grace=grace)


@group.command("cancel-all")
def cancel_all(
    *,
    graph: given.OfGraph = None,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Cancel the runs of a graph, or all: those under way and those that wait to begin."""
    _order("cancel_all", engine, by, why, json=json, journal=journal, graph=graph)


@group.command("pause-all")
def pause_all(
    *,
    graph: given.OfGraph = None,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Pause the runs of a graph, or all, that are under way; later ones are not paused."""
    _order("pause_all", engine, by, why, json=json, journal=journal, graph=graph)


@group.command("resume-all")
def resume_all(
    *,
    graph: given.OfGraph = None,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Let the runs of a graph, or all, that are paused in the engine go on, whoever paused them."""
    _order("resume_all", engine, by, why, json=json, journal=journal, graph=graph)


@group.command("disable-tool")
def disable_tool(
    name: _Name,
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Answer the calls of a tool as denied, with the reason; calls that run come to their end."""
    _order("disable_tool", engine, by, why, json=json, journal=journal, tool=name)


@group.command("enable-tool")
def enable_tool(
    name: _Name,
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Let a tool run again."""
    _order("enable_tool", engine, by, why, json=json, journal=journal, tool=name)


@group.command("block-model")
def block_model(
    name: _Name,
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Ask a model nothing more: its runs wait, without a slot, before their next question."""
    _order("block_model", engine, by, why, json=json, journal=journal, model=name)


@group.command("unblock-model")
def unblock_model(
    name: _Name,
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Let a model be asked again; the runs that wait for it go on."""
    _order("unblock_model", engine, by, why, json=json, journal=journal, model=name)


@group.command()
def slots(
    number: _Slots,
    *,
    engine: _Engine = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Change how many runs go on at once; fewer takes effect as runs end."""
    _order("slots", engine, by, why, json=json, journal=journal, slots=number)


@group.command()
def status(*, engine: _Engine = None, json: given.Json = False, journal: given.Journal = None) -> None:
    """Show the engines: slots, queue, orders that stand, live runs; and those that died. --json: one object a line."""
    from orchestrator.cli.operate import show_status

    raise typer.Exit(show_status(engine, json=json, journal=journal))


def _order(
    kind: str,
    engine: str | None,
    by: str | None,
    why: str | None,
    *,
    json: bool,
    journal: Path | None,
    **about: Any,
) -> None:
    from orchestrator.cli.operate import Wanted, give_order

    wanted = Wanted(kind=kind, about=about, engine=engine, by=by, why=why, json=json, journal=journal)
    raise typer.Exit(give_order(wanted))
