"""The commands. Each has its body in a module of its own, imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import Options, fleet_option, trust_option
from orchestrator.cli import option as given
from orchestrator.cli.approval_group import group as approval
from orchestrator.cli.exit import table
from orchestrator.cli.metrics_group import group as metrics
from orchestrator.cli.operate_group import group as operate
from orchestrator.cli.ops_group import group as ops
from orchestrator.cli.output import say, say_more
from orchestrator.cli.pipeline_group import group as pipeline
from orchestrator.cli.ralph_group import group as ralph
from orchestrator.cli.rlm_group import group as rlm
from orchestrator.cli.runs_group import group as runs
from orchestrator.cli.spread import spread

_EXIT_CODES = "Exit codes, one for each outcome:\n\n\b\n" + table()

_REPLAY = """Replay recorded conversations through the real state machine.

Models and tools say what they said then. One run for each turn of the user, with our own history carried
on. No limit applies unless given. The result of a conversation is one of:

\b
reproduced              our messages equal the recorded ones
                        (role, content, calls, ids, arguments, order)
reproduced_to_open_end  so up to where the recording stops
                        without the model's answer
irregular               recorded is what no loop produces, `irregular`
                        names it; followed while our messages equal
                        the recorded ones
unusable                no conversation, `reason` says why;
                        the rest goes on; exit code 2
diverged                ours differ, `reason` says where; exit code 1
cancelled               the replay was stopped here; exit code 6

--json prints one object a line: id, file, result, irregular, runs, messages (OpenAI form; ours, up to
where the recording ends), and reason where there is one. Each of runs has outcome, reason, error,
transitions (how many) and states (visits of each).
"""

app = typer.Typer(
    name="orchestrator",
    help="Run LLM agents as an explicit finite state machine: run, watch, replay, draw, check.",
    epilog=_EXIT_CODES,
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, and the same in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def execute(arguments: Sequence[str], options: Options) -> int:
    """Carry out one command line and return its exit code. Errors pass through to `main`."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("orchestrator", list(arguments) or ["--help"], obj=options) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("fsm-orchestrator")
    except PackageNotFoundError:
        number = "(run from source, not installed)"
    say(f"orchestrator {number}")
    raise typer.Exit


@app.callback()
def options_of_all(
    context: typer.Context,
    *,
    traceback: given.Traceback = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep what is said before the command's name."""
    del version
    context.ensure_object(Options).traceback = traceback


@app.command(epilog=_EXIT_CODES)
@spread
def run(
    prompt: given.Prompt,
    *,
    made: given.AgentOptions,
    limit: given.Limit = None,
    shown: given.DisplayOptions,
    stream: given.Stream = False,
    run_id: given.NewRunId = None,
    conversation: given.Conversation = None,
) -> None:
    """Run one prompt to its end, showing the state machine as it goes.

    A table that moves on a terminal, plain lines elsewhere; then the answer and the outcome. --json prints
    one object instead: run_id, outcome, reason, output, usage, verdict, error, messages (OpenAI form) and
    transitions. The exit code is that of the outcome.

    Every step is in the journal before it counts. While a person is asked, the run waits and says how to answer;
    if its process is killed, `orchestrator runs resume` goes on with it.
    """
    from orchestrator.cli.run import RunOptions, run_prompt

    asked = RunOptions(
        prompt=prompt,
        made=made.plain(),
        limits=tuple(limit or ()),
        run_id=run_id,
        conversation=conversation,
        stream=stream,
        **vars(shown),
    )
    raise typer.Exit(run_prompt(asked))


@app.command()
@spread
def worker(
    *,
    agent: fleet_option.Agents = None,
    made: given.AgentOptions,
    limit: given.Limit = None,
    fleet: fleet_option.FleetOptions,
    log: given.Log = None,
    journal: given.Journal = None,
) -> None:
    """Carry the runs of a PostgreSQL journal until SIGTERM or SIGINT, as one of any number of workers.

    Runs come from `orchestrator submit` and from programs that call deposit(). The agents are functions of the
    journal (--agent), or the one that --model and --tool describe. What a worker that died had goes on elsewhere. At
    the first signal runs get --grace seconds, the rest is left to other workers; the second ends the process at once.
    """
    from orchestrator.cli.worker import WorkerOptions, work

    wanted = WorkerOptions(
        made=made.plain(),
        agents=tuple(agent or ()),
        limits=tuple(limit or ()),
        log=log,
        journal=journal,
        **fleet.plain(),
    )
    raise typer.Exit(work(wanted))


@app.command()
@spread
def submit(
    prompt: given.Prompt,
    *,
    agent: fleet_option.Agent = None,
    about: fleet_option.About = None,
    instructions: given.Instructions = None,
    limit: given.Limit = None,
    run_id: given.NewRunId = None,
    conversation: given.Conversation = None,
    tenant: fleet_option.Tenant = "",
    dispatcher: fleet_option.Dispatcher = "dbos",
    at: given.JournalOptions,
) -> None:
    """Leave a run to the workers of a PostgreSQL journal, and print its id. No model is asked here."""
    from orchestrator.cli.submit import SubmitOptions, submit_run

    wanted = SubmitOptions(
        prompt=prompt,
        agent=agent,
        about=about,
        instructions=instructions,
        limits=tuple(limit or ()),
        run_id=run_id,
        conversation=conversation,
        tenant=tenant,
        dispatcher=dispatcher,
        **vars(at),
    )
    raise typer.Exit(submit_run(wanted))


@app.command(epilog=_EXIT_CODES, help=_REPLAY)
def replay(
    path: given.Paths = None,
    *,
    bundled: given.Bundled = False,
    live: given.Live = False,
    speed: given.Speed = None,
    limit: given.Limit = None,
    log: given.Log = None,
    json: given.Json = False,
) -> None:
    """Replay recorded conversations."""
    from orchestrator.cli.replay import ReplayOptions, replay_conversations

    wanted = ReplayOptions(tuple(path or ()), bundled, live, speed, tuple(limit or ()), log, json)
    raise typer.Exit(replay_conversations(wanted))


@app.command()
def graph(name: given.GraphName = "llm_loop", *, format_: given.Format = "mermaid") -> None:
    """Draw a state machine from its table."""
    from orchestrator.cli.graph import draw

    say_more(draw(name, format_))


@app.command()
def lint(name: given.AnyGraphName = None, *, json: given.Json = False) -> None:
    """Check a state machine, and for shipped ones their hooks. Exit code 1 when there are problems."""
    from orchestrator.cli.lint import lint_graphs

    raise typer.Exit(lint_graphs(name, as_json=json))


@app.command()
def report(logfile: given.LogFiles, *, json: given.Json = False) -> None:
    """Say where runs spent their time: visits and times of each state, bottleneck, outcomes, lost lines."""
    from orchestrator.cli.report import report_logs

    raise typer.Exit(report_logs(logfile, as_json=json))


@app.command()
@spread
def doctor(
    at: given.JournalOptions,
    *,
    salvage: Annotated[
        Path | None,
        typer.Option(
            "--salvage", metavar="NEW.db", help="Write what is left of a damaged journal to a new one."
        ),
    ] = None,
    restore: given.BackupToTest = None,
) -> None:
    """Prove the journal: file, store, every chain, open runs, disk. Exit code 1 when there are problems.

    Says too how far code of models is locked up on this machine (`orchestrator rlm isolation`).
    """
    from orchestrator.cli.doctor import examine_journal, salvage_journal

    if salvage is not None and restore is not None:
        from orchestrator.errors import ConfigError

        raise ConfigError("--salvage and --restore are two commands: give one of them")
    if restore is not None:
        from orchestrator.cli.drill import restore_drill

        raise typer.Exit(restore_drill(restore, **vars(at)))
    if salvage is not None:
        raise typer.Exit(salvage_journal(salvage, **vars(at)))
    raise typer.Exit(examine_journal(**vars(at)))


@app.command()
def docs(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Topic of a guide.")] = None,
) -> None:
    """Print a guide; without TOPIC, list the guides."""
    from orchestrator.cli.docs import show_guides

    show_guides(topic)


app.add_typer(pipeline, name="pipeline")
app.add_typer(ralph, name="ralph")
app.add_typer(rlm, name="rlm")
app.add_typer(approval, name="approval")
app.add_typer(runs, name="runs")
app.add_typer(operate, name="operate")
app.add_typer(ops, name="ops")
app.add_typer(metrics, name="metrics")


@app.command()
def trust(
    file: trust_option.Files = None,
    *,
    mcp: trust_option.Servers = None,
    mcp_env: given.McpEnv = None,
    list_: trust_option.List = False,
    revoke: trust_option.Revoke = False,
    json: given.Json = False,
) -> None:
    """Trust the present content of configuration files in this folder, and show what they would use.

    A file that another person wrote may send keys to any address and start any program, so each content of it is used
    only after this command, or with --trust. A changed file is refused again. With --mcp: trust the tools of an MCP
    server as they are now; tools that change afterwards are disabled.
    """
    from orchestrator.cli.trust.command import TrustOptions, change_trust

    options = TrustOptions(
        files=tuple(file or ()),
        mcp=tuple(mcp or ()),
        mcp_env=tuple(mcp_env or ()),
        listed=list_,
        revoked=revoke,
        json=json,
    )
    raise typer.Exit(change_trust(options))


config = typer.Typer(help="Settings of this process.", rich_markup_mode=None)
app.add_typer(config, name="config")


@config.callback()
def config_group() -> None:
    """Look at the settings of this process."""


@config.command("show")
def config_show(*, json: given.Json = False) -> None:
    """Print the effective settings and where each comes from; secrets are redacted."""
    from orchestrator.cli.config import show_settings

    raise typer.Exit(show_settings(as_json=json))
