"""What every program shares: the work, its types, its person, and what a terminal would show.

Standard library and pydantic only: the interpreter of a peer imports this too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

MODEL = "gpt-5-mini"
INSTRUCTIONS = "You are the support agent of a shop. Refund what arrived broken."
PROMPT = "Order A-17 arrived broken."
RUN = "case-1"
TOKENS = 1_000
"""The limit on tokens of the run."""
STATE = Path("state")
"""Where a program stores what another process needs."""
RESULT = Path("result")
"""Where a program stores its output if its library does not."""


class Receipt(BaseModel):
    """The typed output."""

    order: str
    euros: int
    message: str


RECEIPT = Receipt(order="A-17", euros=40, message="You get 40 EUR back.")


@dataclass
class Shop:
    """The typed dependencies: a service of the host."""

    ledger: Path = Path("ledger")

    def price(self, order: str) -> str:
        """Look a price up: this changes nothing."""
        stop("pure tool")
        return f"order {order} was 40 EUR"

    def refund(self, order: str, euros: int) -> str:
        """Pay money back, once for each line of the ledger."""
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{order} {euros}\n")
        stop("irreversible tool")
        return f"refunded {euros} EUR of order {order}"


def stop(place: str) -> None:
    """Kill this process if it is to die at this place."""
    if os.environ.get("STOP") == place:
        os.kill(os.getpid(), signal.SIGKILL)


def show(text: str) -> None:
    """Show text of the model as it arrives."""
    if text:
        _print(text=text)


async def ask_person(tool: str, arguments: object, why: str = "approval") -> bool | str:
    """Ask whether a call may run, and return the answer of a person who reads the question.

    Asked for an approval, the person approves. Told anything else, such as that the call may have run before a crash,
    the person looks into the ledger, and returns the result that is there.
    """
    _print(question=[tool, arguments, why])
    stop("question")
    paid = Shop().ledger.exists() and Shop().ledger.read_text(encoding="utf-8")
    return f"refunded 40 EUR of order {RECEIPT.order}" if paid and why != "approval" else True


def finish(receipt: object) -> None:
    """Show the typed output."""
    if not isinstance(receipt, Receipt):
        raise TypeError(f"the output is a {type(receipt).__name__}")
    _print(receipt=receipt.model_dump())
    stop("end")


def main(program: Callable[[], Awaitable[None]], test: Callable[[], Awaitable[None]]) -> None:
    """Start the program, or its test (`test` on the command line), in the current folder."""

    async def carry_out() -> None:
        await (test if sys.argv[1:] == ["test"] else program)()

    asyncio.run(carry_out())


def _print(**line: object) -> None:
    print(json.dumps(line), flush=True)
