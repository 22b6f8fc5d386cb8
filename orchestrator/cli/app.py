"""The commands. The body of each is a module that is imported when the command runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from orchestrator.cli import Options, fleet_option, trust_option
from orchestrator.cli import option as given
from orchestrator.cli.backtest_group import BacktestOptions
from orchestrator.cli.chat_option import ChatOptions
from orchestrator.cli.console_option import ConsoleOptions
from orchestrator.cli.evaluation_option import EvalOptions
from orchestrator.cli.exit import EPILOG
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup
from orchestrator.cli.output import say
from orchestrator.cli.spread import spread, spread_options
from orchestrator.version import __version__

_REPLAY = """Replay recorded conversations through the real state machine.

Models and tools return the recorded replies. Each turn of the user is one run, which continues our own
history. No limit applies unless given. The result of a conversation is one of:

\b
reproduced              our messages equal the recorded ones
                        (role, content, calls, ids, arguments, order)
reproduced_to_open_end  the same, up to the end of a recording
                        without the model's answer
irregular               the loop cannot produce the recording, `irregular`
                        lists why; played while our messages equal
                        the recorded ones
unusable                no conversation, `reason` says why;
                        the others are played; exit code 2
diverged                ours differ, `reason` says where; exit code 1
cancelled               the replay was stopped here; exit code 6

--json prints one object a line: id, file, result, irregular, runs, messages (OpenAI form; ours, up to
the end of the recording), and reason if there is one. Each of runs has outcome, reason, error,
transitions (how many) and states (visits of each).
"""

COMPLETION = "_ORCHESTRATOR_COMPLETE"
"""Variable in which a shell asks for completions, with its script of `--install-completion`."""

COMMANDS = {
    "run": CommandEntry("app:run", "Run one prompt and show the states of the machine.", EPILOG),
    "chat": CommandEntry("app:chat", "Talk to an agent in the terminal.", EPILOG),
    "worker": CommandEntry("app:worker", "Carry out runs of a PostgreSQL journal until SIGTERM or SIGINT."),
    "submit": CommandEntry("app:submit", "Submit a run to the workers of a PostgreSQL journal."),
    "replay": CommandEntry(
        "app:replay", "Replay recorded conversations through the real state machine.", EPILOG
    ),
    "backtest": CommandEntry("app:backtest", "Evaluate another policy on recorded runs."),
    "eval": CommandEntry("app:evaluate", "Run an evaluation set against an agent.", EPILOG),
    "graph": CommandEntry("app:graph", "Draw a state machine from its table."),
    "lint": CommandEntry("app:lint", "Check a state machine; for shipped ones, their hooks too."),
    "report": CommandEntry("app:report", "Report where runs spent their time, from log lines."),
    "doctor": CommandEntry("app:doctor", "Check the journal: file, store, every chain, open runs, disk."),
    "console": CommandEntry("app:console", "Show the runs of a journal in the browser."),
    "docs": CommandEntry("app:docs", "Print a guide; without TOPIC, list the guides."),
    "init": CommandEntry("app:init", "Make a project: an agent with tools, a machine, with tests."),
    "trust": CommandEntry("app:trust", "Trust the present content of configuration files in this folder."),
    "add": CommandEntry("add_group:group", "Add a state, machine, tool or guard to a project of `init`."),
    "pipeline": CommandEntry("pipeline:group", "Plan, validate, implement, judge; show metrics."),
    "ralph": CommandEntry("ralph:group", "Plan, execute and review tasks in tasks.md."),
    "rlm": CommandEntry("rlm:group", "Answer questions about long texts with code or tools."),
    "approval": CommandEntry("approval_group:group", "Show, approve, carry out and undo plans for a folder."),
    "runs": CommandEntry("runs_group:group", "List, show, answer and resume recorded runs."),
    "operate": CommandEntry("operate:group", "Send operator commands to live engines."),
    "ops": CommandEntry("ops:group", "Dashboards, alerts and runbooks for graphs."),
    "metrics": CommandEntry("metrics:group", "Metrics of journals and batch jobs."),
    "mcp": CommandEntry("mcp:group", "Agents for MCP clients."),
    "config": CommandEntry("app:config", "Settings of this process."),
}


class Commands(LazyGroup):
    """The commands of the program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(COMMANDS, **options)


app = typer.Typer(
    cls=Commands,
    name="orchestrator",
    help="Run LLM agents as an explicit finite state machine: run, watch, replay, draw, check.",
    epilog=EPILOG,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "color": False},
)


@functools.cache
def program() -> Any:
    """Return the whole command line, built once for each process."""
    return get_command(app)


def execute(arguments: Sequence[str], options: Options) -> int:
    """Run one command line and return its exit code. Errors propagate to `main`."""
    if os.environ.get(COMPLETION):  # a shell asks for completions, or for its script; this ends the process
        program().main([], prog_name="orchestrator", complete_var=COMPLETION)
    try:
        with program().make_context("orchestrator", list(arguments) or ["--help"], obj=options) as context:
            program().invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _version(command_options: bool) -> None:  # noqa: FBT001 - typer's callback
    if not command_options:
        return
    say(f"orchestrator {__version__}")
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
    """Store the options before the name of the command."""
    del version
    context.ensure_object(Options).traceback = traceback


@spread
def run(options: given.RunOptions) -> int:
    """Run one prompt and show the states of the machine.

    A table that is updated on a terminal, plain lines elsewhere; then the answer and the outcome. --json prints
    one object instead: run_id, outcome, reason, output, usage, verdict, error, messages (OpenAI form) and
    transitions. The exit code is that of the outcome.

    Every step is in the journal before it counts. While the run waits for a person, it says how to answer; if its
    process is killed, `orchestrator runs resume` continues it.
    """
    from orchestrator.cli.run import run_prompt

    return run_prompt(options)


@spread
def chat(options: ChatOptions) -> int:
    """Talk to an agent in the terminal.

    Each line is a prompt, and its answer is printed as it comes. Ctrl-C cancels the answer, Ctrl-D leaves; questions
    of the run are asked here. The conversation is in the journal: --conversation continues one. From a pipe each line
    is a prompt, and the exit code is that of the last run.
    """
    from orchestrator.cli.chat.command import chat as run_chat

    return run_chat(options)


@spread
def worker(options: fleet_option.WorkerOptions) -> int:
    """Carry out runs of a PostgreSQL journal until SIGTERM or SIGINT.

    Any number of workers share a journal. Runs come from `orchestrator submit` and from programs that call
    deposit(). The agents are functions of the journal (--agent), or the one that --model and --tool describe. If a
    worker dies, another worker resumes its runs within seconds. After the first signal runs get --grace seconds to
    end, the others are released to other workers; the second signal ends the process at once.
    """
    from orchestrator.cli.worker import work

    return work(options)


@spread
def submit(options: fleet_option.SubmitOptions) -> int:
    """Submit a run to the workers of a PostgreSQL journal.

    The command prints the id of the run and asks no model.
    """
    from orchestrator.cli.submit import submit_run

    return submit_run(options)


@spread_options
def replay(options: given.ReplayOptions) -> int:
    """Replay recorded conversations."""
    from orchestrator.cli.replay import replay_conversations

    return replay_conversations(options)


replay.__doc__ = _REPLAY


@spread
def backtest(options: BacktestOptions) -> int:
    """Evaluate another policy on recorded runs.

    No model and no tool is called. The guards of each run are evaluated again on their recorded inputs, in order, up
    to the first decision or message to the model that differs. The report says which runs would have stopped earlier,
    split into those that had completed (harm) and those that had failed, stalled or run out (benefit), and what that
    saves.
    """
    from orchestrator.cli.backtest import backtest_runs

    return backtest_runs(options)


@spread
def evaluate(options: EvalOptions) -> int:
    """Run an evaluation set against an agent.

    Each case of FILE is a run in the journal, whose outcome, output, path, tools and usage are checked; judges are
    functions of yours. An interrupted evaluation is continued by the same command: cases with a result are not run
    again. The report is compared with the last evaluation. The exit code is 0 if every case passed, 1 if one did not,
    4 if a budget was used up, 6 after Ctrl-C.
    """
    from orchestrator.cli.evaluation import run_evaluation

    return run_evaluation(options)


@spread
def graph(
    name: given.GraphName = "llm_loop",
    *,
    format_: given.Format = None,
    output: given.PictureFile = None,
    heat: given.Heat = None,
    run: given.PathOfRun = None,
    journal: given.Journal = None,
) -> None:
    """Draw a state machine from its table.

    With --run or --heat the drawing has what recorded runs did: the path with visits and times, and darker states.
    """
    from orchestrator.cli.graph import draw_graph

    draw_graph(name, form=format_, output=output, heat=heat, run=run, journal=journal)


def lint(name: given.AnyGraphName = None, *, json: given.Json = False) -> None:
    """Check a state machine; for shipped ones, their hooks too.

    The exit code is 1 when there are problems.
    """
    from orchestrator.cli.graph import lint_graphs

    raise typer.Exit(lint_graphs(name, as_json=json))


def report(logfile: given.LogFiles, *, json: given.Json = False) -> None:
    """Report where runs spent their time, from log lines.

    It prints the visits and times of each state, the bottleneck, the outcomes, and which lines are missing.
    """
    from orchestrator.cli.report import report_logs

    raise typer.Exit(report_logs(logfile, as_json=json))


@spread
def doctor(
    at: given.JournalOptions,
    *,
    salvage: Annotated[
        Path | None,
        typer.Option(
            "--salvage", metavar="NEW.db", help="Write the readable part of a damaged journal to a new one."
        ),
    ] = None,
    restore: given.BackupToTest = None,
) -> int:
    """Check the journal: file, store, every chain, open runs, disk.

    The exit code is 1 when there are problems. The command also shows how code of models is isolated on this machine
    (`orchestrator rlm isolation`).
    """
    from orchestrator.cli.doctor import examine_journal, restore_drill, salvage_journal

    if salvage is not None and restore is not None:
        from orchestrator.errors import ConfigError

        raise ConfigError("--salvage and --restore are two commands: give one of them")
    if restore is not None:
        return restore_drill(restore, **vars(at))
    if salvage is not None:
        return salvage_journal(salvage, **vars(at))
    return examine_journal(**vars(at))


@spread
def console(options: ConsoleOptions) -> int:
    """Show the runs of a journal in the browser.

    The pages are live: runs with filters, each run with its graph, budgets, transcript and records, and the questions
    that wait for a person. They are read-only unless --operate is given. Nothing is loaded from elsewhere. SIGINT and
    SIGTERM stop the command; the runs continue.
    """
    from orchestrator.cli.console import serve_console

    return serve_console(options)


def docs(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Topic of a guide.")] = None,
) -> None:
    """Print a guide; without TOPIC, list the guides."""
    from orchestrator.cli.docs import show_guides

    show_guides(topic)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project and of its folder.")],
) -> None:
    """Make a project: an agent with tools, a machine, with tests.

    It has a web service, a Dockerfile, a compose file, dashboards and alerts. `orchestrator add` extends it.
    """
    from orchestrator.cli.project import init as make

    raise typer.Exit(make(name))


@spread_options
def trust(options: trust_option.TrustOptions) -> int:
    """Trust the present content of configuration files in this folder.

    The command shows what the files would use. A file that another person wrote may send keys to any address and
    start any program, so each content of it is used only after this command, or with --trust. A file that was changed
    is refused again. With --mcp: trust the tools of an MCP server as they are now; tools that change afterwards are
    disabled.
    """
    from orchestrator.cli.trust.command import change_trust

    return change_trust(options)


@spread_options
def config_show(*, json: given.Json = False) -> int:
    """Print the effective settings and the source of each.

    Secrets are redacted.
    """
    from orchestrator.cli.config import show_settings

    return show_settings(as_json=json)


config = LazyGroup(
    {"show": CommandEntry("app:config_show", "Print the effective settings and the source of each.")},
    help="Settings of this process.",
)
