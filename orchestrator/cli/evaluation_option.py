"""The options of the command `eval`. Its body is in `evaluation.py`, imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given


@dataclass(frozen=True, kw_only=True)
class EvalOptions(given.DisplayOptions):
    """The command line of `eval`."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The cases: *.yaml, *.yml or *.jsonl.", show_default=False)
    ]
    agent: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The agent: a function of the journal, or of the journal and the observers.",
        ),
    ]
    judges: Annotated[
        tuple[str, ...],
        typer.Option(
            "--judge",
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function of a CaseRun: a bool, a score or a Judgement. Repeatable.",
        ),
    ] = ()
    cases: Annotated[
        tuple[str, ...], typer.Option("--case", metavar="NAME", help="Only this case; repeatable.")
    ] = ()
    tags: Annotated[
        tuple[str, ...], typer.Option("--tag", metavar="TAG", help="Only cases with this tag; repeatable.")
    ] = ()
    repeat: Annotated[int, typer.Option(metavar="N", help="Run each case N times.")] = 1
    concurrency: Annotated[int, typer.Option(metavar="N", help="Most runs at once.")] = 4
    budget: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=VALUE",
            help="Start no case after this is used up: cost, tokens or seconds. Repeatable.",
        ),
    ] = ()
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the evaluation. Default: that of the file.", show_default=False
        ),
    ] = None
    new: Annotated[
        bool, typer.Option("--new", help="Start again, instead of continuing an interrupted evaluation.")
    ] = False
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|RUN",
            help="Compare with this report of --json, or this evaluation of the journal. Default: the last one.",
            show_default=False,
        ),
    ] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML to a file, which is replaced.")
    ] = None
