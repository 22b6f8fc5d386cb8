"""Who may read and act: hosts, tokens, forms, headers, and what a run's content may do to a page."""

from __future__ import annotations

import asyncio
import logging
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from orchestrator import LocalEngine, MemoryJournal, Runs
from orchestrator.console import Actor, console_app
from orchestrator.console.access import CODE_SECONDS, SignInCode
from orchestrator.errors import ConfigError, RunUnknown
from orchestrator.providers.scripted import call
from orchestrator.runtime.service.answer import default_actor
from orchestrator.tools.spec import ToolSpec
from orchestrator.web.access import ATTEMPTS, WINDOW, AttemptLimiter
from tests.console.client import Client, readable
from tests.console.stored import ASKS, TOKEN, agent, fill, leave_asking, look, pay, said

PAGES = (
    "/",
    "/inbox",
    f"/runs/{ASKS}",
    f"/runs/{ASKS}?content=shown",
    f"/records/{ASKS}?content=shown",
    "/runs/none",
)


async def signed_in(runs: Runs, **options: object) -> Client:
    client = Client(console_app(runs, token=TOKEN, operate=True, **options))  # type: ignore[arg-type]
    assert (await client.post("/sign-in", {"token": TOKEN})).status == 303
    return client


async def digest_of(runs: Runs, run_id: str = ASKS) -> str:
    [question] = await runs.pending(run_id)
    return question.digest


# ---- headers and hosts ----


async def test_every_answer_has_a_policy_without_inline_code_and_is_not_stored(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    for page in (*PAGES, "/static/console.css", "/static/nothing"):
        answer = await client.get(page)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert ("no-store" in answer.headers["cache-control"]) is ("/static/" not in page)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "", "[", "localhost@evil"]
)
async def test_another_host_name_is_refused_so_that_dns_rebinding_reads_nothing(
    runs: Runs, host: str
) -> None:
    answer = await Client(readable(runs), host=host).get("/")
    assert answer.status == 400
    assert "--allow-host" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8484", "LOCALHOST", "[::1]:9", "console.example:443"])
async def test_the_names_of_this_machine_and_allowed_ones_are_answered(runs: Runs, host: str) -> None:
    app = readable(runs, hosts=["127.0.0.1", "localhost", "::1", "console.example"])
    assert (await Client(app, host=host).get("/")).status == 200


# ---- tokens ----


async def test_wrong_tokens_of_an_address_are_limited_and_the_right_one_always_passes(runs: Runs) -> None:
    client = Client(console_app(runs, token=TOKEN))
    for _ in range(ATTEMPTS):
        assert (await client.post("/sign-in", {"token": "wrong"})).status == 403
    for _ in range(3):
        refused = await client.post("/sign-in", {"token": "wrong"})
        assert refused.status == 429
        assert 0 < int(refused.headers["retry-after"]) <= WINDOW
        assert refused.headers["connection"] == "close"
        assert (await client.post("/sign-in", {"token": TOKEN})).status == 303


def test_wrong_tokens_are_counted_forgotten_after_the_window_and_their_addresses_are_bounded() -> None:
    now = 0.0
    limiter = AttemptLimiter(lambda: now)
    assert [limiter.fail("a") for _ in range(ATTEMPTS)] == [0.0] * ATTEMPTS
    assert limiter.fail("a") == WINDOW
    assert limiter.fail("b") == 0.0
    now = WINDOW
    assert limiter.fail("a") == 0.0
    for number in range(3_000):
        limiter.fail(str(number))
    assert limiter.wrong == ATTEMPTS + 3_003
    assert len(limiter._times) == 1_000


async def test_a_code_signs_in_one_browser_once_and_its_holder_reads_by_cookie(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    code = SignInCode()
    app = console_app(runs, code=code)
    first, second = Client(app), Client(app)
    for page in PAGES:
        assert (await first.get(page)).headers["location"] == "/sign-in"
    assert (await first.post("/sign-in", {"token": code.value})).status == 303
    assert (await first.get(f"/runs/{ASKS}")).status == 200
    again = await second.post("/sign-in", {"token": code.value})
    assert (again.status, "was used" in again.text) == (403, True)
    assert (await second.get(f"/runs/{ASKS}?content=shown")).headers["location"] == "/sign-in"
    assert (await first.get("/")).status == 200


async def test_a_code_is_valid_for_five_minutes(runs: Runs) -> None:
    now = 0.0
    code = SignInCode(lambda: now)
    client = Client(console_app(runs, code=code))
    now = CODE_SECONDS
    refused = await client.post("/sign-in", {"token": code.value})
    assert (refused.status, "older than 5 minutes" in refused.text) == (403, True)
    assert (await client.get("/")).status == 303


async def test_the_session_cookie_is_strict_and_no_script_reads_it(runs: Runs) -> None:
    answer = await Client(readable(runs)).get("/")
    assert "HttpOnly" in answer.cookies
    assert "SameSite=strict" in answer.cookies
    client = Client(console_app(runs, token=TOKEN))
    planted = dict(client.cookies)
    signed = await client.post("/sign-in", {"token": TOKEN})
    assert "HttpOnly" in signed.cookies
    assert client.cookies != planted, "a session from before the sign-in stays useless"


async def test_a_short_token_unknown_content_or_a_console_without_an_actor_is_refused(runs: Runs) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        console_app(runs, token="x" * 15)
    with pytest.raises(ConfigError, match="never, ask, always"):
        console_app(runs, content="some")  # type: ignore[arg-type]
    for options in ({}, {"operate": True}):
        with pytest.raises(ConfigError, match="nobody could read this console"):
            console_app(runs, **options)  # type: ignore[arg-type]


# ---- forms ----


async def test_a_form_of_another_site_or_without_its_token_posts_nothing(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = await signed_in(runs)
    digest = await digest_of(runs)
    page = await client.get(f"/inbox?run={ASKS}")
    good = {"form_token": page.form_token(), "kind": "approve", "call": "1:0", "digest": digest, "text": ""}
    wrong = [
        ({**good, "form_token": "0" * 64}, {}),
        ({**good, "form_token": ""}, {}),
        (good, {"origin": "http://evil.example"}),
        (good, {"origin": "null"}),
        (good, {"sec_fetch_site": "cross-site"}),
    ]
    for form, headers in wrong:
        assert (await client.post(f"/answer/{ASKS}", form, **headers)).status == 403
    other = await signed_in(runs)
    assert (await other.post(f"/answer/{ASKS}", good)).status == 403, "the token belongs to one session"
    assert len(await runs.pending(ASKS)) == 1
    assert (await client.post(f"/answer/{ASKS}", good, origin="http://127.0.0.1:8484")).status == 303
    assert await runs.pending(ASKS) == []


async def test_an_answer_names_the_whole_digest(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = await signed_in(runs)
    digest = await digest_of(runs)
    page = await client.get(f"/inbox?run={ASKS}")
    form = {"form_token": page.form_token(), "kind": "approve", "call": "1:0", "text": ""}
    for given in (digest[:8], digest[:-1], digest.upper(), f"{digest} ", ""):
        refused = await client.post(f"/answer/{ASKS}", {**form, "digest": given})
        assert (refused.status, "whole digest" in refused.text) == (400, True)
    assert len(await runs.pending(ASKS)) == 1
    assert (await client.post(f"/answer/{ASKS}", {**form, "digest": digest})).status == 303


async def test_the_hook_of_a_host_decides_who_reads_and_who_acts(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)

    def actor(request: Request) -> Actor | None:
        name = request.headers.get("x-user", "")
        return Actor(name, may_operate=name == "ann", may_read_content=name == "ann") if name else None

    client = Client(console_app(runs, actor=actor, hosts=["*"]), host="app.example", root="/console")
    assert (await client.get("/")).status == 403
    bob = await client.get(f"/runs/{ASKS}?content=shown", x_user="bob")
    assert "Pay it." not in bob.text
    assert "Pay it." not in (await client.get("/?content=shown", x_user="bob")).text
    assert 'href="/console/inbox"' in bob.text
    page = await client.get(f"/inbox?run={ASKS}", x_user="ann")
    answer = {"kind": "reject", "call": "1:0", "digest": await digest_of(runs), "text": "no"}
    form = {"form_token": page.form_token(), **answer}
    assert (await client.post(f"/answer/{ASKS}", form, x_user="bob")).status == 403
    assert (await client.post(f"/answer/{ASKS}", form, x_user="ann")).status == 303
    [posted] = (await runs.get(ASKS)).unread
    assert (posted.by, posted.kind, posted.body["why"]) == ("ann", "reject", "no")


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("PUT", {}, 405),
        ("POST", {}, 415),
        ("POST", {"content-length": "2000001"}, 413),
        ("POST", {"content-length": "5", "transfer-encoding": "chunked"}, 400),
        ("POST", {"content-length": "+5"}, 400),
        ("POST", {"content-length": "2", "content-type": "text/plain"}, 415),
    ],
)
async def test_other_methods_and_big_or_strange_forms_are_refused(
    runs: Runs, method: str, headers: dict[str, str], status: int
) -> None:
    client = await signed_in(runs)
    assert (await client.ask(method, "/several", headers, b"{}")).status == status


# ---- content ----

HOSTILE = (
    *("<script>alert(1)</script>", "</pre><style>*{display:none}</style>", '" onmouseover="alert(1)'),
    *("\x1b[31mred\x1b[0m", "\u202etxt.exe", "a\u200bb", "{{ 7 * 7 }}", "javascript:alert(1)", "\x00\x07"),
)


class Elements(HTMLParser):
    """The elements of a page, and the attributes that could do something."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (
                name.startswith("on")
                or name == "style"
                or (name in {"href", "src"} and "script:" in (value or ""))
            ):
                self.inline.append(f"{tag} {name}")
        if tag in {"style", "iframe", "object", "embed", "base"} or (
            tag == "script" and "src" not in dict(attrs)
        ):
            self.inline.append(tag)


async def test_hostile_text_of_models_and_tools_stays_visible_text(
    journal: MemoryJournal, runs: Runs
) -> None:
    note = " ".join(HOSTILE)
    run_id = "run '<script>alert(1)<script>\" %2f"
    hostile = ToolSpec("look", note, {"type": "object", "properties": {note: {"type": "string"}}}, look)
    options: dict[str, Any] = {"instructions": note, "tools": [pay, hostile]}
    await leave_asking(journal, run_id, note=note, prompt=note, name="agent.b", **options)
    client = await signed_in(runs, content="always")
    [head] = await runs.list()
    for page in ("/", "/inbox", f"/runs/{head.run_id}", f"/records/{head.run_id}"):
        answer = await client.get(page)
        assert answer.status == 200
        parsed = Elements()
        parsed.feed(answer.text)
        assert parsed.inline == [], page
        for invisible in ("\x1b", "\u202e", "\u200b", "\x00", "\x07"):
            assert invisible not in answer.text
        assert "<script>alert" not in answer.text
    reads = (
        (await client.get(f"/runs/{head.run_id}")).text.partition('id="reads"')[2].partition("</section>")[0]
    )
    assert reads.count("{{ 7 * 7 }}") == 3, "the system prompt, the description and the schema of a tool"
    inbox = (await client.get("/inbox")).text
    assert "\\u202e" in inbox
    assert "{{ 7 * 7 }}" in inbox


async def test_a_word_of_a_megabyte_is_complete_in_a_question_and_cut_in_a_transcript(
    journal: MemoryJournal, runs: Runs
) -> None:
    word = "x" * 1_000_000
    await leave_asking(journal, ASKS, note=word, prompt=word)
    client = await signed_in(runs, content="always")
    assert word in (await client.get("/inbox")).text
    page = await client.get(f"/runs/{ASKS}")
    assert len(page.body) < 200_000
    assert "Cut." in page.text


async def test_content_is_shown_on_request_only_is_logged_and_is_never_in_an_address_or_a_title(
    journal: MemoryJournal, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    private = "omar_davis_3817"
    await leave_asking(journal, ASKS, note=private, prompt=f"I am {private}.")
    client = Client(readable(runs))
    for page in ("/", f"/runs/{ASKS}", f"/records/{ASKS}"):
        assert private not in (await client.get(page)).text
    with caplog.at_level(logging.INFO, "orchestrator.console"):
        shown = await client.get(f"/runs/{ASKS}?content=shown")
        for page in ("/?content=shown", f"/rows?content=shown&shown={ASKS}"):
            assert private in (await client.get(page)).text
    assert private in shown.text
    assert private not in shown.text.split("</title>")[0]
    assert [record.message for record in caplog.records if record.name == "orchestrator.console"] == [
        f"console: content of run {ASKS} was shown to {default_actor()}",
        *[f"console: tasks of 1 runs were shown to {default_actor()}"] * 2,
    ]
    never = Client(readable(runs, content="never"))
    asked = ("/?content=shown", f"/rows?content=shown&shown={ASKS}")
    for page in ("/inbox", f"/runs/{ASKS}?content=shown", f"/records/{ASKS}?content=shown", *asked):
        assert private not in (await never.get(page)).text


async def test_an_error_page_names_the_fault_and_no_password(runs: Runs) -> None:
    answer = await Client(readable(runs)).get("/runs/nobody")
    assert answer.status == 404
    assert "nobody" in answer.text


async def test_the_transcript_of_a_run_with_a_failed_tool_is_escaped(
    journal: MemoryJournal, runs: Runs
) -> None:
    await agent(journal, said(call("look", where=HOSTILE[0])), said(text=HOSTILE[0])).run("Go.", run_id="one")
    text = (await Client(readable(runs, content="always")).get("/runs/one")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert" not in text


# ---- runs that a person starts ----


async def test_a_start_without_the_token_of_its_form_or_the_right_to_operate_starts_nothing(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    async with LocalEngine({"support": agent(journal, said(text="Done."))}) as engine:
        client = await signed_in(runs, engine=engine)
        page = await client.get("/start?agent=support")
        good = {
            "form_token": page.form_token(),
            "run_id": "a" * 32,
            "agent": "support",
            "input Message": "Hello.",
        }
        wrong: list[tuple[dict[str, str], dict[str, str]]] = [
            ({**good, "form_token": "0" * 64}, {}),
            ({**good, "form_token": ""}, {}),
            (good, {"origin": "http://evil.example"}),
            (good, {"sec_fetch_site": "cross-site"}),
        ]
        for form, headers in wrong:
            assert (await client.post("/start", form, **headers)).status == 403
        other = await signed_in(runs, engine=engine)
        assert (await other.post("/start", good)).status == 403, "the token belongs to one session"
        reader = Client(readable(runs, engine=engine))
        for path in ("/start", "/start?agent=support", "/start?run=first", "/start?run=first&turn=1"):
            refused = await reader.get(path)
            assert (refused.status, "read-only for you" in refused.text) == (403, True)
        watcher = Client(console_app(runs, token=TOKEN, engine=engine))
        await watcher.post("/sign-in", {"token": TOKEN})
        token = (await watcher.get("/")).form_token()
        refused = await watcher.post("/start", {**good, "form_token": token})
        assert (refused.status, "read-only for you" in refused.text) == (403, True)
        for page_of in ("/", "/runs/first", "/agents/support"):
            assert "/start" not in (await reader.get(page_of)).text
        before = {head.run_id for head in await runs.list()}
        for run_id in ("", "first", "A" * 32, "a" * 31, "../x", "a" * 33):
            assert (await client.post("/start", {**good, "run_id": run_id})).status == 400
        assert {head.run_id for head in await runs.list()} == before
        assert (await client.post("/start", good)).status == 303


async def test_a_person_of_a_tenant_starts_its_runs_only_and_takes_none_of_another_tenant_as_a_source(
    journal: MemoryJournal, runs: Runs
) -> None:
    async with LocalEngine({"support": agent(journal, *[said(text="Done.")] * 9)}) as engine:
        for tenant in ("acme", "other"):
            await engine.deposit("Secret words.", run_id=tenant, tenant=tenant)
        await engine.deposit("Go.", run_id="none")
        for run_id in ("acme", "other", "none"):
            while (await runs.head(run_id)).status != "ended":  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.005)
        app = console_app(runs, actor=lambda _: Actor("ann", may_operate=True, tenant="acme"), engine=engine)
        client = Client(app)
        page = await client.get("/start")
        assert "for tenant acme" in page.text
        assert 'name="tenant"' not in page.text
        form = {"form_token": page.form_token(), "agent": "support", "input Message": "Hello."}
        plain, again = (
            {**form, "run_id": "a" * 32, "tenant": "other"},
            {**form, "run_id": "b" * 32, "run": "acme"},
        )
        for given in (plain, again):
            assert (await client.post("/start", given)).status == 303
            created = (await runs.records(given["run_id"]))[0].body
            assert created["deposited"] == {"tenant": "acme"}, "a field of the form changes no tenant"
        for source in ("other", "none"):
            for path in (f"/start?run={source}", f"/start?run={source}&turn=1"):
                refused = await client.get(path)
                assert (refused.status, "another tenant" in refused.text) == (403, True)
                assert "Secret" not in refused.text
            taken = {**form, "run_id": "c" * 32, "run": source}
            assert (await client.post("/start", taken)).status == 403
        with pytest.raises(RunUnknown):
            await runs.head("c" * 32)
        anyone = Client(console_app(runs, actor=lambda _: Actor("bob", may_operate=True), engine=engine))
        form["form_token"] = (await anyone.get("/start")).form_token()
        assert (await anyone.post("/start", {**form, "run_id": "d" * 32, "run": "other"})).status == 303
        created = (await runs.records("d" * 32))[0].body
        assert created["deposited"] == {"tenant": "other"}, "the tenant of the run that is run again"


async def test_text_of_a_person_or_an_engine_stays_text_on_the_form_and_a_long_one_is_refused(
    journal: MemoryJournal, runs: Runs
) -> None:
    async with LocalEngine({"support": agent(journal, *[said(text="Done.")] * 3)}) as engine:
        client = await signed_in(runs, engine=engine)
        for text in HOSTILE:
            page = await client.get(f"/start?{urlencode({'agent': text})}")
            refused = await client.post(
                "/start",
                {"form_token": page.form_token(), "run_id": "a" * 32, "agent": "support"}
                | {"input Message": text, "tags": text, "metadata": text, "tenant": text},
            )
            assert refused.status == 422
            for answer in (page, refused):
                parsed = Elements()
                parsed.feed(answer.text)
                assert parsed.inline == [], text
                assert "<script>alert" not in answer.text
        form = {"form_token": page.form_token(), "run_id": "b" * 32, "agent": "support"}
        assert (await client.post("/start", {**form, "input Message": "x" * 2_000_001})).status == 413
        assert (await client.post("/start", {**form, **{f"f{n}": "" for n in range(5_001)}})).status == 400
        assert await runs.list() == []
        assert (await client.post("/start", {**form, "input Message": "x" * 1_000_000})).status == 303
