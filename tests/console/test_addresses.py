"""Every address and form of the console: a new route fails here until it has an example, and each is tried alike."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from starlette.routing import Mount, Route

from orchestrator import LocalEngine, MemoryJournal, Runs
from orchestrator.console import console_app
from orchestrator.console.app import HEADERS
from tests.console.client import Answer, Client, readable
from tests.console.stored import ASKS, TOKEN, agent, fill, said
from tests.console.test_security import HOSTILE, Elements, signed_in

PAGES = {
    "/": "/",
    "/rows": "/rows?shown=first",
    "/events": "/events",
    "/several": f"/several?kind=cancel&run={ASKS}",
    "/runs/{run_id:path}": f"/runs/{ASKS}",
    "/records/{run_id:path}": f"/records/{ASKS}",
    "/cases/{run_id:path}": "/cases/first",
    "/start": "/start?run=first&turn=1",
    "/inbox": f"/inbox?run={ASKS}",
    "/answers": f"/answers?kind=reject&run={ASKS}",
    "/machines": "/machines?machine=llm_loop",
    "/agents": "/agents",
    "/agents/{agent:path}": "/agents/support",
    "/health": "/health",
    "/compare": "/compare?run=first&run=second",
    "/backtest": "/backtest?max_iterations=1",
    "/{path:path}": "/nothing",
}
"""Route -> an address of it."""
FORMS = {
    "/several": (f"/several?kind=cancel&run={ASKS}", "/several", {"why": "no"}),
    "/start": ("/start?agent=support", "/start", {"input Message": "Hello."}),
    "/answer/{run_id:path}": (f"/inbox?run={ASKS}", f"/answer/{ASKS}", {"kind": "reject", "text": "no"}),
    "/answers": (f"/answers?kind=reject&run={ASKS}", "/answers", {"text": "no"}),
}
"""Route -> the page with the form, where it is sent to, and what a person fills in."""
WITHOUT_A_PERSON = {"/static/drawing.css", "/static", "/sign-in", "/sign-out"}
FOR_OPERATORS = {"/several", "/start", "/answers"}
"""Pages that are a form, and are refused to a reader."""
PARAMETERS = (
    *("q", "machine", "agent", "reason", "from", "order", "content", "state", "waiting"),
    *("run", "shown", "turn", "tag", "tool", "page", "kind", "sweep", "max_cost"),
)
"""Words of an address that pages read."""


@asynccontextmanager
async def filled_engine(journal: MemoryJournal) -> AsyncIterator[LocalEngine[Any]]:
    await fill(journal)
    async with LocalEngine({"support": agent(journal, said(text="Done."))}) as started:
        yield started


def form_of(page: Answer, action: str) -> dict[str, str]:
    """Return the hidden fields of a form."""
    part = page.text.partition(f'method="post" action="{action}"')[2].partition("</form>")[0]
    return dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', part))


async def state(runs: Runs) -> tuple[set[str], list[str]]:
    """Return what a form could change."""
    return {head.run_id for head in await runs.list()}, [one.kind for one in (await runs.get(ASKS)).unread]


def test_each_route_of_the_console_has_an_example_here(runs: Runs) -> None:
    app = console_app(runs, token=TOKEN)
    while not hasattr(app, "routes"):
        app = app._app  # type: ignore[attr-defined]
    found = {"GET": set[str](), "POST": set[str]()}
    for route in app.routes:
        assert isinstance(route, Route | Mount)
        if route.path not in WITHOUT_A_PERSON:
            assert isinstance(route, Route)
            found["GET" if "GET" in (route.methods or ()) else "POST"].add(route.path)
    assert found == {"GET": set(PAGES), "POST": set(FORMS)}, "add an example of a new route to PAGES or FORMS"


async def test_nothing_is_read_or_changed_without_a_sign_in(journal: MemoryJournal, runs: Runs) -> None:
    async with filled_engine(journal) as engine:
        before = await state(runs)
        client = Client(console_app(runs, token=TOKEN, operate=True, engine=engine))
        answers = [await client.get(page) for page in PAGES.values()]
        answers += [await client.post(target, filled) for _, target, filled in FORMS.values()]
        for answer in answers:
            assert (answer.status, answer.headers["location"], answer.body) == (303, "/sign-in", b"")
        assert await state(runs) == before


@pytest.mark.parametrize("route", FORMS)
async def test_a_form_is_taken_from_the_session_and_the_page_that_show_it_and_from_an_operator_only(
    journal: MemoryJournal, runs: Runs, route: str
) -> None:
    async with filled_engine(journal) as engine:
        page, target, filled = FORMS[route]
        client, other = await signed_in(runs, engine=engine), await signed_in(runs, engine=engine)
        good = form_of(await client.get(page), target) | filled
        before = await state(runs)
        for form, headers in (
            ({**good, "form_token": "0" * 64}, {}),
            ({name: value for name, value in good.items() if name != "form_token"}, {}),
            (good, {"origin": "http://evil.example"}),
            (good, {"origin": "null"}),
            (good, {"sec_fetch_site": "cross-site"}),
        ):
            assert (await client.post(target, form, **headers)).status == 403
        assert (await other.post(target, good)).status == 403, "the token belongs to one session"
        reader = Client(console_app(runs, token=TOKEN, engine=engine))
        await reader.post("/sign-in", {"token": TOKEN})
        own = {"form_token": (await reader.get("/")).form_token()}
        refused = await reader.post(target, good | own)
        assert (refused.status, "read-only for you" in refused.text) == (403, True)
        assert await state(runs) == before
        assert (await client.post(target, good, origin="http://127.0.0.1:8484")).status in {200, 303}
        assert await state(runs) != before, "the same form is taken when nothing is wrong with it"


async def test_a_reader_gets_no_form_on_any_page(journal: MemoryJournal, runs: Runs) -> None:
    async with filled_engine(journal) as engine:
        client = Client(readable(runs, engine=engine))
        for route, page in PAGES.items():
            if route == "/events":
                continue  # it has no end
            answer = await client.get(page)
            assert (answer.status in {400, 403}) is (route in FOR_OPERATORS), page
            assert 'method="post"' not in answer.text
            assert "Approve" not in answer.text


async def test_hostile_words_of_an_address_are_text_on_its_page_which_allows_no_inline_code(
    journal: MemoryJournal, runs: Runs
) -> None:
    note = " ".join(HOSTILE)
    async with filled_engine(journal) as engine:
        client = await signed_in(runs, engine=engine)
        for route, page in PAGES.items():
            if route == "/events":
                continue
            given = f"{page}{'&' if '?' in page else '?'}"
            targets = [given + urlencode({name: note}) for name in PARAMETERS]
            for target in (re.sub(r"\{.*\}", lambda _: quote(note, safe=""), route), *targets):
                answer = await client.get(target)
                assert answer.status < 500, target
                assert answer.headers.items() >= HEADERS.items()
                assert answer.headers["cache-control"] == "no-store"
                parsed = Elements()
                parsed.feed(answer.text)
                assert parsed.inline == [], target
                assert not re.search("[\x1b\u202e\u200b\x00\x07]", answer.text), target


async def test_a_sign_out_needs_the_token_of_its_form_and_ends_the_session(runs: Runs) -> None:
    client = await signed_in(runs)
    good = {"form_token": (await client.get("/")).form_token()}
    await client.post("/sign-out", {"form_token": "0" * 64})
    assert (await client.get("/")).status == 200
    assert (await client.post("/sign-out", good)).status == 303
    assert (await client.get("/")).headers["location"] == "/sign-in"
