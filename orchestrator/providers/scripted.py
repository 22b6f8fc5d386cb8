"""Models for tests: answers from a script, or from a function.

    llm = ScriptedLLM([call("search", query="fsm"), "Found it."])
    ... run something with it ...
    llm.assert_complete()

A script item is one answer, in any of these forms:

    str                     the final text
    ToolCall, [ToolCall]    calls without text; `call(tool, **arguments)` builds one
    an output               a pydantic model, a dataclass, a number or a bool: the final answer as JSON
    Response, Message       used unchanged
    dict                    an assistant message in OpenAI chat form
    BaseException           is raised; LLMError(…, kind="connection", partial="Half an") is a stream that was cut
    callable(request)       returns any of these; it may be async
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from pydantic_core import to_json, to_jsonable_python

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import (
    ArgumentsPiece,
    Content,
    Message,
    ReasoningPiece,
    Request,
    Response,
    ToolCall,
    Usage,
)
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.tools.spec import ToolSpec, as_tool, canonical_arguments

Answer: TypeAlias = (
    str | Response | Message | ToolCall | Sequence[ToolCall] | Mapping[str, Any] | BaseException
)
Item: TypeAlias = Answer | Callable[[Request], Answer | Awaitable[Answer]]

AUTO_ID = "auto"
"""Id of a call built by `call()`; the double replaces it with `call_<turn>_<position>`.

A counter of the process would give ids that depend on the order of the tests.
"""

ONE_EACH = Usage(1, 1)
"""Usage of an answer without one: one token each way, so that token budgets are predictable."""


class ScriptExhausted(AssertionError):
    """The model was asked more often than the script has answers. It is never retried."""

    def __init__(self, turn: int, length: int) -> None:
        super().__init__(f"turn {turn}: the script has only {length} answers")
        self.turn = turn
        self.length = length


def call(tool: str | ToolSpec[Any] | Callable[..., Any], /, **arguments: object) -> ToolCall:
    """Return a call of a tool with these arguments as JSON text. For a fixed id build a ToolCall.

    Give the tool itself to check the arguments against its schema; they may be values of Python, such as a date. A name
    is not checked, so that a test can make the mistakes of a model.

    Raises:
        ConfigError: The arguments do not fit the tool.

    Example:
        >>> call("search", query="fsm").arguments
        '{"query": "fsm"}'
        >>> def refund(order_id: str, cents: int) -> None: ...
        >>> call(refund, order_id="A1", cent=500)
        Traceback (most recent call last):
        orchestrator.errors.ConfigError: call of refund: cents: Field required; cent: Extra inputs are not permitted
    """
    if isinstance(tool, str):
        return ToolCall(AUTO_ID, tool, json.dumps(arguments))
    spec = as_tool(tool)
    text = json.dumps(arguments, default=to_jsonable_python)
    try:
        canonical_arguments(spec, text)
    except Exception as error:  # the tool's own validators may raise anything
        raise ConfigError(f"call of {spec.name}: {error}") from error
    return ToolCall(AUTO_ID, spec.name, text)


class Double:
    """Base of the doubles: record the request, wait `latency` seconds on `clock`, answer by turn."""

    double: ClassVar[bool] = True
    """Not a real model: allowed if real models are refused."""

    def __init__(
        self,
        item_of: Callable[[int], Item],
        *,
        model: str,
        usage: Usage = ONE_EACH,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        if latency < 0:
            raise ConfigError(f"latency is seconds, 0 or more, not {latency!r}")
        self.model = model
        self.requests: list[Request] = []
        self.reports_cost = usage.cost is not None
        """Whether its answers report their cost: those without a usage of their own do."""
        self._item_of = item_of
        self._usage = usage
        self._latency = latency
        self._clock: Clock = clock or SystemClock()

    async def complete(self, request: Request) -> Response:
        """Answer one request. Raises the answer if it is an exception, ConfigError if it is invalid."""
        self.requests.append(request)
        turn = len(self.requests)
        item = self._item_of(turn)
        if self._latency:
            await self._clock.sleep(self._latency)
        try:
            answer = await _resolve(item, request)
        except LLMError as cut:
            answer = cut
        if isinstance(answer, LLMError):
            await stream(answer.partial, request)
        # The answer as a response; raise it if it is an exception.
        if isinstance(answer, BaseException):
            raise answer
        response = answer if isinstance(answer, Response) else self._written(answer, turn)
        calls = tuple(
            dataclasses.replace(one, id=f"call_{turn}_{position}") if one.id == AUTO_ID else one
            for position, one in enumerate(response.tool_calls)
        )
        response = dataclasses.replace(response, tool_calls=calls, model=response.model or self.model)
        await stream(response.content, request, response.reasoning, response.tool_calls)
        return response

    def _written(self, answer: object, turn: int) -> Response:
        """Return a response for one of the short forms."""
        message = _as_message(answer, f"turn {turn}")
        return Response(
            message.content,
            message.tool_calls,
            "tool_calls" if message.tool_calls else "stop",
            self._usage,
            refusal=message.refusal,
            reasoning=message.reasoning,
        )


class FunctionLLM(Double):
    """A model that is a function: `fn(request)` returns an answer in any form of a script item; it may be async.

    Args:
        fn: The function.
        model: Name of the model.
        usage: Usage of the answers without one: all forms but Response.
        latency: Seconds that each answer takes on `clock`.
        clock: Clock of the latency.

    Example:
        >>> FunctionLLM(lambda request: f"You said {request.messages[-1].content}").model
        'function'
    """

    def __init__(
        self,
        fn: Callable[[Request], Answer | Awaitable[Answer]],
        *,
        model: str = "function",
        usage: Usage = ONE_EACH,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(lambda _: fn, model=model, usage=usage, latency=latency, clock=clock)


class ScriptedLLM(Double):
    """A model that gives the answers of a script, one for each request, in order.

    An answer is consumed when its request arrives: a cancelled caller does not get it back.

    Args:
        script: The answers, each in a form that the module describes.
        model: Name of the model.
        usage: Usage of the answers without one.
        latency: Seconds that each answer takes on `clock`.
        clock: Clock of the latency.

    Raises:
        ConfigError: An item is not an answer.
        ScriptExhausted: The model was asked more often than it has answers.

    Example:
        llm = ScriptedLLM([call(refund, order_id="A1", cents=500), Receipt(order_id="A1")])
        result = await Agent(llm, tools=[refund], output_type=Receipt).run("Refund A1.")
        llm.assert_complete()
    """

    def __init__(
        self,
        script: Iterable[object],
        *,
        model: str = "scripted",
        usage: Usage = ONE_EACH,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(self._take, model=model, usage=usage, latency=latency, clock=clock)
        self.script: tuple[Any, ...] = tuple(script)
        self.reports_cost |= any(
            isinstance(one, Response) and one.usage and one.usage.cost is not None for one in self.script
        )
        for number, item in enumerate(self.script, 1):
            if not (callable(item) or isinstance(item, BaseException | Response)):
                _as_message(item, f"script item {number}")

    @property
    def remaining(self) -> tuple[Any, ...]:
        """The items that were not requested yet."""
        return self.script[len(self.requests) :]

    def assert_complete(self) -> None:
        """Raise AssertionError with the items that were not consumed."""
        left = self.remaining
        if left:
            first = len(self.script) - len(left) + 1
            named = "; ".join(f"#{first + offset} {_short(item)}" for offset, item in enumerate(left))
            raise AssertionError(f"{len(left)} of {len(self.script)} script items were not consumed: {named}")

    def _take(self, turn: int) -> Any:
        if turn > len(self.script):
            raise ScriptExhausted(turn, len(self.script))
        return self.script[turn - 1]


async def _resolve(item: object, request: Request) -> object:
    """Return the answer of an item: functions are called, awaitables awaited, until an answer is left."""
    while True:
        if inspect.isawaitable(item):
            item = await item
        elif callable(item):
            item = item(request)
        else:
            return item


def _as_message(answer: object, where: str) -> Message:
    """Return the assistant message of a short form. Raises ConfigError with `where`."""
    if isinstance(answer, str):
        return Message("assistant", answer)
    if isinstance(answer, ToolCall):
        return Message("assistant", None, (answer,))
    if _is_output(answer):
        return Message("assistant", to_json(answer).decode())
    if isinstance(answer, Message | Mapping):
        if isinstance(answer, Mapping):
            try:
                answer = Message.from_openai({"role": "assistant", **answer})
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from error
        if answer.role != "assistant":
            raise ConfigError(
                f"{where}: a model answers with an assistant message, not a {answer.role} message"
            )
        return answer
    if isinstance(answer, Sequence) and answer and all(isinstance(one, ToolCall) for one in answer):
        return Message("assistant", None, tuple(answer))
    raise ConfigError(
        f"{where}: {_short(answer)} is not an answer; use text, a Response, a Message, a ToolCall or a list of "
        "them, an assistant message as a dict, an exception, or a function of the request"
    )


def _is_output(answer: object) -> bool:
    """Return whether an answer is a value of an output type in place of its text."""
    if isinstance(answer, Message | type):
        return False
    return (
        isinstance(answer, int | float)
        or dataclasses.is_dataclass(answer)
        or hasattr(answer, "model_dump_json")
    )


async def stream(
    content: Content, request: Request, reasoning: str | None = None, calls: Iterable[ToolCall] = ()
) -> None:
    """Pass an answer word by word to the listeners of its request, if there are any; other tasks run in between."""
    if request.on_piece is not None:
        for piece in _words(reasoning or ""):
            request.on_piece(ReasoningPiece(piece))
            await asyncio.sleep(0)
    if request.on_delta is not None and isinstance(content, str):
        for piece in _words(content):
            request.on_delta(piece)
            await asyncio.sleep(0)
    if request.on_piece is not None:
        for position, call in enumerate(calls):
            for piece in _words(call.arguments):
                request.on_piece(ArgumentsPiece(position, call.name, piece))
                await asyncio.sleep(0)


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text)


def _short(item: object) -> str:
    """Describe an item in a few words."""
    if isinstance(item, ToolCall):
        return f"call of {item.name}"
    return shorten(repr(item))


def shorten(text: str, limit: int = 60) -> str:
    """Return the text cut to at most `limit` characters, with a mark."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
