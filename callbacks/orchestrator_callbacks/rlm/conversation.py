"""The conversation of a run with its model: texts about its mode and its data, requests, policies."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import orjson

from orchestrator.errors import ConfigError
from orchestrator.llm.message import INCOMPLETE, Message, Request, Response, ToolOffer
from orchestrator.llm.port import LLM
from orchestrator.machines.rlm.model import ModeContext
from orchestrator.machines.rlm.policy import ContextCompressor, StoppingPolicy, estimate

# ---- texts for the model ----


CODE = """\
You answer a question about data that you are not shown. The data is in the variable `context` of a Python REPL.

Write code between ```repl and ``` and it runs; you then read what it printed. Variables stay from block to block. In
the REPL there is:
- `context`: the data.
- `llm_query(prompt)`: asks another model and returns its answer as text. It sees the prompt and nothing else, and can
  read long texts: give it a part of the data with a question about that part.
- `llm_query_batched(prompts)`: the same for a list of prompts at once; the answers are in the same order.
- `FINAL_VAR("name")`: ends your work with the value of that variable as the answer.

Look at the data before you rely on its form: print its type, its size, its beginning. Search and split it with code,
and keep what you find in variables. Print little: long output is cut.

When you know the answer, write it outside of any code block on a line of its own: FINAL(the answer) or, where it is in
a variable, FINAL_VAR(name). An answer counts only if the code in the same message ran without an error."""

TOOLS = """\
You answer a question with the help of tools. Call those that you need; when you know the answer, say it and call
none."""

TOOLS_CONTEXT = """
The data that the question is about is not shown to you. It can be read piece by piece with `context_read`, searched
with `context_search`, and given to another model in pieces with `context_query`."""

LIMIT = "This was your last turn. Give your final answer now, from what you have; say what is missing."

LOST = (
    "The REPL was started anew: every variable, function and file of earlier blocks is gone. `context` and the "
    "functions are there again. Define again what you need."
)

AGAIN = (
    "Your last code may have run before that, or a part of it; it ran again from its beginning, and asked its "
    "questions again."
)


def begin(ctx: ModeContext, instructions: str) -> None:
    """Add instructions and prompt to the history, after earlier turns; once per run."""
    if ctx.begun:
        return
    said = ctx.message_history
    if not (said and said[0].get("role") == "system"):
        said.insert(0, Message("system", instructions).to_openai())
    about = described(ctx.context)
    ctx.say(Message("user", f"{ctx.prompt}\n\n{about}" if about else ctx.prompt))
    ctx.begun = True


def shallow(ctx: ModeContext) -> list[Message]:
    """Return the single request of a run that is too deep for turns: the prompt, and then the data itself."""
    text = ctx.prompt if ctx.context is None else f"{ctx.prompt}\n\n{ctx.context}"
    return [*ctx.messages, Message("user", text)]


def described(context: Any) -> str:
    """Return the type and size of the data, without any of its content."""
    match context:
        case None:
            return ""
        case str():
            size = f"text of {len(context):,} characters in {context.count(chr(10)) + 1:,} lines"
        case Mapping():
            keys = ", ".join(repr(str(key))[:40] for key in list(context)[:10])
            size = f"a dict with {len(context):,} keys ({keys}{', …' if len(context) > 10 else ''})"  # noqa: PLR2004
        case Sequence():
            lengths = [len(str(one)) for one in context[:5]]
            size = f"a list of {len(context):,} items (the first ones have {lengths} characters as text)"
        case _:
            size = f"a {type(context).__name__}"
    return f"The data is {size}."


# ---- requests and turns ----


T = TypeVar("T")

_POLICY_FIELDS = ("iteration", "max_iterations", "agent_mode", "depth", "history", "last_result")
"""Keys that are updated each time; all other keys of the mapping belong to the policy."""


async def settled(value: T | Awaitable[T]) -> T:
    """Return a value, awaited if necessary."""
    return await value if inspect.isawaitable(value) else value


class Conversation:
    """One model, its history, and its policies."""

    def __init__(
        self,
        llm: LLM,
        mode: Literal["code", "tools"],
        *,
        stopping: StoppingPolicy | None,
        compressor: ContextCompressor | None,
        params: Mapping[str, Any] | None,
        tools: tuple[ToolOffer, ...] = (),
    ) -> None:
        self._llm = llm
        self._mode = mode
        self._stopping = stopping
        self._compressor = compressor
        self._params = dict(params or {})
        self._tools = tools

    async def ask(
        self, ctx: ModeContext, extra: Sequence[Message] = (), *, tool_choice: str = "auto"
    ) -> Response:
        """Call the model with the whole history and `extra`, which is not in the history yet."""
        if self._compressor is not None and ctx.limits.history_tokens:
            await self._compress(self._compressor, ctx, extra)
        messages = (*ctx.messages, *extra)
        return await self._llm.complete(Request(messages, self._tools, tool_choice, params=self._params))

    async def ask_with(self, messages: Sequence[Message]) -> Response:
        """Call the model with only these messages."""
        return await self._llm.complete(Request(tuple(messages), params=self._params))

    async def should_stop(self, ctx: ModeContext) -> bool:
        """Return whether the policy ends the run here."""
        if self._stopping is None:
            return False
        stops = await settled(self._stopping.should_stop(self._policy_view(ctx)))
        _keep(ctx)
        return bool(stops)

    async def complete_turn(self, ctx: ModeContext, last_result: str) -> None:
        """Inform the policy of a completed turn and its result."""
        if self._stopping is None:
            return
        told = self._policy_view(ctx)
        told["iteration"], told["last_result"] = ctx.iteration + 1, last_result
        done: Any = self._stopping.on_iteration_complete(told)
        if inspect.isawaitable(done):
            await done
        _keep(ctx)

    def _policy_view(self, ctx: ModeContext) -> dict[str, Any]:
        """Update the policy's mapping. It is one mapping for the whole run, so values of the policy stay."""
        told = ctx.shared
        if not told:
            told.update(ctx.kept)
        told.update(
            iteration=max(ctx.iteration, told.get("iteration", 0)),
            max_iterations=ctx.max_iterations,
            agent_mode=self._mode,
            depth=ctx.depth,
            history=ctx.message_history,
        )
        told.setdefault("last_result", None)
        return told

    async def _compress(
        self, compressor: ContextCompressor, ctx: ModeContext, extra: Sequence[Message]
    ) -> None:
        """Call the compressor if the history and the extra messages are too long."""
        limit = ctx.limits.history_tokens
        said = ctx.messages
        if estimate((*said, *extra)) <= limit:
            return
        kept = await settled(compressor.compress(said, limit=max(1, limit - estimate(extra))))
        if kept is not said and list(kept) != said:
            ctx.message_history = [one.to_openai() for one in kept]


def _keep(ctx: ModeContext) -> None:
    """Keep the policy's values that can be stored as JSON; other values are lost with the process."""
    kept: dict[str, Any] = {}
    for name, value in ctx.shared.items():
        if name not in _POLICY_FIELDS:
            try:
                kept[name] = orjson.loads(orjson.dumps(value))
            except TypeError:
                continue
    if kept != ctx.kept:
        ctx.kept = kept


def text_of(response: Response) -> str:
    """Return the text of a response, or its refusal if there is no text."""
    return response.message().text or response.refusal or ""


def incomplete_of(response: Response) -> str:
    """Return `truncated`, `filtered` or `refused` for a response that is not complete, else empty text."""
    return INCOMPLETE.get(response.finish, "")


def at_last_turn(ctx: ModeContext) -> bool:
    """Return whether the current turn is the last one."""
    return bool(ctx.max_iterations) and ctx.iteration + 1 >= ctx.max_iterations


# ---- without an event loop ----


S = TypeVar("S")
E = TypeVar("E")
C = TypeVar("C")


class BlockingSource(Generic[S, E, C]):
    """Calls an async source in its own event loop in a thread, and waits for the result.

    The loop lives as long as this object, because resources of a source (a worker process, connections) belong to one
    loop. Close it, or use it as a context manager; a source with a `close` method is closed with it.
    """

    def __init__(self, source: Callable[[S, C], Awaitable[E | None]]) -> None:
        self._source = source
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-source", daemon=True)
        self._thread.start()

    def __call__(self, state: S, context: C) -> E | None:
        """Return the next event. Raises the errors of the source."""
        event: E | None = self._wait(lambda: self._source(state, context))
        return event

    def close(self) -> None:
        """Close the source, the loop and its thread. A second call has no effect."""
        if self._loop.is_closed():
            return
        close: Any = getattr(self._source, "close", None)
        try:
            if close is not None:
                self._wait(close)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            return await work()

        if self._loop.is_closed():
            raise ConfigError("this event source is closed; make another one")
        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()
