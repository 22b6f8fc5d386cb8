"""An agent that pays an invoice after a person has approved it. `make demo-approval` runs it."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator import Request, ToolCall, tool
from orchestrator.providers.scripted import Answer, FunctionLLM

LEDGER = "payments.txt"


def _answer(request: Request) -> Answer:
    """Answer from the messages, not from the number of requests, so that a resumed run continues as before."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"Done: {last.text}"
    number = "".join(one for one in last.text if one.isdecimal()) or "1"
    return ToolCall("call-1", "pay", json.dumps({"invoice": int(number), "euros": 120}))


def model() -> FunctionLLM:
    """Return the model: a test double, so that the demonstration needs no network and no key."""
    return FunctionLLM(_answer, model="bookkeeper")


@tool(effect="irreversible", approval=True)
def pay(invoice: int, euros: int) -> str:
    """Pay an invoice: append a line to payments.txt."""
    with Path(LEDGER).open("a", encoding="utf-8") as ledger:
        ledger.write(f"invoice {invoice}: {euros} EUR\n")
    return f"invoice {invoice} is paid ({euros} EUR)."
