"""openai-agents: its session has what was said; the program stores the state of a question, and the output."""

from typing import Any

from agents import (
    Agent,
    Model,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
)
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseTextDeltaEvent

from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop


@function_tool
def price(context: RunContextWrapper[Shop], order: str) -> str:
    """Look up the price of an order."""
    return context.context.price(order)


@function_tool(needs_approval=True)
def refund(context: RunContextWrapper[Shop], order: str, euros: int) -> str:
    """Refund an order."""
    return context.context.refund(order, euros)


class Limit(RunHooks[Shop]):
    async def on_llm_end(self, context: RunContextWrapper[Shop], *args: Any) -> None:
        if context.usage.output_tokens > task.TOKENS:
            raise RuntimeError("the run is past its limit on tokens")


agent = Agent[Shop](
    name="support",
    model=task.MODEL,
    instructions=task.INSTRUCTIONS,
    tools=[price, refund],
    output_type=Receipt,
)


async def run(session: SQLiteSession, model: Model | None = None) -> Receipt:
    if task.RESULT.exists():
        return Receipt.model_validate_json(task.RESULT.read_text())
    work: Any = [] if await session.get_items() else task.PROMPT
    if task.STATE.exists():
        context = RunContextWrapper(Shop())
        work = await RunState.from_string(agent, task.STATE.read_text(), context_override=context)
    while True:
        if isinstance(work, RunState):
            for question in work.get_interruptions():
                if await task.ask_person(question.name, question.arguments):
                    work.approve(question)
                else:
                    work.reject(question)
        result = Runner.run_streamed(
            agent, work, context=Shop(), session=session, hooks=Limit(), run_config=RunConfig(model=model)
        )
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                task.show(event.data.delta)
        if not result.interruptions:
            task.RESULT.write_text(result.final_output_as(Receipt).model_dump_json())
            return result.final_output_as(Receipt)
        work = result.to_state()
        task.STATE.write_text(work.to_string())


async def main() -> None:
    task.finish(await run(SQLiteSession(task.RUN, "session")))


async def test() -> None:
    calls = [
        function_call("price", {"order": "A-17"}, call_id="1"),
        function_call("refund", {"order": "A-17", "euros": 40}, call_id="2"),
        assistant_message(task.RECEIPT.model_dump_json()),
    ]
    assert await run(SQLiteSession("test"), ScriptedModel([[one] for one in calls])) == task.RECEIPT


if __name__ == "__main__":
    task.main(main, test)
