"""The commands of the group `runs`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.filter_option import FilterOptions
from orchestrator.cli.runs_option import CompareOptions, MigrateOptions, RollbackOptions, RunsReplayOptions
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError

group = typer.Typer(help="List, show, answer and resume recorded runs.", rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class ListOptions(FilterOptions, given.JournalOptions):
    """The command line of `runs list`."""

    sort: Annotated[
        Literal["newest", "age", "updated", "time-in-state", "tokens", "cost"],
        typer.Option(help="Order: newest first, or the greatest age, time in state, tokens or cost first."),
    ] = "newest"
    limit: Annotated[int, typer.Option(metavar="N", help="How many; 0 is all.")] = 20
    after: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue after this run in the same order.")
    ] = None
    watch: Annotated[bool, typer.Option("--watch", help="Print the list every 2 s until Ctrl-C.")] = False
    all: Annotated[bool, typer.Option("--all", help="Also the runs that represent engines.")] = False


@dataclass(frozen=True, kw_only=True)
class EventsOptions(given.JournalOptions):
    """The command line of `runs events`."""

    run: given.RunId
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new records until the run ends, or Ctrl-C.")
    ] = False
    since: Annotated[int, typer.Option(metavar="N", help="Records from this number on.")] = 0
    content: given.WithContent = False


@dataclass(frozen=True, kw_only=True)
class RunsResumeOptions(given.ReplacementOptions, given.DisplayOptions):
    """The command line of `runs resume`."""

    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run id, or at least its first 4 characters. Without it: list the open runs.",
            show_default=False,
        ),
    ] = None
    by: given.By = None
    from_agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Transfer the run from the agent of this name, which a program has.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ForkOptions(given.ReplacementOptions, given.DisplayOptions):
    """The command line of `runs fork`."""

    run: given.RunId
    turn: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="After this answer of the model; 0 is before the first. Default: the end."
        ),
    ] = None
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The next message of the user.")
    ] = None
    run_id: given.NewRunId = None


@group.callback()
def runs_group() -> None:
    """List, show, answer and resume recorded runs. RUN is a run id, or at least its first 4 characters."""


# ---- reading ----


@group.command("list")
@spread
def runs_list(options: ListOptions) -> int:
    """List runs; --json prints one object a line."""
    from orchestrator.cli.runs.listing import list_runs

    return list_runs(options)


@group.command()
@spread
def show(
    run: given.RunId,
    *,
    full: given.Full = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw what happened when, into FILE.svg or FILE.png.", show_default=False
        ),
    ] = None,
    turns: Annotated[
        str | None, typer.Option(metavar="N-M", help="Only these turns of the timeline.", show_default=False)
    ] = None,
    at: given.JournalOptions,
) -> int:
    """Show a run: state, questions, path, times, tokens, decisions.

    A call that the run asks about is cut if it does not fit on a screen; the answer then needs the full digest, which
    --full prints. With --timeline, only the drawing is written.
    """
    if timeline is not None or turns is not None:
        from orchestrator.cli.runs.timeline import draw_timeline

        return draw_timeline(run, timeline, turns, **vars(at))
    from orchestrator.cli.runs.show import show_run

    return show_run(run, full=full, **vars(at))


@group.command()
@spread
def events(options: EventsOptions) -> int:
    """Print the records of a run, one a line.

    Messages, arguments, results and texts are printed with --content only.
    """
    from orchestrator.cli.runs.events import print_events

    return print_events(options)


@group.command()
@spread
def export(
    run: given.RunId,
    others: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="OTHER", help="Further runs, with --as-case.", show_default=False),
    ] = (),
    *,
    content: given.WithContent = False,
    as_test: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a test that replays the run, and its records, secrets removed, into DIR.",
        ),
    ] = None,
    as_case: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the runs as cases of `orchestrator eval`, secrets removed, to a new *.yaml or *.jsonl.",
        ),
    ] = None,
    output: given.Output = None,
    at: given.JournalOptions,
) -> int:
    """Print a run as JSON, without the content of messages.

    With --content it is a conversation that `orchestrator replay` reads. Review what --as-test and --as-case write
    before you share it: it has messages and arguments, and only text that looks like a secret is replaced.
    """
    if as_case is not None:
        from orchestrator.cli.runs.export_case import export_cases

        given_too = content or output is not None or as_test is not None
        return export_cases((run, *others), as_case, alone=not given_too, **vars(at))
    if others:
        raise ConfigError("one run can be exported at a time, several only with --as-case")
    if as_test is not None:
        from orchestrator.cli.runs.export_test import export_test

        return export_test(run, as_test, content=content, output=output, **vars(at))
    from orchestrator.cli.runs.export import export_run

    return export_run(run, content=content, output=output, **vars(at))


@group.command()
@spread
def replay(options: RunsReplayOptions) -> int:
    """Execute a run again on its recorded answers and results.

    No model is called and no tool runs. Each transition is printed with the parts of the context that it changed. If
    a transition is not the recorded one, both contexts are compared, and the exit code is 1.
    """
    from orchestrator.cli.runs.replay import replay_recorded_run

    return replay_recorded_run(options)


@group.command()
@spread
def compare(options: CompareOptions) -> int:
    """Show two runs, or a run and its fork, side by side.

    The first transition that differs, outcome, tokens, cost, time in each state, calls of tools, and whether the
    outputs are equal; --content prints them.
    """
    from orchestrator.cli.runs.compare import compare_recorded_runs

    return compare_recorded_runs(options)


# ---- requests ----


@group.command()
@spread
def approve(
    run: given.RunId,
    *,
    which: given.CallOptions,
    arguments: given.Arguments = None,
    asking: given.RequestOrigin,
) -> int:
    """Approve a call, perhaps with other arguments."""
    return _post("approve", run, asking, **vars(which), arguments=arguments)


@group.command()
@spread
def reject(
    run: given.RunId, *, end: given.End = False, which: given.CallOptions, asking: given.RequestOrigin
) -> int:
    """Reject a call: the model reads the reason. With --end, end the run."""
    return _post("reject", run, asking, **vars(which), end=end)


@group.command()
@spread
def respond(
    run: given.RunId, text: given.Content, *, which: given.CallOptions, asking: given.RequestOrigin
) -> int:
    """Give the result of a call yourself; the tool does not run."""
    from orchestrator.cli.load import decoded_text

    return _post("respond", run, asking, **vars(which), content=decoded_text(text, "the result"))


@group.command()
@spread
def cancel(
    run: given.OneRun = None, *, several: FilterOptions, yes: given.Yes = False, asking: given.RequestOrigin
) -> int:
    """Ask a run to stop, and wait up to 2 s for it; or several runs.

    If it has not stopped by then, the command names its current operation. Without RUN: the open and parked runs that
    meet every condition given; without --yes they are only listed.
    """
    return _post_to("cancel", run, several, asking, yes=yes)


@group.command()
@spread
def pause(
    run: given.OneRun = None, *, several: FilterOptions, yes: given.Yes = False, asking: given.RequestOrigin
) -> int:
    """Ask a run to park; `runs resume` continues it. Or several runs.

    Without RUN: the open and parked runs that meet every condition given; without --yes they are only listed.
    """
    return _post_to("pause", run, several, asking, yes=yes)


def _post_to(
    kind: str, run: str | None, several: FilterOptions, asking: given.RequestOrigin, *, yes: bool
) -> int:
    from orchestrator.cli.runs.several import post_to_several, refuse_conditions

    if run is None:
        return post_to_several(kind, several, asking, yes=yes)
    refuse_conditions(several)
    return _post(kind, run, asking)


def _post(kind: str, run: str, asking: given.RequestOrigin, **answer: Any) -> int:
    from orchestrator.cli.runs.request import RequestOptions, post

    return post(RequestOptions(kind=kind, run=run, **answer, **vars(asking)))


# ---- resuming ----


@group.command()
@spread
def resume(options: RunsResumeOptions) -> int:
    """Resume a run as it was started; without RUN, list open runs.

    The list says what would happen to each of them.
    """
    from orchestrator.cli.runs.resume import resume_run

    return resume_run(options)


@group.command()
@spread
def fork(options: ForkOptions) -> int:
    """Start a new run from the conversation of a run after a turn.

    RUN itself does not change.
    """
    from orchestrator.cli.runs.fork import fork_run

    return fork_run(options)


@group.command()
@spread
def rollback(options: RollbackOptions) -> int:
    """Undo the file changes of a run, newest first.

    Without --yes the command lists them. Changes that others have made since are kept.
    """
    from orchestrator.cli.runs.rollback import roll_back

    return roll_back(options)


@group.command()
@spread
def migrate(options: MigrateOptions) -> int:
    """Migrate open runs of older versions of a graph.

    The command does not resume them.
    """
    from orchestrator.cli.runs.migrate import migrate_runs

    return migrate_runs(options)


# ---- maintenance ----


@group.command()
@spread
def prune(
    *,
    older_than: given.OlderThan = None,
    keep_last: given.KeepLast = None,
    yes: given.Yes = False,
    vacuum: given.Vacuum = False,
    at: given.JournalOptions,
) -> int:
    """Remove ended runs that meet every condition given.

    Without --yes the command counts them. --vacuum returns the space of removed runs to the file system, also of
    those that were removed before.
    """
    from orchestrator.cli.runs.care import prune_runs

    return prune_runs(older_than=older_than, keep_last=keep_last, yes=yes, vacuum=vacuum, **vars(at))


@group.command()
@spread
def erase(run: given.RunId, *, yes: given.Yes = False, at: given.JournalOptions) -> int:
    """Remove one run permanently, from file and log."""
    from orchestrator.cli.runs.care import erase_run

    return erase_run(run, yes=yes, **vars(at))


@group.command()
@spread
def backup(file: given.BackupFile, *, at: given.JournalOptions) -> int:
    """Write a checked copy of the journal; runs continue meanwhile."""
    from orchestrator.cli.runs.care import back_up

    return back_up(file, **vars(at))


@group.command()
@spread
def restore(file: given.BackupFile, *, at: given.JournalOptions) -> int:
    """Restore a journal from a backup; it must not exist yet."""
    from orchestrator.cli.runs.care import restore_journal

    return restore_journal(file, **vars(at))
