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
def stop_admitting(options: given.OperatorOptions) -> int:
    """Refuse new runs; queued and live runs continue."""
    return _send("stop_admitting", options)


@group.command("start-admitting")
@spread
def start_admitting(options: given.OperatorOptions) -> int:
    """Admit runs again."""
    return _send("start_admitting", options)


@group.command()
@spread
def drain(*, grace: given.Grace = None, options: given.OperatorOptions) -> int:
    """Stop the engine.

    Runs get some time to end; the others are parked in the journal.
    """
    return _send("drain", options, grace=grace)


@group.command("cancel-all")
@spread
def cancel_all(*, graph: given.OfGraph = None, options: given.OperatorOptions) -> int:
    """Cancel the live and queued runs of a graph, or all."""
    return _send("cancel_all", options, graph=graph)


@group.command("pause-all")
@spread
def pause_all(*, graph: given.OfGraph = None, options: given.OperatorOptions) -> int:
    """Pause the live runs of a graph, or all.

    Runs that start later are not paused.
    """
    return _send("pause_all", options, graph=graph)


@group.command("resume-all")
@spread
def resume_all(*, graph: given.OfGraph = None, options: given.OperatorOptions) -> int:
    """Resume the paused runs of a graph, or all."""
    return _send("resume_all", options, graph=graph)


@group.command("disable-tool")
@spread
def disable_tool(name: given.ToolOrModel, *, options: given.OperatorOptions) -> int:
    """Deny the calls of a tool, with the reason.

    Calls that run already end normally.
    """
    return _send("disable_tool", options, tool=name)


@group.command("enable-tool")
@spread
def enable_tool(name: given.ToolOrModel, *, options: given.OperatorOptions) -> int:
    """Enable a tool again."""
    return _send("enable_tool", options, tool=name)


@group.command("block-model")
@spread
def block_model(name: given.ToolOrModel, *, options: given.OperatorOptions) -> int:
    """Send no more requests to a model.

    Its runs wait, without a slot, before their next request.
    """
    return _send("block_model", options, model=name)


@group.command("unblock-model")
@spread
def unblock_model(name: given.ToolOrModel, *, options: given.OperatorOptions) -> int:
    """Send requests to a model again; waiting runs continue."""
    return _send("unblock_model", options, model=name)


@group.command()
@spread
def slots(number: given.Slots, *, options: given.OperatorOptions) -> int:
    """Change how many runs may be live at once.

    A smaller number takes effect as runs end.
    """
    return _send("slots", options, slots=number)


@group.command()
@spread
def status(*, engine: given.Engine = None, at: given.JournalOptions) -> int:
    """Show the engines: slots, queue, commands, live runs.

    Engines that died are included. --json prints one object a line.
    """
    from orchestrator.cli.operate import show_status

    return show_status(engine, json=at.json, journal=at.journal)


def _send(kind: str, options: given.OperatorOptions, **about: Any) -> int:
    from orchestrator.cli.operate import OperateOptions, send_command

    return send_command(OperateOptions(kind=kind, about=about, **vars(options)))
