"""The commands of the group `ralph`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import table
from orchestrator.cli.spread import spread

group = typer.Typer(
    help="Plan, execute, review, task by task, over tasks.md and progress.md.", rich_markup_mode=None
)

_EXIT_CODES = "Exit codes, one for each outcome:\n\n\b\n" + table()

Request = Annotated[
    str | None, typer.Argument(metavar="REQUEST", help="What is wanted, in words.", show_default=False)
]
AgentsFile = Annotated[
    Path | None,
    typer.Option("--agents", metavar="FILE.toml", help="Who plans, executes, reviews. Default: ralph.toml."),
]
Example = Annotated[
    bool,
    typer.Option(
        "--example", help="The agents that come with the library: they need no model and no network."
    ),
]
Session = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Go on with this session, as its files say that it stands.")
]
Imported = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        metavar="FILE",
        help="Begin with this list: tasks.md, fix_plan.md, or prd.json and its progress.txt. It is only read.",
    ),
]
Answers = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Answers to questions: JSON, TOML, or lines of `1.1: answer`; * is all."
    ),
]
RalphLimit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_task_attempts=5; 0 is off."),
]
Sessions = Annotated[Path, typer.Option("--sessions", metavar="DIR", help="Where sessions are.")]
RunOrSession = Annotated[str, typer.Argument(metavar="RUN", help="A run id, or a session's directory.")]
AnyRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run id, or a session's directory. Default: the newest run.", show_default=False
    ),
]
AnyTasks = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run id, a session's directory, or a list of tasks. Default: the newest run.",
        show_default=False,
    ),
]
QuestionId = Annotated[
    str | None, typer.Argument(metavar="QUESTION", help="Which question, as in 1.1.", show_default=False)
]
Answer = Annotated[str | None, typer.Argument(metavar="TEXT", help="The answer.", show_default=False)]
AnswerFile = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="A file of answers, as for `run --answers`.")
]

Again = Annotated[
    bool, typer.Option("--again", help="Call agents again whose programs may still run on another host.")
]
Message = Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")]
Steer = Annotated[bool, typer.Option("--steer", help="It is a new requirement: plan it.")]
Stop = Annotated[bool, typer.Option("--stop", help="End the run at its next boundary; TEXT says why.")]


@group.callback()
def ralph_group() -> None:
    """Plan, execute and review, task by task, until all are done and the whole meets the goal."""


@group.command(epilog=_EXIT_CODES)
@spread
def run(
    request: Request = None,
    *,
    agents: AgentsFile = None,
    example: Example = False,
    session: Session = None,
    imported: Imported = None,
    answers: Answers = None,
    limit: RalphLimit = None,
    sessions: Sessions = Path(".ralph-sessions"),
    shown: given.DisplayOptions,
) -> None:
    """Run the loop to its end, with a table of its tasks as they move; --json prints one object instead.

    An agent is a program (`command = [...]`, started without a shell: the request as JSON on standard input, the
    answer as JSON on standard output), a Python callable (`python = "module:function"`) or a model
    (`model = "openai:NAME"`). Questions are answered from --answers, at the terminal, or later by
    `orchestrator ralph answer`: until then the run is left where it is, with exit code 1. It goes on, also after its
    process was killed, with `orchestrator ralph resume`.
    """
    from orchestrator.cli.ralph.run import RalphRunOptions, run_request

    asked = RalphRunOptions(
        request=request,
        agents=agents,
        example=example,
        session=session,
        taken=tuple(imported or ()),
        answers=answers,
        limits=tuple(limit or ()),
        root=sessions,
        **vars(shown),
    )
    raise typer.Exit(run_request(asked))


@group.command()
@spread
def status(run: AnyRun = None, *, at: given.JournalOptions) -> None:
    """Say how a run stands: state, last and next action, what it asks, its tasks."""
    from orchestrator.cli.ralph.look import show_status

    raise typer.Exit(show_status(run, json=at.json, journal=at.journal))


@group.command(epilog=_EXIT_CODES)
@spread
def resume(
    run: RunOrSession,
    *,
    agents: AgentsFile = None,
    answers: Answers = None,
    limit: RalphLimit = None,
    again: Again = False,
    by: given.By = None,
    shown: given.DisplayOptions,
) -> None:
    """Go on with a run where it stands, as it was started; one that has ended is only told."""
    from orchestrator.cli.ralph.resume import RalphResumeOptions, resume_run

    options = RalphResumeOptions(
        run=run,
        agents=agents,
        answers=answers,
        limits=tuple(limit or ()),
        again=again,
        by=by,
        **vars(shown),
    )
    raise typer.Exit(resume_run(options))


@group.command()
@spread
def answer(
    run: AnyRun = None,
    question: QuestionId = None,
    text: Answer = None,
    *,
    file: AnswerFile = None,
    by: given.By = None,
    at: given.JournalOptions,
) -> None:
    """Answer what a run asks; without an answer, list it. A run that was left goes on with `resume`."""
    from orchestrator.cli.ralph.answer import AnswerOptions, answer_questions

    said = AnswerOptions(
        run=run, question=question, text=text, file=file, by=by, json=at.json, journal=at.journal
    )
    raise typer.Exit(answer_questions(said))


@group.command()
@spread
def tell(
    run: RunOrSession,
    text: Message,
    *,
    steer: Steer = False,
    stop: Stop = False,
    by: given.By = None,
    at: given.JournalOptions,
) -> None:
    """Say something to a run for all its agents to know; with --steer, ask for something new; with --stop, end it."""
    from orchestrator.cli.ralph.message import MessageOptions, send_message

    kind = "stop" if stop else "steer" if steer else "inform"
    raise typer.Exit(
        send_message(MessageOptions(run=run, text=text, kind=kind, by=by, json=at.json, journal=at.journal))
    )


@group.command()
@spread
def tasks(what: AnyTasks = None, *, at: given.JournalOptions) -> None:
    """Print the tasks of a run or of a session, or what a list of tasks would come to."""
    from orchestrator.cli.ralph.look import show_tasks

    raise typer.Exit(show_tasks(what, json=at.json, journal=at.journal))
