"""Ours: the journal has the run, its question and its output; the same call starts, continues or reads it."""

from orchestrator import Agent, Limits, Question, SqliteJournal, ToolContext, tool
from orchestrator.events import TextDelta
from orchestrator.testing import ScriptedLLM, call
from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop


@tool(effect="pure")
def price(context: ToolContext[Shop], order: str) -> str:
    """Look up the price of an order."""
    return context.deps.price(order)


@tool(approval=True)
def refund(context: ToolContext[Shop], order: str, euros: int) -> str:
    """Refund an order."""
    return context.deps.refund(order, euros)


async def ask(question: Question) -> bool | str:
    return await task.ask_person(question.tool, question.arguments, question.why)


agent = Agent(
    f"openai:{task.MODEL}",
    name="support",
    instructions=task.INSTRUCTIONS,
    tools=[price, refund],
    deps=Shop(),
    output_type=Receipt,
    limits=Limits(max_output_tokens=task.TOKENS),
    ask=ask,
)


async def run(agent: Agent[Shop, Receipt]) -> Receipt | None:
    stream = agent.stream(task.PROMPT, run_id=task.RUN, if_exists="resume")
    async for event in stream:
        if isinstance(event, TextDelta):
            task.show(event.text)
    return (await stream.result()).raise_for_outcome().output


async def main() -> None:
    async with SqliteJournal(task.STATE) as journal:
        task.finish(await run(agent.replace(journal=journal)))


async def test() -> None:
    llm = ScriptedLLM([call(price, order="A-17"), call(refund, order="A-17", euros=40), task.RECEIPT])
    assert await run(agent.replace(model=llm)) == task.RECEIPT


if __name__ == "__main__":
    task.main(main, test)
