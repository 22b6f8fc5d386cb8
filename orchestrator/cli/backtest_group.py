"""The options of the command `backtest`. Its body is in `backtest.py`, imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.filter_option import FilterOptions


@dataclass(frozen=True, kw_only=True)
class BacktestOptions(FilterOptions, given.JournalOptions):
    """The command line of `backtest`."""

    files: Annotated[
        tuple[Path, ...],
        typer.Argument(
            metavar="FILE",
            help="Runs that `runs export` wrote, instead of those of the journal.",
            show_default=False,
        ),
    ] = ()
    limits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="Limits of the policy: the members of Limits, or a table [limits]."
        ),
    ] = None
    set: Annotated[
        tuple[str, ...],
        typer.Option(
            "--set", metavar="NAME=VALUE", help="One limit of the policy, e.g. max_iterations=30; 0 is off."
        ),
    ] = ()
    guard: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="MODULE:FUNCTION", help="A guard of yours, asked at each decision about another turn."
        ),
    ] = ()
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=A..B", help="One row for each value of a limit, e.g. max_no_progress=2..8."
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Runs that started in the last 90s, 15m, 12h, 7d.")
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw benefit against harm: *.svg or *.png."),
    ] = None
    csv: Annotated[
        bool, typer.Option("--csv", help="Print one row for each run, or each value of --sweep.")
    ] = False
