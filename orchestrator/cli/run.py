"""`orchestrator run`: one prompt, one run, in the journal from its first record on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import Launch, LoadedParts
from orchestrator.cli.load import limits_from, prompt_of
from orchestrator.cli.loop import run_async
from orchestrator.cli.option import RunOptions
from orchestrator.cli.output import complain, json_text, log_stream, say, say_json, shown
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.servers import ServerOptions, prompt_messages
from orchestrator.cli.streamed import EventLines, TextPrinter, streamed
from orchestrator.cli.supervised_run import Going, SupervisedRun
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import Transition
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.result import BaseResult, Result, ended_as
from orchestrator.runtime.service.option import check_run_id
from orchestrator.telemetry.live import LiveRuns
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.watchdog import on_signal


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How a run is shown, and where it is stored."""

    run_id: str
    journal: Address | None
    """The journal as the command line names it."""
    log: Path | None
    json: bool
    remind: bool = True
    """Print on stderr how many other runs are open."""
    words: TextPrinter | EventLines | None = None
    """Shows the answer while the model produces it, in place of the states."""


def run_prompt(command_options: RunOptions) -> int:
    """Run the prompt, show it or print it as JSON, and return the exit code of its outcome."""
    if command_options.prompt is None and command_options.server_prompt is None:
        raise ConfigError("there is no prompt: give text, - for standard input, or --prompt of an MCP server")
    settings = project_settings()
    run_id = new_id(command_options.run_id)
    launch = Launch.here(settings, **command_options.agent.plain())
    parts = LoadedParts.of(launch)
    limits = limits_from(command_options.limits, settings.limits)
    prompt = _prompt(command_options, launch)
    options: dict[str, Any] = {"run_id": run_id, "conversation_id": command_options.conversation}
    if not command_options.stream:
        view = ViewOptions(run_id, command_options.journal, command_options.log, command_options.json)
        return conducted(view, launch, parts, limits, lambda agent: agent.run(prompt, **options))
    shows: TextPrinter | EventLines = EventLines() if command_options.json else TextPrinter(run_id)
    view = ViewOptions(
        run_id, command_options.journal, command_options.log, command_options.json, words=shows
    )
    return conducted(view, launch, parts, limits, lambda agent: streamed(agent, shows, prompt, **options))


def _prompt(options: RunOptions, launch: Launch) -> str | list[Message]:
    """Return the prompt of the command line, after the messages of a server's prompt. Raises ConfigError."""
    if options.server_prompt is None:
        if options.prompt_arguments:
            raise ConfigError("--prompt-arg is an argument of a server's prompt: name one with --prompt")
        return prompt_of(options.prompt or "")
    own = [] if options.prompt is None else [Message("user", prompt_of(options.prompt))]
    servers = ServerOptions(launch.mcp_env, launch.mcp_options, launch.without)
    arguments: dict[str, str] = {}
    for pair in options.prompt_arguments:
        name, equals, arguments[name] = pair.partition("=")
        if not (equals and name):
            raise ConfigError(f"--prompt-arg {shown(pair, 120)!r} is not of the form NAME=VALUE")
    return [*run_async(prompt_messages(launch.mcp, servers, options.server_prompt, arguments)), *own]


def new_id(given: str | None, name: str = "run_id") -> str:
    """Return the id of a new run. Raises ConfigError for an id that no route or command line can name."""
    if given is None:
        return uuid4().hex
    check_run_id(given, name)
    return given


def conducted(view: ViewOptions, launch: Launch, parts: LoadedParts, limits: Limits | None, go: Going) -> int:
    """Run one agent to completion, show its progress, and return the exit code of its outcome."""
    settings = project_settings()
    journal = journal_at(journal_file(view.journal))
    live = LiveRuns()
    with logging_to(view.log, settings.log_level) as logs, on_signal(live):
        quiet = view.words is not None
        watched = SupervisedRun(view.run_id, journal, view.journal, show=not view.json, quiet=quiet)

        async def conduct() -> Result | None:
            observers = [*watched.observers, live, *logs]
            making = launch.agent(parts, journal=journal, observers=observers, limits=limits)
            async with watched.stoppable(making) as agent:
                return await watched.supervise(agent, go, remind=view.remind)

        with launch.in_folder():
            result = run_async(conduct())
    if watched.lost:
        return Exit.PIPE
    if result is None:
        complain(watched.left)
        return Exit.CANCELLED
    totals = watched.screen.tally.totals() if watched.screen else None
    print_result(result, totals, shown_already=view.words is not None and view.words.answered)
    return EXIT_CODES[result.outcome]


def print_result(result: Result, totals: str | None, *, shown_already: bool = False) -> None:
    """Print the result of a run, as JSON if `totals` is None; stderr gets the reason of a failure or a blank answer.

    With `shown_already` the answer is not printed again.
    """
    if totals is None:
        say_json(as_json(result))
    else:
        _print_end(result, totals, answer=not shown_already)
    if (fault := note_of(result)) is not None:
        complain(fault)


@contextmanager
def logging_to(file: Path | None, level: str = "info") -> Iterator[list[TransitionLog]]:
    """Yield the observer that appends JSON log lines to a file, or nothing."""
    with ExitStack() as stack:
        lines = None if file is None else log_stream(stack.enter_context(file.open("ab")))
        yield [] if lines is None else [TransitionLog(lines, level=level)]


def _print_end(result: Result, totals: str, *, answer: bool) -> None:
    if answer and result.output not in (None, ""):
        text = result.output if isinstance(result.output, str) else json_text(result.output, indent=2)
        say(f"\n{shown(text, 100_000)}")
    reason = "" if result.reason == "none" else f" ({result.reason})"
    say(f"\noutcome: {result.outcome}{reason}; {totals}")


def note_of(result: BaseResult) -> str | None:
    """Return the line for standard error about the end of a run; None for a run that completed with an answer."""
    if result.outcome is not Outcome.COMPLETED:
        return shown(f"the run {ended_as(result)}", 4_000)
    return "the final answer of the model is blank" if result.reason == "empty_answer" else None


def as_json(result: Result) -> dict[str, Any]:
    """Return the whole result as plain data."""
    verdict = result.verdict
    return {
        "run_id": result.run_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "finish_reason": result.finish_reason,
        "vendor_finish_reason": result.vendor_finish_reason,
        "output": result.output,
        "usage": result.usage.as_json(),
        "verdict": None if verdict is None else verdict._asdict(),
        "error": error_json(result.error),
        "messages": [message.to_openai() for message in result.messages],
        "transitions": [transition_json(one) for one in result.transitions],
    }


def error_json(error: BaseException | None) -> dict[str, str] | None:
    """Return an error's type and message."""
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def transition_json(one: Transition) -> dict[str, Any]:
    """Return one step of the path as plain data, the same for every graph; `seconds` is the time in the state."""
    return {
        "seq": one.seq,
        "from_state": one.source,
        "event": one.event,
        "to_state": one.dest,
        "seconds": round(one.dwell, 6),
        "iteration": one.iteration,
        "guard": one.guard,
    }
