"""A shop: two tools, one of them broken, and a payment."""

import time
from pathlib import Path

from orchestrator import tool
from orchestrator.testing import FunctionLLM, ScriptedLLM, call

PRICES = {"A1": 5, "A2": 7}
DISCOUNTS = {"A2": 1}


@tool(effect="pure")
def price(item: str) -> int:
    """Return the price of an item in euros."""
    return PRICES[item]


@tool(effect="pure")
def discount(item: str) -> int:
    """Return the discount of an item in euros."""
    return DISCOUNTS[item]


@tool(effect="irreversible", approval=True)
def refund(item: str, euros: int) -> str:
    """Pay the price of an item back."""
    with Path("refunds.txt").open("a") as file:
        file.write(f"{item}: {euros} euros\n")
    return f"{euros} euros paid back"


@tool(effect="pure")
def stock(item: str) -> int:
    """Count an item; the first count takes a minute."""
    if not Path("counted").exists():
        Path("counted").touch()
        time.sleep(60)
    return 3


def clerk() -> ScriptedLLM:
    return ScriptedLLM([call(price, item="A1"), "A1 costs 5 euros."])


def helper() -> ScriptedLLM:
    return ScriptedLLM([call(discount, item="A1"), "I found no discount for A1."])


def cashier() -> ScriptedLLM:
    return ScriptedLLM([call(refund, item="A1", euros=5), "5 euros are on their way."])


def counter() -> FunctionLLM:
    """Count once; from the messages alone, so that it does not matter which process asks."""
    return FunctionLLM(
        lambda request: (
            "There are 3 of A1." if request.messages[-1].role == "tool" else call(stock, item="A1")
        )
    )
