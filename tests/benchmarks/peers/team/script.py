"""The model behind all programs: an answer for each agent, by what is in the conversation so far.

Which agent asks is read from the instructions of the request, so that the model notices a library that lets the wrong
agent speak. The form of an answer is that of `ergonomics.server`.
"""

from __future__ import annotations

import json
from typing import Any

from tests.benchmarks.peers.ergonomics.server import Answer, Call, offered
from tests.benchmarks.peers.team import task
from tests.providers.loopback import Asked

ANSWERS = ("You get 40 EUR back.", "The money arrives within three days.")
"""What the customer reads after each message."""
REFUND = {"order": "A-17", "euros": 40}
SPEAKERS = ("triage", "delivery", "delivery", "refunds", "refunds")
"""The agents that ask the model after the first message, in the order of their requests."""


def speaker(asked: Asked) -> str:
    """Return the agent whose instructions a request has."""
    said = json.dumps(asked.json.get("instructions") or _system(asked.json))
    found = [name for name, text in task.INSTRUCTIONS.items() if text in said]
    return found[0] if len(found) == 1 else f"{len(found)} agents"


def _system(body: Any) -> list[Any]:
    messages = body.get("messages") or body.get("input") or []
    return [one for one in messages if one.get("role") in ("system", "developer")]


def answer(asked: Asked) -> Answer:
    """Answer one request."""
    said = asked.body.decode()
    if task.PROMPTS[1] in said:
        return Answer((ANSWERS[1],))
    match speaker(asked):
        case "triage":
            return _transfer(asked, "delivery")
        case "delivery" if all(found in said for found in task.FOUND.values()):
            return _transfer(asked, "refunds")
        case "delivery":
            calls = (Call(name, json.dumps({"order": "A-17"}), f"call_{name}") for name in task.FOUND)
            return Answer(calls=tuple(calls))
    if task.REFUNDED in said:
        return Answer((ANSWERS[0],))
    return Answer(calls=(Call("refund", json.dumps(REFUND), "call_refund"),))


def _transfer(asked: Asked, to: str) -> Answer:
    """Hand over: each agent has a tool of its own, or one tool has the agent as its argument."""
    name = f"transfer_to_{to}"
    call = (name, "{}") if name in offered(asked.json) else ("transfer", json.dumps({"to": to}))
    return Answer(calls=(Call(*call, f"call_{to}"),))
