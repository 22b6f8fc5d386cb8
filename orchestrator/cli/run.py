"""`orchestrator run`: one prompt, one run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.load import imported, limits_from, schema_from
from orchestrator.cli.model import model_of
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.stop import on_signal
from orchestrator.errors import RunUnknown
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import Observer, Transition
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.retry import RetryPolicy
from orchestrator.runtime.llm_loop import Orchestrator
from orchestrator.runtime.result import Result
from orchestrator.settings import Settings, build
from orchestrator.telemetry.log import TransitionLog


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of `run`."""

    prompt: str
    model: str | None
    tools: tuple[str, ...]
    instructions: str | None
    output_schema: Path | None
    limits: tuple[str, ...]
    log: Path | None
    json: bool


def run_prompt(asked: Asked) -> int:
    """Run the prompt, show it or print it as JSON, and return the exit code of its outcome."""
    settings = Settings.load()
    model = model_of(asked.model or settings.model)
    options: dict[str, Any] = {
        "tools": [imported(spec, "tool") for spec in asked.tools] or model.tools,
        "limits": limits_from(asked.limits, settings.limits),
        "retry": build(RetryPolicy, settings.retry, "retry"),
        "output_type": schema_from(asked.output_schema) if asked.output_schema else None,
        "instructions": asked.instructions,
    }
    prompt = sys.stdin.read() if asked.prompt == "-" else asked.prompt
    with logging_to(asked.log, settings.log_level) as logs:
        watched = _Watched(show=not asked.json)
        agent = Orchestrator(model.llm, observers=[*watched.observers, *logs], **options)
        result = asyncio.run(watched.run(agent, prompt))
    if watched.lost:
        return Exit.PIPE
    if asked.json:
        say_json(as_json(result))
    else:
        _print_end(result, watched)
    if result.outcome is not Outcome.COMPLETED:
        complain(sentence(result))
    return EXIT_CODES[result.outcome]


class _Watched:
    """One run with its screen; a signal, or the loss of whoever reads the screen, cancels it."""

    def __init__(self, *, show: bool) -> None:
        from orchestrator.cli.screen import Screen

        self.lost = False
        self.screen = Screen(LLM_LOOP, self._lose) if show else None
        self.observers: list[Observer] = [] if self.screen is None else [self.screen]
        self._agent: Orchestrator | None = None
        self._run_id = uuid4().hex

    async def run(self, agent: Orchestrator, prompt: str) -> Result:
        """Run the prompt to its end."""
        self._agent = agent
        with on_signal(self._cancel), self.screen.showing() if self.screen else nullcontext():
            return await agent.run(prompt, run_id=self._run_id)

    def _cancel(self) -> None:
        if self._agent is not None:
            with suppress(RunUnknown):  # it has just ended
                self._agent.cancel(self._run_id, why="signal")

    def _lose(self) -> None:
        self.lost = True
        self._cancel()


@contextmanager
def logging_to(file: Path | None, level: str = "info") -> Iterator[list[TransitionLog]]:
    """Yield the observer that appends JSON log lines to a file, or nothing."""
    with ExitStack() as stack:
        yield [] if file is None else [TransitionLog(stack.enter_context(file.open("ab")), level=level)]


def _print_end(result: Result, watched: _Watched) -> None:
    if result.output not in (None, ""):
        text = result.output if isinstance(result.output, str) else json.dumps(result.output, indent=2)
        say(f"\n{shown(text, 100_000)}")
    reason = "" if result.reason == "none" else f" ({result.reason})"
    totals = watched.screen.tally.totals() if watched.screen else ""
    say(f"\noutcome: {result.outcome}{reason}; {totals}")


def sentence(result: Result) -> str:
    """Say in one sentence how a run ended that did not complete."""
    why = result.verdict.explain() if result.verdict is not None else str(result.error or "")
    return f"the run ended as {result.outcome} ({result.reason})" + (f": {why}" if why else "")


def as_json(result: Result) -> dict[str, Any]:
    """Return the whole result as plain data."""
    verdict = result.verdict
    return {
        "run_id": result.run_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "output": result.output,
        "usage": asdict(result.usage),
        "verdict": None if verdict is None else verdict._asdict(),
        "error": error_json(result.error),
        "messages": [message.to_openai() for message in result.messages],
        "transitions": [_transition(one) for one in result.transitions],
    }


def error_json(error: BaseException | None) -> dict[str, str] | None:
    """Return an error's type and words."""
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def _transition(one: Transition) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "from_state": one.source,
        "event": one.event,
        "to_state": one.dest,
        "seconds": round(one.dwell, 6),
        "iteration": one.iteration,
        "guard": one.guard,
    }
