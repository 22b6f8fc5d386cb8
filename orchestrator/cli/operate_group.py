"""The commands of the group `operate`. Their body is in `operate`, imported when they run."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.spread import spread

group = typer.Typer(help="Give orders to engines that live, and see how they are.", rich_markup_mode=None)


@group.callback()
def operate_group() -> None:
    """Give orders to engines that live, and see how they are.

    An order is journalled, with who gave it and why, in the records of the run that stands for the engine, and
    holds until it is taken back or the engine stops. Exit code 1 when an engine refuses or does not answer.
    """


@group.command("stop-admitting")
@spread
def stop_admitting(options: given.OperatorOptions) -> None:
    """Refuse what is submitted from now on; what is queued or under way goes on."""
    _send("stop_admitting", options)


@group.command("start-admitting")
@spread
def start_admitting(options: given.OperatorOptions) -> None:
    """Admit runs again."""
    _send("start_admitting", options)


@group.command()
@spread
def drain(*, grace: given.Grace = None, options: given.OperatorOptions) -> None:
    """Stop the engine: runs get some time to end, the rest is left in the journal."""
    _send("drain", options, grace=grace)


@group.command("cancel-all")
@spread
def cancel_all(*, graph: given.OfGraph = None, options: given.OperatorOptions) -> None:
    """Cancel the runs of a graph, or all: those under way and those that wait to begin."""
    _send("cancel_all", options, graph=graph)


@group.command("pause-all")
@spread
def pause_all(*, graph: given.OfGraph = None, options: given.OperatorOptions) -> None:
    """Pause the runs of a graph, or all, that are under way; later ones are not paused."""
    _send("pause_all", options, graph=graph)


@group.command("resume-all")
@spread
def resume_all(*, graph: given.OfGraph = None, options: given.OperatorOptions) -> None:
    """Let the runs of a graph, or all, that are paused in the engine go on, whoever paused them."""
    _send("resume_all", options, graph=graph)


@group.command("disable-tool")
@spread
def disable_tool(name: given.ToolOrModel, *, options: given.OperatorOptions) -> None:
    """Answer the calls of a tool as denied, with the reason; calls that run come to their end."""
    _send("disable_tool", options, tool=name)


@group.command("enable-tool")
@spread
def enable_tool(name: given.ToolOrModel, *, options: given.OperatorOptions) -> None:
    """Let a tool run again."""
    _send("enable_tool", options, tool=name)


@group.command("block-model")
@spread
def block_model(name: given.ToolOrModel, *, options: given.OperatorOptions) -> None:
    """Ask a model nothing more: its runs wait, without a slot, before their next question."""
    _send("block_model", options, model=name)


@group.command("unblock-model")
@spread
def unblock_model(name: given.ToolOrModel, *, options: given.OperatorOptions) -> None:
    """Let a model be asked again; the runs that wait for it go on."""
    _send("unblock_model", options, model=name)


@group.command()
@spread
def slots(number: given.Slots, *, options: given.OperatorOptions) -> None:
    """Change how many runs go on at once; fewer takes effect as runs end."""
    _send("slots", options, slots=number)


@group.command()
@spread
def status(*, engine: given.Engine = None, at: given.JournalOptions) -> None:
    """Show the engines: slots, queue, orders that stand, live runs; and those that died. --json: one object a line."""
    from orchestrator.cli.operate import show_status

    raise typer.Exit(show_status(engine, json=at.json, journal=at.journal))


def _send(kind: str, options: given.OperatorOptions, **about: Any) -> None:
    from orchestrator.cli.operate import OperateOptions, send_command

    raise typer.Exit(send_command(OperateOptions(kind=kind, about=about, **vars(options))))
