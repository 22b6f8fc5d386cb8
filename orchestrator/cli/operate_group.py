"""The commands of the group `operate`. Their body is in `operate`, imported when they run."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.spread import spread

group = typer.Typer(help="Send operator commands to live engines.", rich_markup_mode=None)


@group.callback()
def operate_group() -> None:
    """Send operator commands to live engines, and show their state.

    A command is recorded, with its actor and reason, in the run that represents the engine, and applies until it is
    revoked or the engine stops. The exit code is 1 when an engine refuses or does not answer.
    """


@group.command("stop-admitting")
@spread
def stop_admitting(order: given.OperatorOptions) -> int:
    """Refuse new runs; queued and live runs continue."""
    return _order("stop_admitting", order)


@group.command("start-admitting")
@spread
def start_admitting(order: given.OperatorOptions) -> int:
    """Admit runs again."""
    return _order("start_admitting", order)


@group.command()
@spread
def drain(*, grace: given.Grace = None, order: given.OperatorOptions) -> int:
    """Stop the engine.

    Runs get some time to end; the others are parked in the journal.
    """
    return _order("drain", order, grace=grace)


@group.command("cancel-all")
@spread
def cancel_all(*, graph: given.OfGraph = None, order: given.OperatorOptions) -> int:
    """Cancel the live and queued runs of a graph, or all."""
    return _order("cancel_all", order, graph=graph)


@group.command("pause-all")
@spread
def pause_all(*, graph: given.OfGraph = None, order: given.OperatorOptions) -> int:
    """Pause the live runs of a graph, or all.

    Runs that start later are not paused.
    """
    return _order("pause_all", order, graph=graph)


@group.command("resume-all")
@spread
def resume_all(*, graph: given.OfGraph = None, order: given.OperatorOptions) -> int:
    """Resume the paused runs of a graph, or all."""
    return _order("resume_all", order, graph=graph)


@group.command("disable-tool")
@spread
def disable_tool(name: given.ToolOrModel, *, order: given.OperatorOptions) -> int:
    """Deny the calls of a tool, with the reason.

    Calls that run already end normally.
    """
    return _order("disable_tool", order, tool=name)


@group.command("enable-tool")
@spread
def enable_tool(name: given.ToolOrModel, *, order: given.OperatorOptions) -> int:
    """Enable a tool again."""
    return _order("enable_tool", order, tool=name)


@group.command("block-model")
@spread
def block_model(name: given.ToolOrModel, *, order: given.OperatorOptions) -> int:
    """Send no more requests to a model.

    Its runs wait, without a slot, before their next request.
    """
    return _order("block_model", order, model=name)


@group.command("unblock-model")
@spread
def unblock_model(name: given.ToolOrModel, *, order: given.OperatorOptions) -> int:
    """Send requests to a model again; waiting runs continue."""
    return _order("unblock_model", order, model=name)


@group.command()
@spread
def slots(number: given.Slots, *, order: given.OperatorOptions) -> int:
    """Change how many runs may be live at once.

    A smaller number takes effect as runs end.
    """
    return _order("slots", order, slots=number)


@group.command()
@spread
def status(*, engine: given.Engine = None, at: given.JournalOptions) -> int:
    """Show the engines: slots, queue, commands, live runs.

    Engines that died are included. --json prints one object a line.
    """
    from orchestrator.cli.operate import show_status

    return show_status(engine, json=at.json, journal=at.journal)


def _order(kind: str, order: given.OperatorOptions, **about: Any) -> int:
    from orchestrator.cli.operate import OperateOptions, give_order

    return give_order(OperateOptions(kind=kind, about=about, **vars(order)))
