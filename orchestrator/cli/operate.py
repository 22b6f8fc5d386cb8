"""`orchestrator operate`: operator commands to engines in other processes, sent through their journal; their state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import actor_name, known_actor
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import many, roughly, table, tags_in, tags_of
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.spread import spread
from orchestrator.engines import engine_directory
from orchestrator.engines.engine_directory import STATUS, EngineInfo, ask, engines, meant
from orchestrator.engines.operator_command import OperatorCommand

Body = Mapping[str, Any]

Engine = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name or run id of the engine, or all. Default: the only one."),
]
ToolOrModel = Annotated[str, typer.Argument(metavar="NAME", help="As the engine knows it.")]
Slots = Annotated[int, typer.Argument(metavar="N", help="How many runs may be live at once.")]
Grace = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long runs get to end. Default: the engine's own.")
]
OfAgent = Annotated[str | None, typer.Option(metavar="NAME", help="Runs of this agent only.")]
OfGraph = Annotated[str | None, typer.Option(metavar="NAME", help="Runs of this graph.")]

group = typer.Typer(help="Send operator commands to live engines.", rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """The engine of an operator command, its actor, and the reason."""

    engine: Engine = None
    by: given.By = None
    why: given.Why = None
    json: given.Json = False
    journal: given.Journal = None


@group.callback()
def operate_group() -> None:
    """Send operator commands to live engines, and show their state.

    A command is recorded, with its actor and reason, in the run that represents the engine, and applies until it is
    revoked or the engine stops. The exit code is 1 when an engine refuses or does not answer.
    """


@group.command("stop-admitting")
@spread
def stop_admitting(*, agent: OfAgent = None, tags: given.Tags = (), options: OperatorOptions) -> int:
    """Refuse new runs, or those of one agent or with a tag.

    Queued and live runs continue.
    """
    return _send("stop_admitting", options, agent=agent, tags=tags_in(tags) or None)


@group.command("start-admitting")
@spread
def start_admitting(*, agent: OfAgent = None, tags: given.Tags = (), options: OperatorOptions) -> int:
    """Admit runs again, all or some."""
    return _send("start_admitting", options, agent=agent, tags=tags_in(tags) or None)


@group.command()
@spread
def drain(
    *, grace: Grace = None, agent: OfAgent = None, tags: given.Tags = (), options: OperatorOptions
) -> int:
    """Stop the engine, or park some of its runs.

    Runs get some time to end; the others are parked in the journal. With --agent or --tag they have 30 s unless
    --grace says; then they are paused, and no further ones are admitted until `start-admitting` with the same options.
    """
    return _send("drain", options, grace=grace, agent=agent, tags=tags_in(tags) or None)


@group.command("cancel-all")
@spread
def cancel_all(
    *, graph: OfGraph = None, agent: OfAgent = None, tags: given.Tags = (), options: OperatorOptions
) -> int:
    """Cancel live and queued runs, all or some."""
    return _send("cancel_all", options, graph=graph, agent=agent, tags=tags_in(tags) or None)


@group.command("pause-all")
@spread
def pause_all(
    *, graph: OfGraph = None, agent: OfAgent = None, tags: given.Tags = (), options: OperatorOptions
) -> int:
    """Pause live runs, all or some.

    Runs that start later are not paused.
    """
    return _send("pause_all", options, graph=graph, agent=agent, tags=tags_in(tags) or None)


@group.command("resume-all")
@spread
def resume_all(
    *, graph: OfGraph = None, agent: OfAgent = None, tags: given.Tags = (), options: OperatorOptions
) -> int:
    """Resume paused runs, all or some."""
    return _send("resume_all", options, graph=graph, agent=agent, tags=tags_in(tags) or None)


@group.command("disable-tool")
@spread
def disable_tool(name: ToolOrModel, *, options: OperatorOptions) -> int:
    """Deny the calls of a tool, with the reason.

    Calls that run already end normally.
    """
    return _send("disable_tool", options, tool=name)


@group.command("enable-tool")
@spread
def enable_tool(name: ToolOrModel, *, options: OperatorOptions) -> int:
    """Enable a tool again."""
    return _send("enable_tool", options, tool=name)


@group.command("block-model")
@spread
def block_model(name: ToolOrModel, *, options: OperatorOptions) -> int:
    """Send no more requests to a model.

    Its runs wait, without a slot, before their next request.
    """
    return _send("block_model", options, model=name)


@group.command("unblock-model")
@spread
def unblock_model(name: ToolOrModel, *, options: OperatorOptions) -> int:
    """Send requests to a model again; waiting runs continue."""
    return _send("unblock_model", options, model=name)


@group.command()
@spread
def slots(number: Slots, *, options: OperatorOptions) -> int:
    """Change how many runs may be live at once.

    A smaller number takes effect as runs end.
    """
    return _send("slots", options, slots=number)


@group.command()
@spread
def status(*, engine: Engine = None, at: given.JournalOptions) -> int:
    """Show the engines: slots, queue, commands, live runs.

    Engines that died are included. --json prints one object a line.
    """

    async def work(store: OpenStore) -> bool:
        known = await engines(store.journal)
        chosen = [each for each in known if engine in (None, "all", each.name, each.run_id)]
        if not chosen:
            meant(known, engine)  # its error names the alternative
        answers = [
            await ask(store.journal, each, STATUS, {}, actor_name(None)) if each.alive else None
            for each in chosen
        ]
        for each, answer in zip(chosen, answers, strict=True):
            if at.json:
                say_json({**asdict(each), "alive": each.alive, "status": answer})
            else:
                _print(each, answer)
        return all(answer is not None for each, answer in zip(chosen, answers, strict=True) if each.alive)

    return Exit.COMPLETED if at_journal(at.journal, work) else Exit.FAILED


def _send(kind: str, options: OperatorOptions, **about: Any) -> int:
    """Send an operator command to each named engine and print the answers; 1 if one refused or did not answer."""
    by = known_actor(options.by, "orders")
    body = {name: value for name, value in about.items() if value is not None}
    OperatorCommand.of(kind, by, body)  # an invalid command is reported here, and nothing is posted
    body |= {"why": options.why} if options.why else {}
    what = kind.replace("_", "-")

    async def work(store: OpenStore) -> bool:
        well = True
        for engine in meant(await engines(store.journal), options.engine):
            answer = await ask(store.journal, engine, kind, body, by)
            well &= answer is not None and not answer.get("refused")
            if options.json:
                say_json({"engine": engine.name, "run_id": engine.run_id, "answer": answer})
                continue
            name = f"{shown(engine.name)} ({engine.run_id})"
            if answer is None:
                say(
                    f"{name} has not answered within {engine_directory.ANSWERS_WITHIN:g} s; {what} stays posted"
                )
            elif answer.get("refused"):
                say(f"{name} refused {what}: {shown(str(answer['refused']), 300)}")
            else:
                say(f"{name} carries out {what}, ordered by {shown(str(answer.get('by')))}")
            say(f"  {store.command('events', engine.run_id)}")
        return well

    return Exit.COMPLETED if at_journal(options.journal, work) else Exit.FAILED


def _print(engine: EngineInfo, answer: Body | None) -> None:
    where = f"{engine.about.get('host')}, process {engine.about.get('pid')}"
    say(
        f"{shown(engine.name)} ({engine.run_id}) on {shown(where)}, for {roughly(time.time() - engine.began)}"
    )
    if engine.expired_owner is not None:
        say(
            "  its lease has expired, but its process still exists: it is stopped or hangs. End the process before its"
            " runs are resumed, because calls of it may still run"
        )
        return
    if not engine.alive:
        say(f"  is dead: its process is gone, and it never stopped; its runs {engine.left}")
        return
    if answer is None:
        say(
            f"  lives, but has not answered within {engine_directory.ANSWERS_WITHIN:g} s: its event loop may be blocked"
        )
        return
    admitting = "admits runs" if answer["admitting"] else "admits no runs"
    if closed := answer.get("closed"):
        admitting += f" ({shown(_reason(closed), 300)})"
    say(f"  {'draining, ' if answer['draining'] else ''}{admitting}")
    counts = ", ".join(f"{answer[name]} {name}" for name in ("queued", "running", "ready", "waiting"))
    say(f"  {many(answer['slots'], 'slot')}, {answer['taken']} taken; runs: {counts}")
    for command in answer.get("closed_runs", ()):
        agent = f" of agent {shown(command['agent'])}" if command["agent"] else ""
        tags = f" with {shown(tags_of(command['tags']), 300)}" if command["tags"] else ""
        say(f"  admits no runs{agent}{tags} ({shown(_reason(command), 300)})")
    for command in answer["disabled"]:
        say(f"  tool {shown(command['about'])} is disabled ({shown(_reason(command), 300)})")
    for command in answer["blocked"]:
        say(f"  model {shown(command['about'])} is blocked ({shown(_reason(command), 300)})")
    if answer["live"]:
        names = ("run_id", "agent", "graph", "state", "phase", "reason")
        rows = [[str(run[name]) or "-" for name in names] for run in answer["live"]]
        for line in table(("run", *names[1:]), rows):
            say(line)


def _reason(command: Body) -> str:
    return f"{command['by']}: {command['why']}" if command.get("why") else str(command["by"])
