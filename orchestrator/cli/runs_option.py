"""Options of commands of the group `runs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given


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


@dataclass(frozen=True, kw_only=True)
class CompareOptions(given.JournalOptions):
    """The command line of `runs compare`."""

    first: Annotated[str, typer.Argument(metavar="RUN", help="A run id, or at least its first 4 characters.")]
    second: Annotated[str, typer.Argument(metavar="OTHER", help="Another run, perhaps a fork of the first.")]
    content: given.WithContent = False


@dataclass(frozen=True, kw_only=True)
class MigrateOptions(given.JournalOptions):
    """The command line of `runs migrate`."""

    runs: Annotated[
        tuple[str, ...], typer.Argument(metavar="RUN", help="Only these runs.", show_default=False)
    ] = ()
    using: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Takes a journal.stored_run.StoredRun and returns it as it fits this version.",
        ),
    ] = None
    made: Annotated[
        str | None,
        typer.Option("--from", metavar="FINGERPRINT", help="Only runs of this version, or its beginning."),
    ] = None
    dry: Annotated[bool, typer.Option("--dry-run", help="Only list the versions that runs are in.")] = False


@dataclass(frozen=True, kw_only=True)
class RollbackOptions(given.JournalOptions):
    """The command line of `runs rollback`."""

    run: given.RunId
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the files. Default: the one the run was started in."),
    ] = None
    step: Annotated[str | None, typer.Option(metavar="S", help="Only the changes of this step.")] = None
    yes: given.Yes = False
