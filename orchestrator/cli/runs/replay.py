"""`orchestrator runs replay`: execute a recorded run again, step by step, without the world."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.load import imported_module
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.runs.phrase import many, span
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.runs_option import RunsReplayOptions
from orchestrator.runtime.run_replay.replay import (
    ReplayDifference,
    ReplayStep,
    RunReplay,
    flat_context,
    replay_run,
)

_LONGEST = 200


def replay_recorded_run(options: RunsReplayOptions) -> int:
    """Replay a run and print each transition; the exit code is 1 if one differs."""
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
        if options.step and not _goes_on():
            return
    if found.difference is not None:
        _print_difference(found.difference, content=options.content)
    elif found.outside is not None:
        say(
            f"the comparison ends before record {found.outside.record}: {found.outside.outside} came from outside"
        )
    else:
        say(f"{many(len(found.steps), 'transition')}, all as recorded")


def _print_difference(difference: ReplayDifference, *, content: bool) -> None:
    say(str(difference))
    for name, (ours, theirs) in difference.fields.items():
        say(
            f"         {name}: recorded {_value(ours, content=content)}, replayed {_value(theirs, content=content)}"
        )


def _goes_on() -> bool:
    """Wait for Enter on a terminal; return False if the person enters q or closes the input."""
    if not sys.stdin.isatty():
        return True
    line = sys.stdin.readline()
    return bool(line) and line.strip().lower() != "q"


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
        say_json(_step_json(one, content=content))
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


def _step_json(one: ReplayStep, *, content: bool) -> dict[str, Any]:
    step = one.step
    return {
        "transition": one.number,
        "record": step.record,
        "event": step.event,
        "source": step.source,
        "dest": step.dest,
        "t": step.t,
        "context": {
            name: _plain(value, content=content) for name, value in flat_context(one.context).items()
        },
    }


def _plain(value: Any, *, content: bool) -> Any:
    if content or value is None or isinstance(value, int | float):
        return value
    return _value(value, content=False)
