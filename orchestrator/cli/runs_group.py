"""The commands of the group `runs`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.spread import spread

group = typer.Typer(help="Look at recorded runs and act on them.", rich_markup_mode=None)


@group.callback()
def runs_group() -> None:
    """Look at recorded runs and act on them. RUN is a run id, or at least 4 characters that begin one."""


# ---- looking ----


@group.command("list")
@spread
def runs_list(
    *,
    status: given.Status = None,
    graph: given.OfGraph = None,
    limit: given.Most = 20,
    everything: given.AlsoEngines = False,
    at: given.JournalOptions,
) -> None:
    """List runs, newest first. --json prints one object a line."""
    from orchestrator.cli.runs.listing import ListOptions, list_runs

    raise typer.Exit(list_runs(ListOptions(status, graph, limit, everything, **vars(at))))


@group.command()
@spread
def show(run: given.RunId, *, full: given.Full = False, at: given.JournalOptions) -> None:
    """Show a run: where it stands, what it waits for, its path, where time and tokens went, who decided what.

    A call that it asks about is cut if it does not fit on a screen; the answer then needs the full digest, which
    --full prints.
    """
    from orchestrator.cli.runs.show import show_run

    raise typer.Exit(show_run(run, full=full, **vars(at)))


@group.command()
@spread
def events(
    run: given.RunId,
    *,
    follow: given.Follow = False,
    since: given.Since = 0,
    content: given.WithContent = False,
    at: given.JournalOptions,
) -> None:
    """Print the records of a run, one a line; what was said and done in them only with --content."""
    from orchestrator.cli.runs.events import EventsOptions, print_events

    raise typer.Exit(print_events(EventsOptions(run, follow, since, content, **vars(at))))


@group.command()
@spread
def export(
    run: given.RunId,
    *,
    content: given.WithContent = False,
    output: given.Output = None,
    at: given.JournalOptions,
) -> None:
    """Print a run as JSON: without content, to hand around; with --content as `orchestrator replay` reads it."""
    from orchestrator.cli.runs.export import export_run

    raise typer.Exit(export_run(run, content=content, output=output, **vars(at)))


# ---- acting ----


@group.command()
@spread
def approve(
    run: given.RunId,
    *,
    which: given.CallOptions,
    arguments: given.Arguments = None,
    asking: given.RequestOrigin,
) -> None:
    """Let a call run, perhaps with other arguments."""
    _post("approve", run, asking, **vars(which), arguments=arguments)


@group.command()
@spread
def reject(
    run: given.RunId, *, end: given.End = False, which: given.CallOptions, asking: given.RequestOrigin
) -> None:
    """Refuse a call: the model reads why and goes on. With --end, end the run."""
    _post("reject", run, asking, **vars(which), end=end)


@group.command()
@spread
def respond(
    run: given.RunId, text: given.Content, *, which: given.CallOptions, asking: given.RequestOrigin
) -> None:
    """Give the result of a call yourself; nothing is run."""
    from orchestrator.cli.load import decoded_text

    _post("respond", run, asking, **vars(which), content=decoded_text(text, "the result"))


@group.command()
@spread
def cancel(run: given.RunId, *, asking: given.RequestOrigin) -> None:
    """Ask a run to stop; wait up to 2 s for it, and name what it is in the middle of if it has not stopped then."""
    _post("cancel", run, asking)


@group.command()
@spread
def pause(run: given.RunId, *, asking: given.RequestOrigin) -> None:
    """Ask a run to park; `runs resume` goes on with it."""
    _post("pause", run, asking)


def _post(kind: str, run: str, asking: given.RequestOrigin, **answer: Any) -> None:
    from orchestrator.cli.runs.request import RequestOptions, post

    raise typer.Exit(post(RequestOptions(kind=kind, run=run, **answer, **vars(asking))))


# ---- going on ----


@group.command()
@spread
def resume(
    run: given.AnyRunId = None,
    *,
    other: given.ReplacementOptions,
    by: given.By = None,
    shown: given.DisplayOptions,
) -> None:
    """Go on with a run where it stands, as it was started; without RUN, say what would happen to each open run."""
    from orchestrator.cli.runs.resume import RunsResumeOptions, resume_run

    raise typer.Exit(resume_run(RunsResumeOptions(run=run, by=by, **other.plain(), **vars(shown))))


@group.command()
@spread
def fork(
    run: given.RunId,
    *,
    turn: given.Turn = None,
    prompt: given.More = None,
    other: given.ReplacementOptions,
    run_id: given.NewRunId = None,
    shown: given.DisplayOptions,
) -> None:
    """Start a new run from the conversation of a run as it stood after a turn; RUN stays as it is."""
    from orchestrator.cli.runs.fork import ForkOptions, fork_run

    options = ForkOptions(run=run, turn=turn, prompt=prompt, run_id=run_id, **other.plain(), **vars(shown))
    raise typer.Exit(fork_run(options))


@group.command()
@spread
def rollback(
    run: given.RunId,
    *,
    root: given.Root = None,
    step: given.Step = None,
    yes: given.Yes = False,
    at: given.JournalOptions,
) -> None:
    """Undo what a run did to files, newest first; without --yes, list it. What others changed since is kept."""
    from orchestrator.cli.runs.rollback import RollbackOptions, roll_back

    raise typer.Exit(roll_back(RollbackOptions(run=run, root=root, step=step, yes=yes, **vars(at))))


@group.command()
@spread
def migrate(
    run: given.RunIds = None,
    *,
    using: given.Using = None,
    from_: given.From = None,
    dry_run: given.DryRun = False,
    at: given.JournalOptions,
) -> None:
    """Bring open runs of older versions of the graph to this one. They are not resumed by that."""
    from orchestrator.cli.runs.migrate import MigrateOptions, migrate_runs

    options = MigrateOptions(runs=tuple(run or ()), using=using, made=from_, dry=dry_run, **vars(at))
    raise typer.Exit(migrate_runs(options))


# ---- care ----


@group.command()
@spread
def prune(
    *,
    older_than: given.OlderThan = None,
    keep_last: given.KeepLast = None,
    yes: given.Yes = False,
    at: given.JournalOptions,
) -> None:
    """Remove ended runs that meet every condition given; without --yes, count them."""
    from orchestrator.cli.runs.care import prune_runs

    raise typer.Exit(prune_runs(older_than=older_than, keep_last=keep_last, yes=yes, **vars(at)))


@group.command()
@spread
def erase(run: given.RunId, *, yes: given.Yes = False, at: given.JournalOptions) -> None:
    """Remove one run for good, from file and log."""
    from orchestrator.cli.runs.care import erase_run

    raise typer.Exit(erase_run(run, yes=yes, **vars(at)))


@group.command()
@spread
def backup(file: given.BackupFile, *, at: given.JournalOptions) -> None:
    """Write a proved copy of the journal to a new file while runs go on."""
    from orchestrator.cli.runs.care import back_up

    raise typer.Exit(back_up(file, **vars(at)))


@group.command()
@spread
def restore(file: given.BackupFile, *, at: given.JournalOptions) -> None:
    """Make a journal out of a backup; the journal must not exist yet."""
    from orchestrator.cli.runs.care import restore_journal

    raise typer.Exit(restore_journal(file, **vars(at)))
