"""`orchestrator ralph run`: run a request or an existing session, in the journal from its first record on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.cli import keyboard
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import price_of, print_dropped_variables
from orchestrator.cli.load import params_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, is_terminal, say, say_json, shown
from orchestrator.cli.ralph.agents import AgentsFile
from orchestrator.cli.ralph.board import TaskBoard, TaskBoardReader, counted, rows, task_json
from orchestrator.cli.ralph.human_input import AnswerSource, read_answers
from orchestrator.cli.ralph_group import RalphRunOptions
from orchestrator.cli.run import RunView, error_json, logging_to, transition_json
from orchestrator.cli.runs.agent_calls import call_json, usage_phrase
from orchestrator.cli.runs.phrase import table, words
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.screen import Screen
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError, RunError, RunExists, Suspended, see_guide
from orchestrator.examples.ralph import AGENTS, ANSWERS, REQUEST
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.machines.ralph.model import RalphState
from orchestrator.runtime.llm_loop.result import ended_as
from orchestrator.runtime.ralph.coding_agent import CodingAgent, CommandAgent
from orchestrator.runtime.ralph.ralph import Ralph, RalphResult
from orchestrator.runtime.ralph.session import ImportedTasks, SessionDirectory, session_id_for
from orchestrator.runtime.service.runtime import Runtime

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


def run_request(options: RalphRunOptions) -> int:
    """Run a request, show it or print it as JSON, and return the exit code of its outcome."""
    request = (options.request or "").strip() or (REQUEST if options.example else "")
    if not request and options.session is None and not options.imported:
        raise ConfigError("no request: give a text, --session, --import or --example")
    if options.session is not None and options.imported:
        raise ConfigError("--import creates a session and --session continues one; give only one of them")
    agents = AgentsFile.read(_file(options))
    answers = read_answers(options.answers) if options.answers else ANSWERS if options.example else None
    limits = agents.ralph_limits(params_from(options.limits))
    if options.session is not None:
        _sound(lambda: SessionDirectory.open(options.session or ""))
    taken = _imported(options) if options.imported else None
    view = RalphViewOptions(
        address=journal_file(options.journal),
        root=options.sessions,
        journal=options.journal,
        session=options.session,
        agents=_named(options),
        log=options.log,
        json=options.json,
    )
    launch = {"ralph": asdict(agents), "root": str(options.sessions.absolute()), "cwd": str(Path.cwd())}
    launch["agents"] = list(view.agents)
    run_agents = RunAgents(
        agents=agents, answer_source=AnswerSource(answers), limits=limits, launch=signed(launch)
    )

    def start(ralph: Ralph) -> Awaitable[RalphResult]:
        if taken is None:
            return ralph.run(request, session=options.session)
        now = datetime.now()  # noqa: DTZ005 - people read the name
        begun = _sound(lambda: taken.into(options.sessions, request, session_id_for(now, options.sessions)))
        return ralph.run(session=begun.path)

    return conducted(view, run_agents, start)


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


def _file(options: RalphRunOptions) -> Path:
    if options.example and options.agents is None:
        return AGENTS
    file = options.agents or DEFAULT
    if not file.is_file():
        raise ConfigError(
            f"there is no file {file}: name an agents file with --agents, or try --example; {see_guide('ralph')}"
        )
    return file


def _named(options: RalphRunOptions) -> tuple[str, ...]:
    """Return the words that name the agents, with paths that are valid in every folder."""
    if options.agents is not None:
        return ("--agents", str(options.agents.absolute()))
    return ("--example",) if options.example else ()


def _sound(read: Callable[[], T]) -> T:
    """Read a session. Raises ConfigError if it cannot be read."""
    try:
        return read()
    except RunError as error:
        raise ConfigError(shown(str(error), 4_000)) from error


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


Going = Callable[[Ralph], Awaitable[RalphResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAgents:
    """The agents of a run, its limits, and the launch data that is stored for its resumption."""

    agents: AgentsFile
    answer_source: AnswerSource
    limits: RalphLimits
    launch: Mapping[str, Any]


def conducted(view: RalphViewOptions, run_agents: RunAgents, go: Going) -> int:
    """Run the loop to completion, show its progress, and return the exit code of its outcome."""
    ports = run_agents.agents.ports()
    print_dropped_variables(
        [port.env for port in ports.values() if isinstance(port, CommandAgent | CodingAgent)],
        run_agents.agents.folder,
    )
    journal = journal_at(view.address)
    look = TaskBoardReader(view.root, view.session)
    screen = None if view.json else functools.partial(Screen, RALPH, board=functools.partial(TaskBoard, look))
    watched: RunView[Ralph, RalphResult] = RunView(RALPH, view.run_id, view.address, screen)
    run_agents.answer_source.screen = watched.screen
    if view.session is not None:
        _one_at_a_time(view.session)
    with logging_to(view.log, project_settings().log_level) as logs:
        ralph = Ralph(
            **ports,
            limits=run_agents.limits,
            root=view.root,
            answer=run_agents.answer_source.port,
            open_questions="fail" if run_agents.agents.open_questions == "fail" else "proceed",
            runtime=Runtime(
                journal=journal,
                observers=[look, *watched.observers, *logs],
                price=price_of(project_settings().prices),
            ),
            launch=dict(run_agents.launch),
        )
        try:
            result = run_async(watched.run(ralph, journal, functools.partial(_going, view, go)))
        except Suspended:
            return _left(view, watched.run_id or "", look)
    if watched.lost:
        return Exit.PIPE
    return print_result(result, view)


async def _going(view: RalphViewOptions, go: Going, ralph: Ralph) -> RalphResult:
    try:
        return await go(ralph)
    except RunExists as error:
        resume = view.command("resume", error.run_id)
        raise ConfigError(
            f"run {error.run_id} of this session has not ended: `{resume}` resumes it"
        ) from error


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
        say(f"\n{counted(result.tasks)}; {_sums(result)}")
        say(usage_phrase(result.usage, result.agent_calls))
        if result.summary:
            say(shown(result.summary))
        reason = "" if result.reason == "none" else f" ({result.reason})"
        say(f"outcome: {result.outcome}{reason}; session {shown(result.session_path)}")
    if result.outcome is not Outcome.COMPLETED:
        complain(sentence(result, view))
    return EXIT_CODES[result.outcome]


def _sums(result: RalphResult) -> str:
    return (
        f"executions {result.executions}, rework {result.reworks}, "
        f"rounds of questions {result.qa_cycles}, new plans {result.replans}"
    )


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
