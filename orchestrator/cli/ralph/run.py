"""`ralph run` and `ralph resume`: one run of the loop, in the journal from its first record on."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli import keyboard
from orchestrator.cli import option as given
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import in_folder, price_of, print_dropped_variables
from orchestrator.cli.load import actor_name, params_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, is_terminal, say, say_json, shown
from orchestrator.cli.ralph.agents import AgentsFile
from orchestrator.cli.ralph.answer import AnswerSource, read_answers
from orchestrator.cli.ralph.session import RunOrSession, counted, rows, run_named, settled, task_json
from orchestrator.cli.run import RunView, complain_of_tools, error_json, logging_to, transition_json
from orchestrator.cli.runs.phrase import call_json, table, usage_phrase, words
from orchestrator.cli.runs.store import at_journal, confirm_take_over, journal_file, owned_elsewhere
from orchestrator.cli.screen import RunTally, Screen
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings, refuse_untrusted_run
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError, RunError, RunExists, Suspended, see_guide
from orchestrator.examples.ralph import AGENTS, ANSWERS, REQUEST
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.fact import Fact, RunParked, RunStarted, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import RalphLimits, RalphState, Task
from orchestrator.machines.ralph.tasklist import Marker
from orchestrator.runtime.llm_loop.result import ended_as
from orchestrator.runtime.ralph.coding_agent import CodingAgent, CommandAgent
from orchestrator.runtime.ralph.ralph import Ralph, RalphResult
from orchestrator.runtime.ralph.session import ImportedTasks, SessionDirectory, session_id_for
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.settings import build

T = TypeVar("T")

DEFAULT = Path("ralph.toml")
"""The default file of agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RalphViewOptions:
    """How a run is shown, and where it is stored."""

    address: Address
    """The file of the journal."""
    root: Path
    journal: Address | None = None
    """The journal as the command line names it, for the commands that are printed."""
    run_id: str | None = None
    session: Path | None = None
    """The path of a session that exists before the run."""
    agents: tuple[str, ...] = ()
    """The words of the command line that name the agents."""
    log: Path | None = None
    json: bool = False

    def command(self, *parts: str) -> str:
        """Return a command of the group as it can be typed."""
        return words("ralph", *parts, *(() if self.journal is None else ("--journal", str(self.journal))))


AgentsOption = Annotated[
    Path | None,
    typer.Option(
        "--agents", metavar="FILE.toml", help="The agents that plan, execute, review. Default: ralph.toml."
    ),
]
AnswersOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Answers to questions: JSON, TOML, or lines of `1.1: answer`; * is all."
    ),
]
LimitsOption = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_task_attempts=5; 0 is off."),
]


@dataclass(frozen=True, kw_only=True)
class RalphRunOptions(given.DisplayOptions):
    """The command line of `ralph run`."""

    request: Annotated[
        str | None, typer.Argument(metavar="REQUEST", help="The request, in words.", show_default=False)
    ] = None
    agents: AgentsOption = None
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
    answers: AnswersOption = None
    limits: LimitsOption = ()
    sessions: Annotated[
        Path, typer.Option("--sessions", metavar="DIR", help="The folder of the sessions.")
    ] = Path(".ralph-sessions")


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
    request = (options.request or "").strip() or (REQUEST if options.example else "")
    if not request and options.session is None and not options.imported:
        raise ConfigError("no request: give a text, --session, --import or --example")
    if options.session is not None and options.imported:
        raise ConfigError("--import creates a session and --session continues one; give only one of them")
    file = AGENTS if options.example and options.agents is None else options.agents or DEFAULT
    if not (options.example and options.agents is None) and not file.is_file():
        raise ConfigError(
            f"there is no file {file}: name an agents file with --agents, or try --example; {see_guide('ralph')}"
        )
    agents = AgentsFile.read(file)
    answers = read_answers(options.answers) if options.answers else ANSWERS if options.example else None
    limits = agents.ralph_limits(params_from(options.limits))
    if options.session is not None:
        _sound(lambda: SessionDirectory.open(options.session or ""))
    taken = _imported(options) if options.imported else None
    named: tuple[str, ...] = ("--example",) if options.example else ()
    if options.agents is not None:
        named = ("--agents", str(options.agents.absolute()))
    view = RalphViewOptions(
        address=journal_file(options.journal),
        root=options.sessions,
        journal=options.journal,
        session=options.session,
        agents=named,
        log=options.log,
        json=options.json,
    )
    launch = {"ralph": asdict(agents), "root": str(options.sessions.absolute()), "cwd": str(Path.cwd())}
    launch["agents"] = list(named)

    def start(ralph: Ralph) -> Awaitable[RalphResult]:
        if taken is None:
            return ralph.run(request, session=options.session)
        now = datetime.now()  # noqa: DTZ005 - people read the name
        begun = _sound(lambda: taken.into(options.sessions, request, session_id_for(now, options.sessions)))
        return ralph.run(session=begun.path)

    return conducted(
        view, start, agents=agents, answers=AnswerSource(answers), limits=limits, launch=signed(launch)
    )


def _imported(options: RalphRunOptions) -> ImportedTasks:
    """Read a list and print what is not imported as it is. Raises ConfigError if most of it is not understood."""
    taken = _sound(lambda: ImportedTasks(options.imported))
    summary = [shown(line, 400) for line in _sound(taken.summary)]
    asks = taken.doubtful and not options.yes
    if asks and not keyboard.present():
        why = "more was left out than imported; correct the list, or import the rest with --yes"
        raise ConfigError(f"{why}: {'; '.join(line.strip() for line in summary)}")
    print_line = complain if options.json else say
    for line in summary if taken.left_out or taken.changed else ():
        print_line(line)
    if asks:
        say("More was left out than imported. Import the rest? [y/N]")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise ConfigError("nothing was imported")
    return taken


def _sound(read: Callable[[], T]) -> T:
    """Read a session. Raises ConfigError if it cannot be read."""
    try:
        return read()
    except RunError as error:
        raise ConfigError(shown(str(error), 4_000)) from error


# ---- resume ----


@dataclass(frozen=True, kw_only=True)
class RalphResumeOptions(given.DisplayOptions):
    """The command line of `ralph resume`."""

    run: RunOrSession
    agents: AgentsOption = None
    answers: AnswersOption = None
    limits: LimitsOption = ()
    again: Annotated[
        bool,
        typer.Option("--again", help="Call agents again whose programs may still run on another host."),
    ] = False
    take_over: given.TakeOver = False
    by: given.By = None


@spread
def resume(options: RalphResumeOptions) -> int:
    """Resume a run as it was started, or print the result of its end."""
    found = at_journal(options.journal, lambda store: run_named(store, options.run))
    run_id, launch = found.head.run_id, found.launch
    if found.head.owner is not None:
        raise owned_elsewhere(found.head)
    confirm_take_over(found.head, take_over=options.take_over)
    address = journal_file(options.journal)
    refuse_untrusted_run(launch, f"run {run_id}", address)
    agents = _agents(run_id, launch, options.agents)
    answers = read_answers(options.answers) if options.answers else None
    changes = params_from(options.limits)
    limits = build(RalphLimits, {**(found.stored.context.get("limits") or {}), **changes}, "limits")
    view = RalphViewOptions(
        address=address,
        root=Path(launch.get("root") or ".ralph-sessions"),
        journal=options.journal.absolute() if isinstance(options.journal, Path) else options.journal,
        run_id=run_id,
        session=found.session,
        agents=tuple(launch.get("agents") or ())
        if options.agents is None
        else ("--agents", str(options.agents.absolute())),
        log=None if options.log is None else options.log.absolute(),
        json=options.json,
    )
    changed, by = limits if changes else None, actor_name(options.by)

    def go_on(ralph: Ralph) -> Awaitable[RalphResult]:
        return ralph.resume(run_id, limits=changed, by=by, again=options.again)

    with in_folder(launch.get("cwd")):
        return conducted(
            view, go_on, agents=agents, answers=AnswerSource(answers), limits=limits, launch=launch
        )


def _agents(run_id: str, launch: Mapping[str, Any], instead: Path | None) -> AgentsFile:
    """Return the agents that a run was started with, or their replacements."""
    if instead is not None:
        return AgentsFile.read(instead)
    kept = launch.get("ralph")
    if not isinstance(kept, Mapping):
        raise ConfigError(
            f"run {run_id} was not started by the command line, so its agents are not known: give --agents FILE"
        )
    given = {
        name: {member: value for member, value in agent.items() if value is not None}
        for name, agent in kept.get("agents", {}).items()
    }
    return AgentsFile.of({**kept, "agents": given}, f"run {run_id}")


# ---- at work ----


def conducted(
    view: RalphViewOptions,
    go: Callable[[Ralph], Awaitable[RalphResult]],
    *,
    agents: AgentsFile,
    answers: AnswerSource,
    limits: RalphLimits,
    launch: Mapping[str, Any],
) -> int:
    """Run the loop to completion, show its progress, and return the exit code of its outcome.

    `launch` is stored with the run for its resumption.
    """
    ports = agents.ports()
    print_dropped_variables(
        [port.env for port in ports.values() if isinstance(port, CommandAgent | CodingAgent)], agents.folder
    )
    journal = journal_at(view.address)
    look = TaskBoardReader(view.root, view.session)
    screen = None if view.json else functools.partial(Screen, RALPH, board=functools.partial(TaskBoard, look))
    watched: RunView[Ralph, RalphResult] = RunView(RALPH, view.run_id, view.address, screen)
    answers.screen = watched.screen
    if view.session is not None:
        _one_at_a_time(view.session)

    async def going(ralph: Ralph) -> RalphResult:
        try:
            return await go(ralph)
        except RunExists as error:
            command = view.command("resume", error.run_id)
            raise ConfigError(
                f"run {error.run_id} of this session has not ended: `{command}` resumes it"
            ) from error

    with logging_to(view.log, project_settings().log_level) as logs:
        ralph = Ralph(
            **ports,
            limits=limits,
            root=view.root,
            answer=answers.port,
            open_questions="fail" if agents.open_questions == "fail" else "proceed",
            runtime=Runtime(
                journal=journal,
                observers=[look, *watched.observers, *logs],
                price=price_of(project_settings().prices),
            ),
            launch=dict(launch),
        )
        try:
            result = run_async(watched.run(ralph, journal, going))
        except Suspended:
            return _left(view, watched.run_id or "", look)
    if watched.lost:
        return Exit.PIPE
    code = print_result(result, view)
    complain_of_tools(watched.tool_errors)
    return code


def _one_at_a_time(session: Path) -> None:
    """Print which settings of a session for parallel work are stored but have no effect."""
    files = SessionDirectory(session)
    try:
        front, _ = files.instructions()
    except (RunError, OSError):
        return  # the run reports errors of its session
    wishes = {name: value for name, value in front.items() if name.startswith("max_parallel_")}
    options = [f"{name} {value}" for name, value in wishes.items() if value not in {"", "1"}]
    if options:
        set_to = ", ".join(options)
        complain(shown(f"session {files.id} sets {set_to}, without effect: coding agents run one at a time"))


def _left(view: RalphViewOptions, run_id: str, look: TaskBoardReader) -> int:
    """Print the questions that a parked run waits for, and the command that continues it."""
    files = look.session
    questions = [one for one in files.questions() if one.answer is None] if files is not None else []
    if view.json:
        options = [{"id": one.id, "text": one.text, "category": one.category} for one in questions]
        say_json({"run_id": run_id, "outcome": None, "reason": "questions", "questions": options})
    else:
        for one in questions:
            say(f"\n{one.id}  {shown(one.text)}")
            say(f"    {view.command('answer', run_id, one.id, 'TEXT')}")
    noun = "question waits" if len(questions) == 1 else "questions wait"
    complain(f"{len(questions)} {noun} for a person; then `{view.command('resume', run_id)}`")
    return Exit.FAILED


_STYLE = {
    Marker.OPEN: "dim",
    Marker.ACTIVE: "bold green",
    Marker.REVIEW: "bold yellow",
    Marker.DONE: "green",
    Marker.FAILED: "bold red",
    Marker.CANCELLED: "dim strike",
}
_BAR = 40
_TITLE = 60


class TaskBoardReader:
    """Reads the tasks of a session after each transition of its run. The first record of the run names the folder."""

    def __init__(self, root: Path, session: Path | None) -> None:
        self._root = root
        self._path = session
        self.session: SessionDirectory | None = None
        """The session as of the last read."""
        self.tasks: tuple[Task, ...] = ()
        self.attempts: dict[str, int] = {}

    def observe(self, fact: Fact) -> None:
        """Read the tasks again. The run reports unreadable files; the display keeps the last tasks."""
        if not isinstance(fact, RunStarted | Transition | RunParked) or fact.graph != RALPH.name:
            return
        if self._path is None:
            self._path = self._root / fact.run_id  # a session has the name of its first run
        try:
            files = SessionDirectory.open(self._path)
        except (RunError, OSError):
            return
        self.session = files
        self.tasks = tuple(task for task in files.tasks() if not task.planning)
        self.attempts = {task.id: files.attempts(task.id) for task in self.tasks}


class TaskBoard:
    """The live table: tasks, bar, and the state of the run."""

    def __init__(self, look: TaskBoardReader, _: Graph, tally: RunTally) -> None:
        self._look = look
        self._tally = tally

    def __rich__(self) -> Group:
        """Render the current state; also called from the refreshing thread."""
        tasks, tally = self._look.tasks, self._tally
        table = Table(box=None, pad_edge=True)
        for head in ("", "task", "", "reports"):
            table.add_column(head, no_wrap=True, justify="right" if head == "reports" else "left")
        for task in tasks:
            tried = str(self._look.attempts.get(task.id, 0) or "")
            row = (Text(f"[{task.marker.value}]"), shown(task.id, 40), shown(task.title, _TITLE), tried)
            table.add_row(*row, style=_STYLE[task.marker])
        seconds = 0.0 if tally.parked else time.perf_counter() - tally.entered
        state = Text(f"  ▶ {tally.state or 'Initializing'} {seconds:.0f} s")
        if tally.parked is not None:
            state = Text(f"  waits: {tally.parked[0]}")
        done, all_of_them = settled(tasks)
        bar = Table.grid(padding=(0, 1))
        bar.add_row("  ", ProgressBar(total=max(1, all_of_them), completed=done, width=_BAR), counted(tasks))
        return Group(table, bar, state)


# ---- output ----


def print_result(result: RalphResult, view: RalphViewOptions) -> int:
    """Print the result of a run, and return the exit code; the reason of a failure is printed on stderr."""
    if view.json:
        say_json(as_json(result))
    else:
        if not is_terminal():  # on a terminal the board above shows them already
            say()
            for line in table(("", "task", "title"), rows(result.tasks)):
                say(line)
        say(
            f"\n{counted(result.tasks)}; executions {result.executions}, rework {result.reworks}, "
            f"rounds of questions {result.qa_cycles}, new plans {result.replans}"
        )
        say(usage_phrase(result.usage, result.agent_calls))
        if result.summary:
            say(shown(result.summary))
        reason = "" if result.reason == "none" else f" ({result.reason})"
        say(f"outcome: {result.outcome}{reason}; session {shown(result.session_path)}")
    if result.outcome is not Outcome.COMPLETED:
        complain(sentence(result, view))
    return EXIT_CODES[result.outcome]


def sentence(result: RalphResult, view: RalphViewOptions) -> str:
    """Return one sentence about the end of a run that did not complete, and the next action."""
    parts = [*result.blockers, str(result.error or "")]
    if result.verdict is not None:
        parts.insert(0, result.verdict.explain())
    why = "; ".join(dict.fromkeys(part for part in parts if part))
    # A blocked planner waits for information from a person (R13): TEXT is this information.
    lacks = (
        ("TEXT",)
        if result.state is RalphState.FAILED and result.error is None and result.verdict is None
        else ()
    )
    again = view.command("run", *lacks, "--session", result.session_path, *view.agents)
    once = ", with the missing information as TEXT" if lacks else ""
    return shown(f"the run {ended_as(result, why)}; `{again}` continues its session{once}", 4_000)


def as_json(result: RalphResult) -> dict[str, Any]:
    """Return the whole result as plain data."""
    names = ("run_id", "reason", "session_id", "session_path", "qa_cycles", "executions", "qualified")
    more = ("reworks", "replans", "current_task_id", "attempt", "summary")
    return {
        **{name: getattr(result, name) for name in (*names, *more)},
        "outcome": result.outcome.value,
        "state": result.state.value,
        "blockers": list(result.blockers),
        "usage": result.usage.as_json(),
        "agent_calls": [call_json(one) for one in result.agent_calls],
        "tasks": [task_json(task) for task in result.tasks],
        "verdict": None if result.verdict is None else result.verdict._asdict(),
        "error": error_json(result.error),
        "transitions": [transition_json(one) for one in result.transitions],
    }
