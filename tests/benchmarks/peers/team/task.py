"""What every program shares: the agents' instructions, the services of the shop, and the person who is asked.

Standard library only: the interpreter of a peer imports this too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

MODEL = "gpt-5-mini"
INSTRUCTIONS = {
    "triage": "You find out which department can help, and hand the customer over.",
    "delivery": "You look at orders and parcels. You hand claims for money over.",
    "refunds": "You pay refunds, and answer questions about them.",
}
"""Triage hands over to delivery, and delivery to refunds."""
PROMPTS = ("Order A-17 arrived broken. I want my money back.", "When does the money arrive?")
"""The first and the second message of the customer."""
CASE = "case-1"
STATE = Path("state")
"""Where a program stores what another process needs."""
AGENT = Path("agent")
"""Where a program stores which agent has the conversation, if its library does not."""
RESULTS = {1: Path("result-1"), 2: Path("result-2")}
"""Where a program stores its answer to each message, if its library does not."""
FOUND = {
    "find_order": "order A-17: a lamp for 40 EUR",
    "find_parcel": "the parcel of A-17 was damaged on its way",
    "find_terms": "what arrives broken is refunded",
}
"""The lookups, and what each finds."""
REFUNDED = "refunded 40 EUR of order A-17"
LEDGER = Path("ledger")
LOOKUPS = Path("lookups")
_MOMENT = 0.5
"""Seconds that a library has to store the result of a lookup while another one still works."""

_started = asyncio.Barrier(len(FOUND))
_returned: list[str] = []
_others_returned = asyncio.Event()


async def look_up(name: str, order: str) -> str:
    """Look something up: this changes nothing.

    The last lookup dies, where it must, after the others have returned. In an undisturbed process no lookup returns
    before all of them have started.
    """
    _note(LOOKUPS, f"{name} {order}")
    if os.environ.get("TOGETHER"):
        await asyncio.wait_for(_started.wait(), 10)
    if os.environ.get("STOP") == "lookup" and name == list(FOUND)[-1]:
        await _others_returned.wait()
        await asyncio.sleep(_MOMENT)
        stop("lookup")
    _returned.append(name)
    if len(_returned) == len(FOUND) - 1:
        _others_returned.set()
    return FOUND[name]


def refund(order: str, euros: int) -> str:
    """Pay money back, once for each line of the ledger."""
    _note(LEDGER, f"{order} {euros}")
    stop("payment")
    return REFUNDED


def stop(place: str) -> None:
    """Kill this process if it is to die at this place."""
    if os.environ.get("STOP") == place:
        os.kill(os.getpid(), signal.SIGKILL)


async def ask_person(tool: str, arguments: object, why: str = "approval") -> bool | str:
    """Ask whether a call may run, and return the answer of a person who reads the question.

    Asked for an approval, the person approves. Told anything else, such as that the call may have run before a crash,
    the person looks into the ledger, and returns the result that is there.
    """
    _print(question=[tool, arguments, why])
    stop("question")
    return REFUNDED if LEDGER.exists() and why != "approval" else True


def main(program: Callable[[int, str], Awaitable[str]]) -> None:
    """Answer the message of a number (`1` or `2` on the command line) in the current folder, or take the rounds.

    `program` gets the number of the message and its text, and returns the answer.
    """
    if sys.argv[1:] == ["rounds"]:
        asyncio.run(_rounds(program))
    else:
        asyncio.run(_message(program, int(sys.argv[1])))


async def _message(program: Callable[[int, str], Awaitable[str]], number: int) -> None:
    _print(answer=await program(number, PROMPTS[number - 1]))
    stop("end")


async def _rounds(program: Callable[[int, str], Awaitable[str]]) -> None:
    """Do the work in each folder that comes on standard input, and show the µs of CPU that it took."""
    for line in sys.stdin:
        os.chdir(line.rstrip("\n"))
        began = time.process_time()
        await _message(program, 1)
        _print(cpu_us=(time.process_time() - began) * 1e6)


def _note(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as written:
        written.write(f"{line}\n")


def _print(**line: object) -> None:
    print(json.dumps(line), flush=True)
