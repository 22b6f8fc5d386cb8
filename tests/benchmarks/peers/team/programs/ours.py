"""Ours: the journal has the conversation, the agent that drives it, and the question."""

from orchestrator import Agent, Question, SqliteJournal, SqliteMemory, tool
from tests.benchmarks.peers.team import task


@tool(effect="pure")
async def find_order(order: str) -> str:
    """Find an order."""
    return await task.look_up("find_order", order)


@tool(effect="pure")
async def find_parcel(order: str) -> str:
    """Find the parcel of an order."""
    return await task.look_up("find_parcel", order)


@tool(effect="pure")
async def find_terms(order: str) -> str:
    """Find the terms of an order."""
    return await task.look_up("find_terms", order)


@tool(approval=True)
def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return task.refund(order, euros)


async def ask(question: Question) -> bool | str:
    return await task.ask_person(question.tool, question.arguments, question.why)


MODEL = f"openai:{task.MODEL}"
refunds = Agent(MODEL, name="refunds", instructions=task.INSTRUCTIONS["refunds"], tools=[refund])
delivery = Agent(
    MODEL,
    name="delivery",
    instructions=task.INSTRUCTIONS["delivery"],
    tools=[find_order, find_parcel, find_terms],
    handoffs=[refunds],
)
triage = Agent(MODEL, name="triage", instructions=task.INSTRUCTIONS["triage"], handoffs=[delivery], ask=ask)


async def main(number: int, prompt: str) -> str:
    async with SqliteJournal(task.STATE) as journal:
        agent = triage.replace(journal=journal, memory=SqliteMemory("memory"))
        run = f"{task.CASE}.{number}"
        result = await agent.run(prompt, run_id=run, conversation_id=task.CASE, if_exists="resume")
        return result.raise_for_outcome().output


if __name__ == "__main__":
    task.main(main)
