"""What every program shares: the work, its types, and what a terminal would show.

Standard library and pydantic only: the interpreter of a peer imports this too.
"""

from __future__ import annotations

import asyncio
import json
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
STATE = Path("state")
"""Where a program stores what another process needs."""


class Receipt(BaseModel):
    """The typed output."""

    order: str
    euros: int
    message: str


@dataclass
class Shop:
    """The typed dependencies: a service of the host."""

    ledger: Path = Path("ledger")

    def refund(self, order: str, euros: int) -> str:
        """Pay money back, once for each line of the ledger."""
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{order} {euros}\n")
        return f"refunded {euros} EUR of order {order}"


def show(text: str) -> None:
    """Show text of the model as it arrives."""
    if text:
        _print(text=text)


def ask_person(tool: str | None, arguments: object) -> None:
    """Ask whether a call may run. Nobody answers here: the process waits until it is killed."""
    _print(question=[tool, arguments])
    signal.pause()


def finish(receipt: Receipt) -> None:
    """Show the typed output."""
    if not isinstance(receipt, Receipt):
        raise TypeError(f"the output is a {type(receipt).__name__}")
    _print(receipt=receipt.model_dump())


def main(start: Callable[[], Awaitable[None]], approve: Callable[[], Awaitable[None]]) -> None:
    """Carry out the step of the command line, in the current folder."""
    step = {"start": start, "approve": approve}[sys.argv[1]]

    async def carry_out() -> None:
        await step()

    asyncio.run(carry_out())


def _print(**line: object) -> None:
    print(json.dumps(line), flush=True)
