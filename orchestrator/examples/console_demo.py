"""The last part of `make run`: runs of a travel desk in the console, with a question that a browser can answer.

The runs are in a journal in a temporary folder, and an engine of this process continues them. The model is a test
double, so the demonstration needs no network and no key.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.console.access import SignInCode
from orchestrator.console.app import console_app
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import ConfigError
from orchestrator.examples.terminal import say
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.runs.runs import Runs
from orchestrator.tools.spec import tool
from orchestrator.web.server import serve

PORT = 8484
LIMITS = Limits(
    max_iterations=12, max_input_tokens=64_000, max_output_tokens=12_000, max_tool_calls=20, max_seconds=120
)
LATENCY = 0.12
"""Seconds that the model thinks, so that a timeline has something to show."""
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("get_user_details", {"user_id": "omar_davis_3817"}),
    ("get_reservation_details", {"reservation_id": "2FBBAH"}),
    ("get_reservation_details", {"reservation_id": "JG7FMM"}),
    ("ask_fare_rules", {"task": "May the cabin of a booked flight be changed?"}),
    (
        "update_reservation_flights",
        {
            "reservation_id": "2FBBAH",
            "cabin": "economy",
            "flights": [
                {"date": "2026-05-28", "flight_number": "HAT080"},
                {"date": "2026-05-30", "flight_number": "HAT148"},
            ],
            "payment_id": "gift_card_3481935",
        },
    ),
)


@tool(effect="pure")
async def get_user_details(user_id: str) -> str:
    """Return the profile of a user and the ids of their reservations."""
    await asyncio.sleep(LATENCY / 2)
    return json.dumps({"user": user_id, "reservations": ["2FBBAH", "JG7FMM"], "gift_cards": ["3481935"]})


@tool(effect="pure", errors="return")
async def get_reservation_details(reservation_id: str) -> str:
    """Return flights, cabin and passengers of a reservation."""
    await asyncio.sleep(LATENCY / 3)
    if reservation_id == "LOST":
        raise LookupError("no reservation has this id")
    return json.dumps({"reservation": reservation_id, "cabin": "business", "flights": ["HAT080", "HAT148"]})


@tool(effect="irreversible", approval=True)
async def update_reservation_flights(
    reservation_id: str, cabin: str, flights: list[dict[str, str]], payment_id: str
) -> str:
    """Change the flights or the cabin of a reservation; the difference is charged or refunded to payment_id."""
    await asyncio.sleep(LATENCY)
    return (
        f"{reservation_id} is now {cabin} on {len(flights)} flights; 312 EUR were refunded to {payment_id}."
    )


def _answered(request: Request) -> int:
    """Return the number of calls that have a result, so that a resumed run continues as before."""
    return sum(message.role == "tool" for message in request.messages)


async def _support(request: Request) -> Response:
    await asyncio.sleep(LATENCY)
    done, text = _answered(request), request.messages[-1].text
    wanted = 5 if "downgrade" in request.messages[0].text else len(request.messages[0].text) % 4
    usage = Usage(1_900 + 420 * done, 60 + 7 * done, cost=0.004 + 0.001 * done)
    if done < wanted:
        name, arguments = _CALLS[done]
        return Response(None, (ToolCall(f"call-{done}", name, json.dumps(arguments)),), usage=usage)
    return Response(f"Done. {text[:120]}", usage=usage)


async def _stuck(request: Request) -> Response:
    await asyncio.sleep(LATENCY / 2)
    arguments = json.dumps({"reservation_id": "LOST"})
    call = ToolCall(f"call-{_answered(request)}", "get_reservation_details", arguments)
    return Response(None, (call,), usage=Usage(1_400, 30, cost=0.003))


async def _rules(request: Request) -> Response:
    del request
    await asyncio.sleep(LATENCY)
    text = "Cabin changes are allowed for the whole reservation. Refunds go to the original payment method."
    return Response(text, usage=Usage(860, 24, cost=0.001))


class _Model(FunctionLLM):
    currency = "EUR"
    """Of the costs that it reports."""


def agents(journal: Journal) -> dict[str, Agent[Any, Any]]:
    """Return the agents of the travel desk."""
    rules = Agent(
        _Model(_rules, model="fares-small"),
        name="fare-rules",
        journal=journal,
        observers=(),
        limits=LIMITS,
    )
    ask = rules.as_tool("ask_fare_rules", "Ask about the rules of a fare.")
    tools = [get_user_details, get_reservation_details, ask, update_reservation_flights]
    support = Agent(
        _Model(_support, model="desk-large"),
        name="travel-desk",
        journal=journal,
        observers=(),
        limits=LIMITS,
        tools=tools,
    )
    stuck = Agent(
        _Model(_stuck, model="desk-small"),
        name="lost-luggage",
        journal=journal,
        observers=(),
        limits=LIMITS,
        tools=[get_reservation_details],
    )
    return {"travel-desk": support, "lost-luggage": stuck}


async def fill(team: dict[str, Agent[Any, Any]]) -> None:
    """Run the runs that have ended when the console opens."""
    support, stuck = team["travel-desk"], team["lost-luggage"]
    prompts = ("Where is my seat?", "Which meals are there on board?", "Add a bag to my flight, please.")
    ended = [
        support.run(prompt, run_id=f"question-{number}", tags={"tenant": "acme", "channel": "chat"})
        for number, prompt in enumerate(prompts * 3, 1)
    ]
    several = [
        stuck.run("Find reservation LOST.", run_id="lost-bag-17", tags={"tenant": "acme"}),
        stuck.run("Find reservation LOST.", run_id="lost-bag-18", limits=Limits(max_iterations=2)),
    ]
    await asyncio.gather(*ended, *several)


async def _demonstrate(folder: Path) -> None:
    async with SqliteJournal(folder / "journal.db") as journal:
        team = agents(journal)
        await fill(team)
        async with LocalEngine(team, name="demonstration", recover="resume") as engine:
            await engine.submit(
                "Please downgrade my flights to economy.",
                agent="travel-desk",
                run_id="downgrade-omar",
                tags={"tenant": "acme", "channel": "chat"},
            )
            code = SignInCode()
            graphs = {LLM_LOOP.name: LLM_LOOP}
            app = console_app(
                Runs(journal), code=code, operate=True, graphs=graphs, title="the demonstration's journal"
            )

            def opened(url: str) -> None:
                say(f"\nThe same machine in the browser, live: {url}sign-in#{code.value}")
                say("One run waits for your answer. Ctrl-C stops the console.")

            try:
                await serve(app, "127.0.0.1", PORT, asyncio.Event(), opened)
            except ConfigError:  # another console runs
                await serve(app, "127.0.0.1", 0, asyncio.Event(), opened)


def main() -> int:
    """Serve the console of the demonstration until Ctrl-C."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(_demonstrate(Path(folder)))
        except KeyboardInterrupt:
            say("")
    return 0


if __name__ == "__main__":
    sys.exit(main())
