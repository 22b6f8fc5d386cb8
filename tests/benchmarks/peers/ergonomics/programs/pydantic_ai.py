"""pydantic-ai: a handler of deferred calls asks; the program stores the messages of each step, and the output."""

import json
from collections.abc import AsyncIterable
from typing import Any

from pydantic_ai import (
    Agent,
    AgentStreamEvent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    RunContext,
    TextPart,
    TextPartDelta,
    UsageLimits,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop

hooks = Hooks[Shop]()


@hooks.on.after_node_run
async def store(context: RunContext[Shop], *, node: Any, result: Any) -> Any:
    task.STATE.write_bytes(ModelMessagesTypeAdapter.dump_json(context.messages))
    return result


async def ask(context: RunContext[Shop], requests: DeferredToolRequests) -> DeferredToolResults:
    answers = {
        call.tool_call_id: await task.ask_person(call.tool_name, call.args) for call in requests.approvals
    }
    return requests.build_results(approvals=answers)


agent = Agent[Shop, Receipt](
    f"openai:{task.MODEL}",
    instructions=task.INSTRUCTIONS,
    deps_type=Shop,
    output_type=Receipt,
    capabilities=[HandleDeferredToolCalls(handler=ask), hooks],
)


@agent.tool
def price(context: RunContext[Shop], order: str) -> str:
    """Look up the price of an order."""
    return context.deps.price(order)


@agent.tool(requires_approval=True)
def refund(context: RunContext[Shop], order: str, euros: int) -> str:
    """Refund an order."""
    return context.deps.refund(order, euros)


async def show(context: RunContext[Shop], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for event in events:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                task.show(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                task.show(text)


async def main() -> None:
    if not task.RESULT.exists():
        history = (
            ModelMessagesTypeAdapter.validate_json(task.STATE.read_bytes()) if task.STATE.exists() else []
        )
        result = await agent.run(
            None if history else task.PROMPT,
            message_history=history,
            deps=Shop(),
            usage_limits=UsageLimits(output_tokens_limit=task.TOKENS),
            event_stream_handler=show,
        )
        task.RESULT.write_text(result.output.model_dump_json())
    task.finish(Receipt.model_validate_json(task.RESULT.read_text()))


async def test() -> None:
    calls = [("price", {"order": "A-17"}), ("refund", {"order": "A-17", "euros": 40})]
    calls.append(("final_result", task.RECEIPT.model_dump()))

    async def answer(messages: Any, info: Any) -> Any:
        name, arguments = calls[sum(isinstance(message, ModelResponse) for message in messages)]
        yield {0: DeltaToolCall(name=name, json_args=json.dumps(arguments), tool_call_id=name)}

    with agent.override(model=FunctionModel(stream_function=answer)):
        await main()
    assert Receipt.model_validate_json(task.RESULT.read_text()) == task.RECEIPT


if __name__ == "__main__":
    task.main(main, test)
