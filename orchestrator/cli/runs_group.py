"""The commands of the group `runs`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

import sys

import typer

from orchestrator.cli import option as given

group = typer.Typer(help="Look at recorded runs and act on them.", rich_markup_mode=None)


@group.callback()
def runs_group() -> None:
    """Look at recorded runs and act on them. RUN is a run id, or at least 4 characters that begin one."""


# ---- looking ----


@group.command("list")
def runs_list(
    *,
    status: given.Status = None,
    graph: given.OfGraph = None,
    limit: given.Most = 20,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """List runs, newest first. --json prints one object a line."""
    from orchestrator.cli.runs.listing import Wanted, list_runs

    raise typer.Exit(list_runs(Wanted(status, graph, limit, json, journal)))


@group.command()
def show(run: given.RunId, *, json: given.Json = False, journal: given.Journal = None) -> None:
    """Show a run: where it stands, what it waits for, its path, where time and tokens went, who decided what."""
    from orchestrator.cli.runs.show import show_run

    raise typer.Exit(show_run(run, json=json, journal=journal))


@group.command()
def events(
    run: given.RunId,
    *,
    follow: given.Follow = False,
    since: given.Since = 0,
    content: given.WithContent = False,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Print the records of a run, one a line; what was said and done in them only with --content."""
    from orchestrator.cli.runs.events import Wanted, print_events

    raise typer.Exit(print_events(Wanted(run, follow, since, content, json, journal)))


@group.command()
def export(
    run: given.RunId,
    *,
    content: given.WithContent = False,
    output: given.Output = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Print a run as JSON: without content, to hand around; with --content as `orchestrator replay` reads it."""
    from orchestrator.cli.runs.export import export_run

    raise typer.Exit(export_run(run, content=content, output=output, json=json, journal=journal))


# ---- acting ----


@group.command()
def approve(
    run: given.RunId,
    *,
    call: given.CallKey = None,
    digest: given.Digest = None,
    arguments: given.Arguments = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Let a call run, perhaps with other arguments."""
    from orchestrator.cli.runs.request import Wanted, post

    wanted = Wanted(
        kind="approve",
        run=run,
        by=by,
        why=why,
        json=json,
        journal=journal,
        call=call,
        digest=digest,
        arguments=arguments,
    )
    raise typer.Exit(post(wanted))


@group.command()
def reject(
    run: given.RunId,
    *,
    end: given.End = False,
    call: given.CallKey = None,
    digest: given.Digest = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Refuse a call: the model reads why and goes on. With --end, end the run."""
    from orchestrator.cli.runs.request import Wanted, post

    wanted = Wanted(
        kind="reject", run=run, by=by, why=why, json=json, journal=journal, call=call, digest=digest, end=end
    )
    raise typer.Exit(post(wanted))


@group.command()
def respond(
    run: given.RunId,
    text: given.Content,
    *,
    call: given.CallKey = None,
    digest: given.Digest = None,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Give the result of a call yourself; nothing is run."""
    from orchestrator.cli.runs.request import Wanted, post

    said = sys.stdin.read() if text == "-" else text
    wanted = Wanted(
        kind="respond",
        run=run,
        by=by,
        why=why,
        json=json,
        journal=journal,
        call=call,
        digest=digest,
        content=said,
    )
    raise typer.Exit(post(wanted))


@group.command()
def cancel(
    run: given.RunId,
    *,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Ask a run to stop; wait up to 2 s for it, and name what it is in the middle of if it has not stopped then."""
    from orchestrator.cli.runs.request import Wanted, post

    raise typer.Exit(post(Wanted(kind="cancel", run=run, by=by, why=why, json=json, journal=journal)))


@group.command()
def pause(
    run: given.RunId,
    *,
    by: given.By = None,
    why: given.Why = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Ask a run to park; `runs resume` goes on with it."""
    from orchestrator.cli.runs.request import Wanted, post

    raise typer.Exit(post(Wanted(kind="pause", run=run, by=by, why=why, json=json, journal=journal)))


# ---- going on ----


@group.command()
def resume(
    run: given.AnyRunId = None,
    *,
    limit: given.HigherLimit = None,
    model: given.OtherModel = None,
    tool: given.OtherTool = None,
    by: given.By = None,
    log: given.Log = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Go on with a run where it stands, as it was started; without RUN, say what would happen to each open run."""
    from orchestrator.cli.runs.resume import Wanted, resume_run

    wanted = Wanted(
        run=run,
        model=model,
        tools=tuple(tool or ()),
        limits=tuple(limit or ()),
        by=by,
        log=log,
        json=json,
        journal=journal,
    )
    raise typer.Exit(resume_run(wanted))


@group.command()
def fork(
    run: given.RunId,
    *,
    turn: given.Turn = None,
    prompt: given.More = None,
    model: given.OtherModel = None,
    tool: given.OtherTool = None,
    limit: given.HigherLimit = None,
    run_id: given.NewRunId = None,
    log: given.Log = None,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Start a new run from the conversation of a run as it stood after a turn; RUN stays as it is."""
    from orchestrator.cli.runs.fork import Wanted, fork_run

    wanted = Wanted(
        run=run,
        turn=turn,
        prompt=prompt,
        model=model,
        tools=tuple(tool or ()),
        limits=tuple(limit or ()),
        run_id=run_id,
        log=log,
        json=json,
        journal=journal,
    )
    raise typer.Exit(fork_run(wanted))


@group.command()
def rollback(
    run: given.RunId,
    *,
    root: given.Root = None,
    step: given.Step = None,
    yes: given.Yes = False,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Undo what a run did to files, newest first; without --yes, list it. What others changed since is kept."""
    from orchestrator.cli.runs.rollback import Wanted, roll_back

    raise typer.Exit(roll_back(Wanted(run=run, root=root, step=step, yes=yes, json=json, journal=journal)))


@group.command()
def migrate(
    run: given.RunIds = None,
    *,
    using: given.Using = None,
    from_: given.From = None,
    dry_run: given.DryRun = False,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Bring open runs of older versions of the graph to this one. They are not resumed by that."""
    from orchestrator.cli.runs.migrate import Wanted, migrate_runs

    wanted = Wanted(runs=tuple(run or ()), using=using, made=from_, dry=dry_run, json=json, journal=journal)
    raise typer.Exit(migrate_runs(wanted))


# ---- care ----


@group.command()
def prune(
    *,
    older_than: given.OlderThan = None,
    keep_last: given.KeepLast = None,
    yes: given.Yes = False,
    json: given.Json = False,
    journal: given.Journal = None,
) -> None:
    """Remove ended runs that meet every condition given; without --yes, count them."""
    from orchestrator.cli.runs.care import prune_runs

    raise typer.Exit(
        prune_runs(older_than=older_than, keep_last=keep_last, yes=yes, json=json, journal=journal)
    )


@group.command()
def erase(
    run: given.RunId, *, yes: given.Yes = False, json: given.Json = False, journal: given.Journal = None
) -> None:
    """Remove one run for good, from file and log."""
    from orchestrator.cli.runs.care import erase_run

    raise typer.Exit(erase_run(run, yes=yes, json=json, journal=journal))


@group.command()
def backup(file: given.BackupFile, *, json: given.Json = False, journal: given.Journal = None) -> None:
    """Write a proved copy of the journal to a new file while runs go on."""
    from orchestrator.cli.runs.care import back_up

    raise typer.Exit(back_up(file, json=json, journal=journal))


@group.command()
def restore(file: given.BackupFile, *, json: given.Json = False, journal: given.Journal = None) -> None:
    """Make a journal out of a backup; the journal must not exist yet."""
    from orchestrator.cli.runs.care import restore_journal

    raise typer.Exit(restore_journal(file, json=json, journal=journal))
