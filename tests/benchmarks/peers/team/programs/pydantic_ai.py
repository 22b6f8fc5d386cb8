"""pydantic-ai: an output type hands over; the program stores who speaks, the messages of each step, and the answer."""

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
    ModelRequest,
    RunContext,
    Tool,
    ToolOutput,
    UserPromptPart,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks

from tests.benchmarks.peers.team import task


async def find_order(order: str) -> str:
    """Find an order."""
    return await task.look_up("find_order", order)


async def find_parcel(order: str) -> str:
    """Find the parcel of an order."""
    return await task.look_up("find_parcel", order)


async def find_terms(order: str) -> str:
    """Find the terms of an order."""
    return await task.look_up("find_terms", order)


def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return task.refund(order, euros)


class Transfer(BaseModel):
    """Hand the customer over."""

    to: Literal["delivery", "refunds"]


hooks = Hooks[None]()


@hooks.on.after_node_run
async def store(context: RunContext[None], *, node: Any, result: Any) -> Any:
    task.STATE.write_bytes(ModelMessagesTypeAdapter.dump_json(context.messages))
    return result


async def ask(context: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
    answers = {
        call.tool_call_id: await task.ask_person(call.tool_name, call.args) for call in requests.approvals
    }
    return requests.build_results(approvals=answers)


MODEL = f"openai:{task.MODEL}"
triage: Agent[None, Any] = Agent(
    MODEL,
    name="triage",
    instructions=task.INSTRUCTIONS["triage"],
    output_type=ToolOutput(Transfer, name="transfer"),
    capabilities=[hooks],
)
delivery: Agent[None, Any] = Agent(
    MODEL,
    name="delivery",
    instructions=task.INSTRUCTIONS["delivery"],
    tools=[find_order, find_parcel, find_terms],
    output_type=[ToolOutput(Transfer, name="transfer"), str],
    capabilities=[hooks],
)
refunds: Agent[None, Any] = Agent(
    MODEL,
    name="refunds",
    instructions=task.INSTRUCTIONS["refunds"],
    tools=[Tool(refund, requires_approval=True)],
    capabilities=[HandleDeferredToolCalls(handler=ask), hooks],
)
TEAM: dict[str | None, Agent[None, Any]] = {agent.name: agent for agent in (triage, delivery, refunds)}


async def main(number: int, prompt: str) -> str:
    if task.RESULTS[number].exists():
        return task.RESULTS[number].read_text()
    active = task.AGENT.read_text() if task.AGENT.exists() else "triage"
    history = ModelMessagesTypeAdapter.validate_json(task.STATE.read_bytes()) if task.STATE.exists() else []
    requests = [message for message in history if isinstance(message, ModelRequest)]
    said = sum(isinstance(part, UserPromptPart) for request in requests for part in request.parts)
    result = await TEAM[active].run(None if said == number else prompt, message_history=history)
    while isinstance(result.output, Transfer):
        active = result.output.to
        task.STATE.write_bytes(result.all_messages_json())
        task.AGENT.write_text(active)
        result = await TEAM[active].run(message_history=result.all_messages())
    task.RESULTS[number].write_text(result.output)
    return result.output


if __name__ == "__main__":
    task.main(main)
