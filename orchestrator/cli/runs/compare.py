"""`orchestrator runs compare`: two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import many, span, table
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.spread import spread
from orchestrator.runtime.runs.result import ComparedRun, RecordedTransition, RunPair

Cells = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(given.JournalOptions):
    """The command line of `runs compare`."""

    first: Annotated[str, typer.Argument(metavar="RUN", help="A run id, or at least its first 4 characters.")]
    second: Annotated[str, typer.Argument(metavar="OTHER", help="Another run, perhaps a fork of the first.")]
    content: given.WithContent = False


@spread
def compare(options: CompareOptions) -> int:
    """Show two runs, or a run and its fork, side by side.

    The first transition that differs, outcome, tokens, cost, time in each state, calls of tools, and whether the
    outputs are equal; --content prints them.
    """

    async def work(store: OpenStore) -> RunPair:
        first, second = await store.run(options.first), await store.run(options.second)
        return await store.runs.compare(first.run_id, second.run_id)

    pair = at_journal(options.journal, work, only_reads=True)
    if options.json:
        found = pair.divergence
        names = ("run_id", "graph", "agent", "status", "outcome", "reason", "turns", "seconds")
        say_json(
            {
                "runs": [
                    {
                        **{name: getattr(run, name) for name in names},
                        "usage": run.usage.as_json(),
                        "states": dict(run.states),
                        "tools": dict(run.tools),
                        **({"output": run.output} if options.content else {}),
                    }
                    for run in (pair.first, pair.second)
                ],
                "forked_after": pair.forked_after,
                "equal": pair.equal,
                "divergence": None
                if found is None
                else {
                    "number": found.number,
                    "first": found.first and found.first._asdict(),
                    "second": found.second and found.second._asdict(),
                },
                "same_output": pair.same_output,
            }
        )
        return Exit.COMPLETED
    for line in table(("", pair.first.run_id, pair.second.run_id), list(_rows(pair))):
        say(line)
    say(_sentence(pair))
    hidden = pair.outputs == "the outputs differ" and not options.content
    say(pair.outputs + (": --content prints them" if hidden else ""))
    if options.content:
        for run in (pair.first, pair.second):
            output = run.output
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            say(f"  {shown(run.run_id)}: {shown(text, 4_000)}")
    return Exit.COMPLETED


def _rows(pair: RunPair) -> Iterator[Cells]:
    one, other = pair.first, pair.second
    yield "graph", one.graph, other.graph
    yield "agent", one.agent or "-", other.agent or "-"
    yield "outcome", _ending(one), _ending(other)
    for name, unit, *numbers, currencies in pair.rows():
        first, second = (
            f"{_UNITS[unit](number)} {currency}".rstrip()
            for number, currency in zip(numbers, currencies, strict=True)
        )
        yield f"  {name}" if name.startswith(("in ", "calls of ")) else name, first, second


_UNITS: Final = {
    "count": lambda number: f"{number:,}",
    "cost": lambda number: "-" if number is None else f"{number:g}",
    "seconds": lambda number: "-" if number is None else span(number),
}
"""Unit of a number -> its text."""


def _ending(run: ComparedRun) -> str:
    name = run.outcome or run.status
    return name if run.reason in ("", "none") else f"{name} ({run.reason})"


def _sentence(pair: RunPair) -> str:
    """Return where the runs diverge."""
    where = "" if pair.forked_after is None else f"after the fork at turn {pair.forked_after}, "
    found = pair.divergence
    if found is None:
        return f"{where}all {many(pair.equal, 'transition')} are equal"
    return (
        f"{where}{many(pair.equal, 'transition')} equal; then {shown(pair.first.run_id)} has "
        f"{_transition(found.first)}, {shown(pair.second.run_id)} has {_transition(found.second)}"
    )


def _transition(one: RecordedTransition | None) -> str:
    return "no more transition" if one is None else f"{one.source} -> {one.dest} ({one.event})"
