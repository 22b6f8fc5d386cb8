"""Ours: the journal has the question, and any process with the journal answers it."""

from orchestrator import Agent, RunStream, SqliteJournal, ToolContext, tool
from orchestrator.events import QuestionAsked, TextDelta
from orchestrator.providers import OpenAI
from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop


@tool(approval=True)
def refund(context: ToolContext[Shop], order: str, euros: int) -> str:
    """Refund an order."""
    return context.deps.refund(order, euros)


def support(journal: SqliteJournal) -> Agent[Shop, Receipt]:
    return Agent(
        OpenAI(task.MODEL),
        name="support",
        instructions=task.INSTRUCTIONS,
        tools=[refund],
        deps=Shop(),
        output_type=Receipt,
        journal=journal,
    )


async def show(stream: RunStream[Receipt]) -> None:
    async for event in stream:
        if isinstance(event, TextDelta):
            task.show(event.text)
        elif isinstance(event, QuestionAsked):
            task.ask_person(event.tool, event.arguments)


async def start() -> None:
    async with SqliteJournal(task.STATE) as journal:
        agent = support(journal)
        await show(agent.stream(task.PROMPT, run_id=task.RUN))


async def approve() -> None:
    async with SqliteJournal(task.STATE) as journal:
        agent = support(journal)
        await agent.approve(task.RUN)
        stream = agent.stream_resume(task.RUN)
        await show(stream)
        task.finish((await stream.result()).raise_for_outcome().output)


if __name__ == "__main__":
    task.main(start, approve)
