"""`orchestrator run --stream`: the answer while the model produces it, or every event as a line of JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from orchestrator.cli.output import say, say_json, say_more, shown
from orchestrator.llm.run_event import (
    ModelRequestFinished,
    ModelRequestRetried,
    RunEvent,
    RunFinished,
    TextDelta,
    ToolFinished,
    ToolProgress,
)
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.llm_loop.run_options import Prompt


class TextPrinter:
    """Prints the text of a model as it arrives, and between answers a line for each tool that ran."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.answered = False
        """Whether the last answer was streamed: not every model supports streaming."""
        self._attempt: tuple[int, int] | None = None
        self._open = False
        """Whether the last line is incomplete."""

    def show(self, event: RunEvent) -> None:
        """Print an event of the run, but not of child runs. Raises BrokenPipeError if the pipe is closed."""
        if event.run_id != self.run_id:
            return
        match event:
            case TextDelta():
                self._text(event)
            case ModelRequestFinished():
                self.answered = self._attempt is not None
                self._attempt = None
                self._close()
            case ModelRequestRetried():
                self._close()
                say(f"    attempt {event.attempt}: {event.reason}, the next in {event.delay:.3f} s")
            case ToolProgress():
                self._close()
                say(f"    tool {shown(event.tool, keep='')}: {shown(event.text, 200)}")
            case ToolFinished():
                size = f"{len(event.result):,} characters"
                say(f"    tool {shown(event.tool, keep='')}: {event.outcome}, {size}, {event.seconds:.3f} s")
            case RunFinished():
                self._close()

    def _text(self, delta: TextDelta) -> None:
        if self._attempt is not None and self._attempt != (delta.iteration, delta.attempt):
            self._close()
        self._attempt = delta.iteration, delta.attempt
        say_more(delta.text)
        self._open = True

    def _close(self) -> None:
        if self._open:
            say()
        self._open = False


class EventLines:
    """Prints each event as a line of JSON: its class as `type`, its id, then its members."""

    answered = False

    def show(self, event: RunEvent) -> None:
        """Print an event."""
        say_json(event_json(event))


def event_json(event: RunEvent) -> dict[str, Any]:
    """Return an event as JSON data."""
    members = {name: value for name, value in asdict(event).items() if name not in {"seq", "part"}}
    data: dict[str, Any] = to_jsonable_python(members, fallback=str)
    return {"type": type(event).__name__, "id": event.id, **data}


async def streamed(agent: Agent, shows: TextPrinter | EventLines, prompt: Prompt, **options: Any) -> Result:
    """Run a prompt and print its events. A closed pipe cancels the run, and BrokenPipeError is raised."""
    gone: BrokenPipeError | None = None
    async with agent.stream(prompt, **options) as stream:
        async for event in stream:
            try:
                if gone is None:
                    shows.show(event)
            except BrokenPipeError as error:
                gone = error
                await agent.cancel(stream.run_id, why="nobody reads the answer")
        result = await stream.result()
    if gone is not None:
        raise gone
    return result
