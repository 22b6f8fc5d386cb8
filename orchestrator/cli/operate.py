"""`orchestrator operate`: operator commands to engines in other processes, sent through their journal; their state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.cli.actor import actor_name, known_actor
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import many, roughly, table
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.engines.engine_directory import ANSWERS_WITHIN, EngineInfo, ask, engines, meant
from orchestrator.engines.operator_command import OperatorCommand
from orchestrator.engines.registration import STATUS
from orchestrator.journal.address import Address

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperateOptions:
    """The command line of an operator command."""

    kind: str
    about: dict[str, Any] = field(default_factory=dict)
    engine: str | None = None
    by: str | None = None
    why: str | None = None
    json: bool = False
    journal: Address | None = None


def send_command(options: OperateOptions) -> int:
    """Send an operator command to each named engine and print the answers; 1 if one refused or did not answer."""
    by = known_actor(options.by, "orders")
    body = {name: value for name, value in options.about.items() if value is not None}
    OperatorCommand.of(options.kind, by, body)  # an invalid command is reported here, and nothing is posted
    body |= {"why": options.why} if options.why else {}

    async def work(store: OpenStore) -> bool:
        well = True
        for engine in meant(await engines(store.journal), options.engine):
            answer = await ask(store.journal, engine, options.kind, body, by)
            well &= answer is not None and not answer.get("refused")
            _print_command(store, options, engine, answer)
        return well

    return Exit.COMPLETED if at_journal(options.journal, work) else Exit.FAILED


def show_status(engine: str | None, *, json: bool, journal: Address | None) -> int:
    """Print the state that the engines report; return 1 if a live one does not answer."""

    async def work(store: OpenStore) -> bool:
        found = await engines(store.journal)
        chosen = [one for one in found if engine in (None, "all", one.name, one.run_id)]
        if not chosen:
            meant(found, engine)  # its error names the alternative
        answers = [
            await ask(store.journal, one, STATUS, {}, actor_name(None)) if one.alive else None
            for one in chosen
        ]
        for one, answer in zip(chosen, answers, strict=True):
            if json:
                say_json({**asdict(one), "alive": one.alive, "status": answer})
            else:
                _print(one, answer)
        return all(answer is not None for one, answer in zip(chosen, answers, strict=True) if one.alive)

    return Exit.COMPLETED if at_journal(journal, work) else Exit.FAILED


def _print_command(
    store: OpenStore, options: OperateOptions, engine: EngineInfo, answer: Body | None
) -> None:
    if options.json:
        say_json({"engine": engine.name, "run_id": engine.run_id, "answer": answer})
        return
    what = options.kind.replace("_", "-")
    name = f"{shown(engine.name)} ({engine.run_id})"
    if answer is None:
        say(f"{name} has not answered within {ANSWERS_WITHIN:g} s; {what} stays posted")
    elif answer.get("refused"):
        say(f"{name} refused {what}: {shown(str(answer['refused']), 300)}")
    else:
        say(f"{name} carries out {what}, ordered by {shown(str(answer.get('by')))}")
    say(f"  {store.command('events', engine.run_id)}")


def _print(engine: EngineInfo, answer: Body | None) -> None:
    where = f"{engine.about.get('host')}, process {engine.about.get('pid')}"
    say(
        f"{shown(engine.name)} ({engine.run_id}) on {shown(where)}, for {roughly(time.time() - engine.began)}"
    )
    if not engine.alive:
        say(f"  is dead: its process is gone, and it never stopped; its runs {engine.left}")
    elif answer is None:
        say(f"  lives, but has not answered within {ANSWERS_WITHIN:g} s: its event loop may be blocked")
    else:
        _print_status(answer)


def _print_status(answer: Body) -> None:
    admitting = "admits runs" if answer["admitting"] else "admits no runs"
    if closed := answer.get("closed"):
        admitting += f" ({shown(_reason(closed), 300)})"
    say(f"  {'draining, ' if answer['draining'] else ''}{admitting}")
    counts = ", ".join(f"{answer[name]} {name}" for name in ("queued", "running", "ready", "waiting"))
    say(f"  {many(answer['slots'], 'slot')}, {answer['taken']} taken; runs: {counts}")
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
