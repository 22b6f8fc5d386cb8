"""`orchestrator graph`: the table of a state machine as text or as a drawing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.cli.output import say, say_more, shown
from orchestrator.cli.picture import FORMATS as DRAWN
from orchestrator.cli.picture import check_picture, save_picture
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.shipped import named
from orchestrator.drawing.mark import GraphMarks
from orchestrator.drawing.svg import svg
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.kernel.diagram import FORMATS
from orchestrator.kernel.graph import Graph
from orchestrator.runtime.runs.story import Story, path_marks, run_marks
from orchestrator.telemetry.history import History

MOST_RUNS = 1_000
"""Runs that are read for the visits and times of a graph, the newest first."""

_FORMATS: Mapping[str, Callable[[Graph, str | None], str]] = FORMATS
_ALL = (*FORMATS, *(ending.removeprefix(".") for ending in DRAWN))


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The command line of `graph`."""

    name: str
    format: str | None
    output: Path | None
    heat: Literal["time", "visits"] | None
    run: str | None
    journal: Address | None

    @property
    def form(self) -> str:
        """The format: the given one, else that of the file, else text."""
        if self.format is not None:
            return self.format
        ending = "" if self.output is None else self.output.suffix.lower()
        return ending.removeprefix(".") if ending in DRAWN else "mermaid"

    @property
    def drawn(self) -> bool:
        """Whether it is a drawing."""
        return f".{self.form}" in DRAWN


def draw_graph(options: GraphOptions) -> None:
    """Print a graph, or write it to a file. Raises ConfigError or MissingExtra."""
    _check(options)
    graph = named(options.name)
    text = svg(graph, _marks(options, graph)) if options.drawn else _FORMATS[options.form](graph, None)
    if options.output is None:
        say_more(text)
    elif options.drawn:
        save_picture(options.output, text)
        say(f"{options.output}: graph {shown(graph.name)}")
    else:
        options.output.write_text(text, encoding="utf-8")
        say(f"{options.output}: graph {shown(graph.name)} as {options.form}")


def _check(options: GraphOptions) -> None:
    if options.form not in _ALL:
        raise ConfigError(f"unknown format {options.form!r}; known: {', '.join(_ALL)}")
    if options.drawn and options.output is not None:
        check_picture(options.output, f".{options.form}")
    if options.form == "png" and options.output is None:
        raise ConfigError("a PNG cannot be printed; name its file with --output FILE.png")
    if not options.drawn and (options.heat or options.run):
        raise ConfigError("--heat and --run are drawn; use them with --format svg or png")


def _marks(options: GraphOptions, graph: Graph) -> GraphMarks | None:
    """Return what the runs of a journal did: one run, or the newest of the graph."""
    if options.heat is None and options.run is None:
        return None
    heat, name = options.heat or "time", options.run

    async def of_run(store: OpenStore) -> GraphMarks:
        head = await store.run(name or "")
        if head.graph != graph.name:
            raise ConfigError(f"run {head.run_id} belongs to graph {head.graph!r}, not to {graph.name!r}")
        return run_marks(head, await store.story(head), time.time(), heat=heat)

    async def of_all(store: OpenStore) -> GraphMarks:
        history = History(limit=0)
        async for head in store.journal.runs(graph=graph.name, descending=True, limit=MOST_RUNS):
            story = Story.of(head.run_id, await store.journal.load(head.run_id))
            history.add(story.history)
        if not history.states:
            raise ConfigError(f"{store.journal.address} has no run of graph {graph.name!r} with a transition")
        return path_marks(history, heat=heat)

    return at_journal(options.journal, of_all if name is None else of_run, only_reads=True)
