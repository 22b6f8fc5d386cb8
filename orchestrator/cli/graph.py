"""`orchestrator graph` and `orchestrator lint`: a state machine as text or as a drawing, and its problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import PICTURES as DRAWN
from orchestrator.cli.output import check_picture, save_picture, say, say_json, say_more, shown
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.shipped import HOOKS, SHIPPED, named
from orchestrator.cli.spread import spread, spread_options
from orchestrator.drawing.svg import GraphMarks, svg
from orchestrator.errors import ConfigError, GraphError
from orchestrator.kernel.graph import FORMATS, Graph
from orchestrator.runtime.runs.story import Story, path_marks, run_marks
from orchestrator.telemetry.history import History

_GRAPH = "A shipped graph, or MODULE:ATTRIBUTE of your own."
MOST_RUNS = 1_000
"""Runs that are read for the visits and times of a graph, the newest first."""

_FORMATS: Mapping[str, Callable[[Graph, str | None], str]] = FORMATS
_ALL = (*FORMATS, *(ending.removeprefix(".") for ending in DRAWN))


@spread
def draw_graph(
    name: Annotated[str, typer.Argument(metavar="NAME", help=_GRAPH)] = "llm_loop",
    *,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="mermaid, dot, table, json, svg or png. Default: that of --output, else mermaid.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to a file, which is replaced.", show_default=False
        ),
    ] = None,
    heat: Annotated[
        Literal["time", "visits"] | None,
        typer.Option(
            help="Darker states have more time or visits in the runs of the journal.", show_default=False
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="The path and the state of one run.", show_default=False),
    ] = None,
    journal: given.Journal = None,
) -> None:
    """Draw a state machine from its table.

    With --run or --heat the drawing has what recorded runs did: the path with visits and times, and darker states.
    """
    form = format_
    if form is None:
        ending = "" if output is None else output.suffix.lower()
        form = ending.removeprefix(".") if ending in DRAWN else "mermaid"
    drawn = f".{form}" in DRAWN
    if form not in _ALL:
        raise ConfigError(f"unknown format {form!r}; known: {', '.join(_ALL)}")
    if drawn and output is not None:
        check_picture(output, f".{form}")
    if form == "png" and output is None:
        raise ConfigError("a PNG cannot be printed; name its file with --output FILE.png")
    if not drawn and (heat or run):
        raise ConfigError("--heat and --run are drawn; use them with --format svg or png")
    graph = named(name)
    shade: Literal["time", "visits"] = heat or "time"

    async def of_run(store: OpenStore) -> GraphMarks:
        head = await store.run(run or "")
        if head.graph != graph.name:
            raise ConfigError(f"run {head.run_id} belongs to graph {head.graph!r}, not to {graph.name!r}")
        return run_marks(head, await store.story(head), time.time(), heat=shade)

    async def of_all(store: OpenStore) -> GraphMarks:
        history = History(limit=0)
        async for head in store.journal.runs(graph=graph.name, descending=True, limit=MOST_RUNS):
            story = Story.of(head.run_id, await store.journal.load(head.run_id))
            history.add(story.history)
        if not history.states:
            raise ConfigError(f"{store.journal.address} has no run of graph {graph.name!r} with a transition")
        return path_marks(history, heat=shade)

    marks = None
    if heat is not None or run is not None:
        marks = at_journal(journal, of_all if run is None else of_run, only_reads=True)
    text = svg(graph, marks) if drawn else _FORMATS[form](graph, None)
    if output is None:
        say_more(text)
    elif drawn:
        save_picture(output, text)
        say(f"{output}: graph {shown(graph.name)}")
    else:
        output.write_text(text, encoding="utf-8")
        say(f"{output}: graph {shown(graph.name)} as {form}")


@spread_options
def lint_graphs(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"{_GRAPH} Default: all shipped.", show_default=False)
    ] = None,
    *,
    json: given.Json = False,
) -> int:
    """Check a state machine; for shipped ones, their hooks too.

    The exit code is 1 when there are problems.
    """
    found: dict[str, list[object]] = {}
    for each in [name] if name else SHIPPED:
        try:
            found[each] = list(named(each).lint())
            if each in HOOKS:
                HOOKS[each]()
        except GraphError as error:  # a strict graph with problems cannot be built: its error lists them
            found[each] = list(error.problems)
    if json:
        graphs = []
        for each, problems in found.items():
            plain = [
                asdict(problem)
                if is_dataclass(problem) and not isinstance(problem, type)
                else {"message": str(problem)}
                for problem in problems
            ]
            graphs.append({"graph": each, "problems": plain})
        say_json({"graphs": graphs})
    else:
        for each, problems in found.items():
            say(f"{each}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
            for problem in problems:
                say(f"  {problem}")
    return Exit.FAILED if any(found.values()) else Exit.COMPLETED
