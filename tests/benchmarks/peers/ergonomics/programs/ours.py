"""Ours: the journal has the question, and any process with the journal answers it."""

from orchestrator import Agent, SqliteJournal, ToolContext, tool
from orchestrator.events import RunParked, TokenDelta
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
        instructions=task.INSTRUCTIONS,
        tools=[refund],
        deps=Shop(),
        output_type=Receipt,
        journal=journal,
    )


async def start() -> None:
    async with SqliteJournal(task.STATE) as journal:
        agent = support(journal)
        async for fact in agent.stream(task.PROMPT, run_id=task.RUN):
            if isinstance(fact, TokenDelta):
                task.show(fact.text)
            elif isinstance(fact, RunParked):
                for question in await agent.pending(task.RUN):
                    task.ask_person(question.tool, question.arguments)


async def approve() -> None:
    async with SqliteJournal(task.STATE) as journal:
        agent = support(journal)
        await agent.approve(task.RUN)
        result = await agent.resume(task.RUN)
        task.finish(result.raise_for_outcome().output)


if __name__ == "__main__":
    task.main(start, approve)
