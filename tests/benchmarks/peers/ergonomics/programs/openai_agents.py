"""openai-agents: an interruption ends the run, and the program stores its state for the next process."""

from agents import Agent, RunContextWrapper, Runner, RunResultStreaming, RunState, function_tool
from openai.types.responses import ResponseTextDeltaEvent

from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop


@function_tool(needs_approval=True)
def refund(context: RunContextWrapper[Shop], order: str, euros: int) -> str:
    """Refund an order."""
    return context.context.refund(order, euros)


agent = Agent[Shop](
    name="support",
    model=task.MODEL,
    instructions=task.INSTRUCTIONS,
    tools=[refund],
    output_type=Receipt,
)


async def run(work: str | RunState[Shop]) -> RunResultStreaming:
    result = Runner.run_streamed(agent, work, context=Shop())
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            task.show(event.data.delta)
    return result


async def start() -> None:
    result = await run(task.PROMPT)
    if result.interruptions:
        task.STATE.write_text(result.to_state().to_string())
        for question in result.interruptions:
            task.ask_person(question.name, question.arguments)


async def approve() -> None:
    context = RunContextWrapper(Shop())
    state = await RunState.from_string(agent, task.STATE.read_text(), context_override=context)
    for question in state.get_interruptions():
        state.approve(question)
    result = await run(state)
    task.finish(result.final_output_as(Receipt))


if __name__ == "__main__":
    task.main(start, approve)
