"""The service with an agent that a test can hold: `uvicorn tests.examples.service_app:app`.

The model asks for three calls of `step`, one a turn. For a prompt that begins with `held` it answers in turn N once the
file `go-PROMPT-N` exists. `pay` makes it call a tool that needs approval. Each call of a tool, and the first request of
a run, adds a line to the file `effects`, with the id of its process; so has each response, in its header `server-pid`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.responses import HTMLResponse

from orchestrator import Agent, tool
from orchestrator.events import Observer
from orchestrator.examples.service import create_app
from orchestrator.journal.opening import StoredJournal
from orchestrator.llm.message import Request
from orchestrator.llm.run_event import RUN_EVENTS
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from tests.examples.service_client import TOKEN

FOLDER = Path(os.environ.get("SERVICE_FOLDER", "."))
STEPS = 3

Message = MutableMapping[str, Any]


def note(line: str) -> None:
    with (FOLDER / "effects").open("ab", buffering=0) as file:
        file.write(f"{line}:{os.getpid()}\n".encode())


async def answer(request: Request) -> Answer:
    prompt = next(m.text for m in request.messages if m.role == "user")
    turn = sum(m.role == "assistant" for m in request.messages)
    if turn == 0:
        note(f"{prompt}:asked")
    if prompt.startswith("pay"):
        return call("pay", to=prompt) if turn == 0 else "paid"
    while prompt.startswith("held") and not (FOLDER / f"go-{prompt}-{turn}").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # another process makes the file
    return call("step", prompt=prompt, number=turn) if turn < STEPS else f"{prompt}: done"


@tool(effect="irreversible")
def step(prompt: str, number: int) -> str:
    note(f"{prompt}:{number}")
    return f"step {number}"


@tool(effect="irreversible", approval=True)
def pay(to: str) -> str:
    note(f"{to}:pay")
    return "paid"


def agent(journal: StoredJournal, observers: list[Observer]) -> Agent:
    model = FunctionLLM(answer, model="steps")
    return Agent(model, tools=[step, pay], journal=journal, observers=observers, name="steps")


class NamedProcess:
    """Adds the header `server-pid` to each response."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"server-pid", str(os.getpid()).encode())]
            await send(message)

        await self._app(scope, receive, named)


PAGE = """<!doctype html><title>run</title><script>
const seen = {ids: [], opened: 0, closed: false}
let told = Promise.resolve()
const tell = () => {
  const body = JSON.stringify(seen)
  told = told.then(() => fetch("/seen", {method: "POST", body}).catch(() => {}))  // in order
}
const source = new EventSource("/runs/RUN/events")
source.onopen = () => { seen.opened += 1; tell() }
source.onerror = () => { seen.closed = source.readyState === EventSource.CLOSED; tell() }
for (const name of NAMES) source.addEventListener(name, event => { seen.ids.push(event.lastEventId); tell() })
</script>"""


def person(request: HttpRequest) -> str | None:
    """Who sends a request: by the header of a program, by the address of a page, or by the cookie that it sets."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    shown = (bearer, request.query_params.get("token"), request.cookies.get("token"))
    return "ann" if TOKEN in shown else None


async def page(run_id: str, response: Response) -> str:
    """The page of a user interface: it follows a run, and tells the ids that it has seen. Deltas have none."""
    response.set_cookie("token", TOKEN)
    names = json.dumps([each.__name__ for each in RUN_EVENTS if not each.__name__.endswith("Delta")])
    return PAGE.replace("RUN", run_id).replace("NAMES", names)


async def seen(request: HttpRequest) -> None:
    (FOLDER / "telling").write_bytes(await request.body())
    (FOLDER / "telling").rename(FOLDER / "seen")


app = create_app(agent, actor=person, grace=float(os.environ.get("SERVICE_GRACE", "20")), rescan=0.3)
app.add_middleware(NamedProcess)
app.add_api_route("/page/{run_id}", page, response_class=HTMLResponse)
app.add_api_route("/seen", seen, methods=["POST"])
