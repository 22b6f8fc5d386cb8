"""The table of wire shapes: the bytes of servers that people use, our answer, the requests of a run and its cost.

Each shape is sent to a run as a stream in one chunk and as plain JSON, and to its model also in chunks of 1 and 7
bytes. Rows join with a module of `SHAPES`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.errors import LLMError
from orchestrator.llm.message import FINISH_REASONS, FinishReason, Request, Response, finish_reason_of
from orchestrator.llm.port import LLM
from orchestrator.providers import price_table
from orchestrator.providers.reading import CHAT, LIBRARY, MESSAGES, RESPONSES, AnswerSignals
from orchestrator.runtime.service.runtime import Runtime
from tests.providers import shapes_calls, shapes_stream
from tests.providers.exchange import Failed
from tests.providers.family import FAMILIES
from tests.providers.loopback import Asked, Reply
from tests.providers.shape import COST, Shape
from tests.providers.test_failures import Hurried

SHAPES: dict[str, Shape] = {**shapes_stream.SHAPES, **shapes_calls.SHAPES}
PRICE = (1_000_000.0, 10_000_000.0)


class Recorded:
    """A model that remembers its requests and what came of them, and may stream."""

    def __init__(self, llm: LLM, *, streamed: bool) -> None:
        self.model = "m"
        self.requests: list[Request] = []
        self.came: list[Response | LLMError] = []
        self.said: list[str] = []
        self._llm = llm
        self._streamed = streamed

    async def complete(self, request: Request) -> Response:
        first = not self.came
        on_delta = (self.said.append if first else lambda _: None) if self._streamed else None
        self.requests.append(Request(request.messages, request.tools, on_delta=on_delta))
        try:
            answer = await self._llm.complete(self.requests[-1])
        except LLMError as error:
            self.came.append(error)
            raise
        self.came.append(answer)
        return answer


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def stream_of(shape: Shape, size: int | None = None) -> Reply:
    """Return the stream of a shape in chunks of a size, by default in one."""
    stream = shape.stream.encode() if isinstance(shape.stream, str) else shape.stream
    headers = {"content-type": shape.content_type} if shape.content_type else {}
    size = size or len(stream)
    pieces = tuple(stream[at : at + size] for at in range(0, len(stream), size))
    return Reply(200, headers, pieces, shape.then)


def check_answer(model: Recorded, shape: Shape, form: object) -> Response | Failed:
    first = model.came[0]
    came = Failed.of(first) if isinstance(first, LLMError) else first
    assert came == shape.answer, form
    assert shape.says in str(first), form
    if isinstance(first, Response) and model.said:
        assert "".join(model.said) == first.message().text, form
    return came


def cost_of_failure(first: Response | LLMError) -> float:
    """Return the cost of a failed answer whose usage its server reports."""
    if not isinstance(first, LLMError) or first.usage is None:
        return 0.0
    assert (first.usage.input_tokens, first.usage.output_tokens) == (3, 2)
    return COST


@pytest.mark.parametrize("name", SHAPES)
async def test_each_shape_is_its_answer(name: str, request: pytest.FixtureRequest) -> None:
    shape = SHAPES[name]
    family = FAMILIES[shape.family]
    if family.library:
        request.getfixturevalue("vendor_libraries")
    left: list[Reply] = []

    def answer(asked: Asked) -> Reply:
        return left.pop() if left else family.wire.reply(asked, "Fine.")

    async with family.server(answer) as server:
        llm: Any = family.llm(server.url)
        price = price_table(dict.fromkeys(("m", "m-dated", llm.model), PRICE))

        async def check_run(reply: Reply, *, streamed: bool) -> Request:
            """Check a whole run; return its first request."""
            asked = len(server.asked)
            left.append(reply)
            model = Recorded(llm, streamed=streamed)
            runtime = Runtime(price=price, observers=(), clock=Hurried())
            result = await Agent(model, tools=[weather, add], runtime=runtime).run("Hello?")
            came = check_answer(model, shape, reply)
            assert len(server.asked) - asked == shape.requests
            used, first = result.usage, model.came[0]
            if isinstance(came, Response) and came.usage is None:
                assert used.estimated_cost == used.cost != 0
            else:
                billed = used.estimated_cost + cost_of_failure(first)
                assert (used.cost or 0) == (shape.cost or 0) + billed
                lost = isinstance(first, LLMError) and (first.partial or first.kind == "connection")
                assert bool(used.estimated_cost) == bool(lost and first.usage is None)
            assert (result.outcome == "failed") == (isinstance(came, Failed) and not came.retryable)
            return model.requests[0]

        if shape.stream:
            first = await check_run(stream_of(shape), streamed=True)
            for size in (7, 1):  # what a run does with an answer does not depend on its chunks
                left.append(stream_of(shape, size))
                model = Recorded(llm, streamed=True)
                with suppress(LLMError):
                    await model.complete(first)
                check_answer(model, shape, size)
        if shape.whole:
            body = Reply(200, {"content-type": "application/json"}, (shape.whole.encode(),))
            await check_run(body, streamed=False)
        await llm.aclose()


@pytest.mark.parametrize("signals", [CHAT, RESPONSES, MESSAGES, LIBRARY])
def test_the_finish_reasons_of_failures_are_those_of_the_vocabulary(signals: AnswerSignals) -> None:
    errors = {word for word in FINISH_REASONS if finish_reason_of(word) is FinishReason.ERROR}
    assert signals.broken.keys() == errors
