"""The commands. The body of each is a module that is imported when the command runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from orchestrator.cli.exit import EPILOG, GIVEN, Options
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup, convert_late
from orchestrator.cli.output import say
from orchestrator.version import __version__

COMPLETION = "_ORCHESTRATOR_COMPLETE"
"""Variable in which a shell asks for completions, with its script of `--install-completion`."""

COMMANDS = {
    "run": CommandEntry("run:run_prompt", "Run one prompt and show the states of the machine.", EPILOG),
    "chat": CommandEntry("chat:chat", "Talk to an agent in the terminal.", EPILOG),
    "worker": CommandEntry("fleet:work", "Carry out runs of a PostgreSQL journal until SIGTERM or SIGINT."),
    "submit": CommandEntry("fleet:submit_run", "Submit a run to the workers of a PostgreSQL journal."),
    "replay": CommandEntry(
        "replay:replay_conversations", "Replay recorded conversations through the real state machine.", EPILOG
    ),
    "backtest": CommandEntry("backtest:backtest_runs", "Evaluate another policy on recorded runs."),
    "eval": CommandEntry("evaluation:run_evaluation", "Run an evaluation set against an agent.", EPILOG),
    "graph": CommandEntry("graph:draw_graph", "Draw a state machine from its table."),
    "lint": CommandEntry("graph:lint_graphs", "Check a state machine; for shipped ones, their hooks too."),
    "report": CommandEntry("report:report_logs", "Report where runs spent their time, from log lines."),
    "doctor": CommandEntry("doctor:doctor", "Check the journal: file, store, every chain, open runs, disk."),
    "console": CommandEntry("console:serve_console", "Show the runs of a journal in the browser."),
    "docs": CommandEntry("docs:show_guides", "Print a guide; without TOPIC, list the guides."),
    "init": CommandEntry("project:init", "Make a project: an agent with tools, a machine, with tests."),
    "trust": CommandEntry(
        "trust.command:change_trust", "Trust the present content of configuration files in this folder."
    ),
    "add": CommandEntry("project:group", "Add a state, machine, tool or guard to a project of `init`."),
    "pipeline": CommandEntry("pipeline:group", "Plan, validate, implement, judge; show metrics."),
    "ralph": CommandEntry("ralph:group", "Plan, execute and review tasks in tasks.md."),
    "rlm": CommandEntry("rlm:group", "Answer questions about long texts with code or tools."),
    "approval": CommandEntry("approval:group", "Show, approve, carry out and undo plans for a folder."),
    "runs": CommandEntry("runs:group", "List, show, answer and resume recorded runs."),
    "operate": CommandEntry("operate:group", "Send operator commands to live engines."),
    "ops": CommandEntry("ops:group", "Dashboards, alerts and runbooks for graphs."),
    "metrics": CommandEntry("metrics:group", "Metrics of journals and batch jobs."),
    "mcp": CommandEntry("mcp:group", "Agents for MCP clients."),
    "config": CommandEntry("config:group", "Settings of this process."),
}


class Commands(LazyGroup):
    """The commands of the program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(COMMANDS, **options)

    def elsewhere(self, name: str) -> str:
        """Return the whole name of a command that is in a group: `resume` is `orchestrator runs resume`."""
        for group in ("runs", *self.table):
            if group in self.table and name in getattr(self.load(group), "commands", {}):
                return f"orchestrator {group} {name}"
        return ""


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
    return convert_late(get_command(app))


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
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Show where errors, also those of tools, came from instead of one sentence."
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Store the options before the name of the command."""
    del version
    given = context.ensure_object(Options)
    given.traceback = traceback
    GIVEN.set(given)
