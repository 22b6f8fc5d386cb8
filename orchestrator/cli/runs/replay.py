"""`orchestrator runs replay`: execute a recorded run again, step by step, without the world."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.runs.phrase import many, span
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.spread import spread
from orchestrator.files.named_object import imported_module
from orchestrator.runtime.run_replay import (
    RunReplay,
    flat_context,
    replay_run,
)

_LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class RunsReplayOptions(given.JournalOptions):
    """The command line of `runs replay`."""

    run: given.RunId
    until: Annotated[int | None, typer.Option(metavar="SEQ", help="Up to this record. Default: all.")] = None
    hooks: Annotated[
        tuple[str, ...],
        typer.Option(metavar="MODULE", help="Hooks of yours, as the agent has them; repeatable."),
    ] = ()
    step: Annotated[
        bool, typer.Option("--step", help="On a terminal: wait for Enter after each transition; q stops.")
    ] = False
    content: given.WithContent = False


@spread
def replay(options: RunsReplayOptions) -> int:
    """Execute a run again on its recorded answers and results.

    No model is called and no tool runs. Each transition is printed with the parts of the context that it changed. If
    a transition is not the recorded one, both contexts are compared, and the exit code is 1.
    """
    hooks = [imported_module(name, "hooks") for name in options.hooks]

    async def work(store: OpenStore) -> RunReplay:
        head = await store.run(options.run)
        records = await store.journal.load(head.run_id)
        return await replay_run(head.run_id, records, hooks=hooks, until=options.until)

    found = at_journal(options.journal, work, only_reads=True)
    if options.json:
        _print_json(found, content=options.content)
    else:
        _print_steps(found, options)
    if found.difference is None:
        return Exit.COMPLETED
    complain(f"run {found.run_id}: {found.difference}")
    return Exit.FAILED


def _print_steps(found: RunReplay, options: RunsReplayOptions) -> None:
    before: Mapping[str, Any] = {}
    for one in found.steps:
        context = flat_context(one.context)
        step = one.step
        say(
            f"{one.number:>5}  {step.source} -> {step.dest}  {step.event}  at {span(step.t)}  record {step.record}"
        )
        for name in context:
            if name in before and context[name] != before[name]:
                was, now = (_value(each[name], content=options.content) for each in (before, context))
                say(f"         {name}: {now}" if was == now else f"         {name}: {was} -> {now}")
        before = context
        if options.step and sys.stdin.isatty():  # until the person enters q or closes the input
            line = sys.stdin.readline()
            if not line or line.strip().lower() == "q":
                return
    if found.difference is not None:
        say(str(found.difference))
        for name, values in found.difference.fields.items():
            ours, theirs = (_value(value, content=options.content) for value in values)
            say(f"         {name}: recorded {ours}, replayed {theirs}")
    elif found.outside is not None:
        say(
            f"the comparison ends before record {found.outside.record}: {found.outside.outside} came from outside"
        )
    else:
        say(f"{many(len(found.steps), 'transition')}, all as recorded")


def _value(value: object, *, content: bool) -> str:
    """Return a value of a context; texts and what may contain them only with `content`."""
    if value is None or isinstance(value, int | float):
        return f"{value}"
    if content:
        return shown(repr(value), _LONGEST)
    return (
        f"{type(value).__name__} of {len(value)}" if isinstance(value, list | dict | str | tuple) else "..."
    )


def _print_json(found: RunReplay, *, content: bool) -> None:
    for one in found.steps:
        step = one.step
        context = flat_context(one.context).items()
        say_json(
            {
                "transition": one.number,
                "record": step.record,
                "event": step.event,
                "source": step.source,
                "dest": step.dest,
                "t": step.t,
                "context": {name: _plain(value, content=content) for name, value in context},
            }
        )
    difference = found.difference
    say_json(
        {
            "run_id": found.run_id,
            "transitions": len(found.steps),
            "outside": found.outside and found.outside.outside,
            "difference": None
            if difference is None
            else {
                "transition": difference.number,
                "text": str(difference),
                "fields": {
                    name: [_plain(ours, content=content), _plain(theirs, content=content)]
                    for name, (ours, theirs) in difference.fields.items()
                },
            },
        }
    )


def _plain(value: Any, *, content: bool) -> Any:
    if content or value is None or isinstance(value, int | float):
        return value
    return _value(value, content=False)
