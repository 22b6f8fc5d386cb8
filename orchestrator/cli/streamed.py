"""`orchestrator run --stream`: the answer while the model produces it, or every fact as a line of JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic_core import to_jsonable_python

from orchestrator.cli.output import say, say_json, say_more
from orchestrator.cli.screen import line_of
from orchestrator.kernel.record import LLMCall, RunCompleted, Streamed, TokenDelta, ToolExecution, kind_of
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result


class TextPrinter:
    """Prints the text of a model as it arrives, and between answers a line for each tool that ran."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.answered = False
        """Whether the last answer was streamed: not every model supports streaming."""
        self._attempt: tuple[int, int] | None = None
        self._open = False
        """Whether the last line is incomplete."""

    def show(self, fact: Streamed) -> None:
        """Print a fact of the run, but not of child runs. Raises BrokenPipeError if the pipe is closed."""
        if fact.run_id != self.run_id:
            return
        match fact:
            case TokenDelta():
                self._text(fact)
            case LLMCall(outcome="ok"):
                self.answered = self._attempt is not None
                self._attempt = None
                self._close()
            case LLMCall():
                self._close()
                say(line_of(fact))
            case ToolExecution():
                say(line_of(fact))
            case RunCompleted():
                self._close()

    def _text(self, delta: TokenDelta) -> None:
        if self._attempt is not None and self._attempt != (delta.iteration, delta.attempt):
            self._close()
        self._attempt = delta.iteration, delta.attempt
        say_more(delta.text)
        self._open = True

    def _close(self) -> None:
        if self._open:
            say()
        self._open = False


class Facts:
    """Prints each fact as a line of JSON: its kind as `fact`, then its members."""

    answered = False

    def show(self, fact: Streamed) -> None:
        """Print a fact."""
        members = {item.name: getattr(fact, item.name) for item in fields(fact)}
        say_json({"fact": kind_of(fact), **_plain(members)})


async def streamed(agent: Agent, shows: TextPrinter | Facts, prompt: str, **options: Any) -> Result:
    """Run a prompt and print its facts. A closed pipe cancels the run, and BrokenPipeError is raised."""
    gone: BrokenPipeError | None = None
    async with agent.stream(prompt, **options) as stream:
        async for fact in stream:
            try:
                if gone is None:
                    shows.show(fact)
            except BrokenPipeError as error:
                gone = error
                await agent.cancel(stream.run_id, why="nobody reads the answer")
        result = await stream.result()
    if gone is not None:
        raise gone
    return result


def _plain(value: Any) -> Any:
    """Return a member of a fact as JSON: errors as type and message, our own objects by their members."""
    if isinstance(value, BaseException):
        value = {"type": type(value).__name__, "message": str(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return to_jsonable_python(value, fallback=str)
