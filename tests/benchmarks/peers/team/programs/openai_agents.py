"""openai-agents: its session has what was said; the program stores who speaks, the state of a question, the answer."""

from typing import Any

from agents import Agent, RunHooks, Runner, RunState, SQLiteSession, function_tool

from tests.benchmarks.peers.team import task


@function_tool
async def find_order(order: str) -> str:
    """Find an order."""
    return await task.look_up("find_order", order)


@function_tool
async def find_parcel(order: str) -> str:
    """Find the parcel of an order."""
    return await task.look_up("find_parcel", order)


@function_tool
async def find_terms(order: str) -> str:
    """Find the terms of an order."""
    return await task.look_up("find_terms", order)


@function_tool(needs_approval=True)
def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return task.refund(order, euros)


class Active(RunHooks[None]):
    async def on_agent_start(self, context: Any, agent: Agent[None]) -> None:
        task.AGENT.write_text(agent.name)


refunds = Agent[None](
    name="refunds", model=task.MODEL, instructions=task.INSTRUCTIONS["refunds"], tools=[refund]
)
delivery = Agent[None](
    name="delivery",
    model=task.MODEL,
    instructions=task.INSTRUCTIONS["delivery"],
    tools=[find_order, find_parcel, find_terms],
    handoffs=[refunds],
)
triage = Agent[None](
    name="triage", model=task.MODEL, instructions=task.INSTRUCTIONS["triage"], handoffs=[delivery]
)
TEAM = {agent.name: agent for agent in (triage, delivery, refunds)}


async def main(number: int, prompt: str) -> str:
    if task.RESULTS[number].exists():
        return task.RESULTS[number].read_text()
    session = SQLiteSession(task.CASE, "session")
    said = [item for item in await session.get_items() if item.get("role") == "user"]
    agent = TEAM[task.AGENT.read_text()] if task.AGENT.exists() else triage
    work: Any = [] if len(said) == number else prompt
    if task.STATE.exists():
        work = await RunState.from_string(triage, task.STATE.read_text())
    while True:
        if isinstance(work, RunState):
            for question in work.get_interruptions():
                if await task.ask_person(question.name, question.arguments):
                    work.approve(question)
                else:
                    work.reject(question)
        result = await Runner.run(agent, work, session=session, hooks=Active())
        if not result.interruptions:
            task.RESULTS[number].write_text(result.final_output)
            task.STATE.unlink(missing_ok=True)
            return result.final_output
        work = result.to_state()
        task.STATE.write_text(work.to_string())


if __name__ == "__main__":
    task.main(main)
