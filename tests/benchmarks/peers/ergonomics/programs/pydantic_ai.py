"""pydantic-ai: a deferred tool ends the run, and the program stores the conversation for the next process."""

from collections.abc import AsyncIterable

from pydantic_ai import (
    Agent,
    AgentStreamEvent,
    ConversationTypeAdapter,
    DeferredToolRequests,
    PartDeltaEvent,
    PartStartEvent,
    RunContext,
    TextPart,
    TextPartDelta,
)

from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop

agent = Agent[Shop, Receipt | DeferredToolRequests](
    f"openai:{task.MODEL}",
    instructions=task.INSTRUCTIONS,
    deps_type=Shop,
    output_type=[Receipt, DeferredToolRequests],
)


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


async def start() -> None:
    result = await agent.run(task.PROMPT, deps=Shop(), event_stream_handler=show)
    if isinstance(result.output, DeferredToolRequests):
        task.STATE.write_bytes(ConversationTypeAdapter.dump_json(result.conversation))
        for call in result.output.approvals:
            task.ask_person(call.tool_name, call.args)


async def approve() -> None:
    conversation = ConversationTypeAdapter.validate_json(task.STATE.read_bytes())
    assert conversation.deferred_tool_requests is not None
    answers = conversation.deferred_tool_requests.build_results(approve_all=True)
    result = await agent.run(
        conversation=conversation, deferred_tool_results=answers, deps=Shop(), event_stream_handler=show
    )
    assert isinstance(result.output, Receipt)
    task.finish(result.output)


if __name__ == "__main__":
    task.main(start, approve)
