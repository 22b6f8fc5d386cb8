"""The commands of the group `ralph`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import EPILOG
from orchestrator.cli.spread import spread

group = typer.Typer(help="Plan, execute and review tasks in tasks.md.", rich_markup_mode=None)

_Examined = Annotated[
    Path | None,
    typer.Option(
        "--agents",
        metavar="FILE.toml",
        help="A file of agents, e.g. ralph.toml: check it, and examine its agents.",
    ),
]
_AgentsFile = Annotated[
    Path | None,
    typer.Option(
        "--agents", metavar="FILE.toml", help="The agents that plan, execute, review. Default: ralph.toml."
    ),
]
_Answers = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Answers to questions: JSON, TOML, or lines of `1.1: answer`; * is all."
    ),
]
_Limits = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_task_attempts=5; 0 is off."),
]
_RunOrSession = Annotated[str, typer.Argument(metavar="RUN", help="A run id, or a session's directory.")]
_AnyRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run id, or a session's directory. Default: the newest run.", show_default=False
    ),
]
_Ask = Annotated[
    bool,
    typer.Option("--ask", help="Also request one word from each, which its provider may charge."),
]
_AnyTasks = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run id, a session's directory, or a list of tasks. Default: the newest run.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class RalphRunOptions(given.DisplayOptions):
    """The command line of `ralph run`."""

    request: Annotated[
        str | None, typer.Argument(metavar="REQUEST", help="The request, in words.", show_default=False)
    ] = None
    agents: _AgentsFile = None
    example: Annotated[
        bool,
        typer.Option(
            "--example", help="The agents that come with the library: they need no model and no network."
        ),
    ] = False
    session: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Continue this session from the state that its files have."),
    ] = None
    imported: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--import",
            metavar="FILE",
            help="Start with this list: tasks.md, fix_plan.md, or prd.json and its progress.txt. It is only read.",
        ),
    ] = ()
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Import a list even if more of it is left out than imported."),
    ] = False
    answers: _Answers = None
    limits: _Limits = ()
    sessions: Annotated[
        Path, typer.Option("--sessions", metavar="DIR", help="The folder of the sessions.")
    ] = Path(".ralph-sessions")


@dataclass(frozen=True, kw_only=True)
class RalphResumeOptions(given.DisplayOptions):
    """The command line of `ralph resume`."""

    run: _RunOrSession
    agents: _AgentsFile = None
    answers: _Answers = None
    limits: _Limits = ()
    again: Annotated[
        bool,
        typer.Option("--again", help="Call agents again whose programs may still run on another host."),
    ] = False
    by: given.By = None


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(given.JournalOptions):
    """The command line of `ralph answer`."""

    run: _AnyRun = None
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question, as in 1.1.", show_default=False)
    ] = None
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The answer.", show_default=False)] = None
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="A file of answers, as for `run --answers`."),
    ] = None
    by: given.By = None


@dataclass(frozen=True, kw_only=True)
class MessageOptions(given.JournalOptions):
    """The command line of `ralph tell`."""

    run: _RunOrSession
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")]
    steer: Annotated[bool, typer.Option("--steer", help="It is a new requirement: plan it.")] = False
    stop: Annotated[
        bool, typer.Option("--stop", help="End the run at its next boundary; TEXT is the reason.")
    ] = False
    by: given.By = None

    @property
    def kind(self) -> str:
        """The kind of the message in the journal."""
        return "stop" if self.stop else "steer" if self.steer else "inform"


@group.callback()
def ralph_group() -> None:
    """Plan, execute and review, task by task, until all tasks are done and the result meets the goal."""


@group.command(epilog=EPILOG)
@spread
def run(options: RalphRunOptions) -> int:
    """Run the loop and show its tasks as they change.

    --json prints one object instead.

    An agent is a coding agent (`agent = "claude"`, "codex", "gemini" or "opencode"), a program (`command = [...]`,
    started without a shell: the request as JSON on standard input, the answer as JSON on standard output), a Python
    callable (`python = "module:function"`) or a model (`model = "openai:NAME"`). Questions are answered from
    --answers, at the terminal, or later by `orchestrator ralph answer`; until then the run is parked, with exit
    code 1. `orchestrator ralph resume` continues it, also after its process was killed.
    """
    from orchestrator.cli.ralph.run import run_request

    return run_request(options)


@group.command(epilog=EPILOG)
@spread
def doctor(*, agents: _Examined = None, ask: _Ask = False, json: given.Json = False) -> int:
    """Show which coding agents are installed and usable.

    They are claude, codex, gemini and opencode, and the exit code is 0 if at least one is usable.

    With --agents they are those that the file names, and the exit code is 0 if all are usable.
    """
    from orchestrator.cli.ralph.doctor import examine_agents

    return examine_agents(file=agents, ask=ask, json=json)


@group.command()
@spread
def status(run: _AnyRun = None, *, at: given.JournalOptions) -> int:
    """Show the state of a run: last and next action, questions, tasks."""
    from orchestrator.cli.ralph.look import show_status

    return show_status(run, **vars(at))


@group.command(epilog=EPILOG)
@spread
def resume(options: RalphResumeOptions) -> int:
    """Resume a run as it was started, or print the result of its end."""
    from orchestrator.cli.ralph.resume import resume_run

    return resume_run(options)


@group.command()
@spread
def answer(options: AnswerOptions) -> int:
    """Answer a question of a run; without an answer, list the questions.

    `resume` continues a run that was parked.
    """
    from orchestrator.cli.ralph.answer import answer_questions

    return answer_questions(options)


@group.command()
@spread
def tell(options: MessageOptions) -> int:
    """Send a message to all agents of a run.

    With --steer the message is a new requirement, with --stop it ends the run.
    """
    from orchestrator.cli.ralph.message import send_message

    return send_message(options)


@group.command()
@spread
def tasks(what: _AnyTasks = None, *, at: given.JournalOptions) -> int:
    """Print the tasks of a run, a session, or a list of tasks.

    A list of tasks is printed as it would be imported.
    """
    from orchestrator.cli.ralph.look import show_tasks

    return show_tasks(what, **vars(at))
