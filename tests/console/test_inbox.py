"""The inbox above one page: counts, pages, filters, what a row says, who else looks, and one answer to several."""

from __future__ import annotations

import html
import re
import time
from typing import Any

import pytest

from orchestrator import MemoryJournal, Runs, tool
from orchestrator.console import Actor, console_app
from orchestrator.console.inbox_page import left_out, telling_arguments
from orchestrator.console.pages import LOOKS, Viewers
from orchestrator.kernel.journal import Draft
from orchestrator.machines.question import WHY, Question
from orchestrator.runtime.runs.outline import WaitingCall
from tests.console.client import Client, readable
from tests.console.stored import leave_asking


@tool(effect="idempotent", approval=True)
async def reserve(seat: int = 1, note: str = "") -> str:
    """Reserve a seat."""
    return f"reserved {seat}{note}"


def operating(runs: Runs, name: str = "ann", **rights: Any) -> Client:
    return Client(console_app(runs, actor=lambda _: Actor(name, **{"may_operate": True, **rights})))


def listed(page: str) -> list[str]:
    return re.findall(r'<div class="wait" id="asks-([\w-]+)"', page)


async def test_more_questions_than_a_page_has_are_counted_and_reached_page_by_page(
    journal: MemoryJournal, runs: Runs
) -> None:
    names = [f"r{number:03}" for number in range(230)]
    for name in names:
        await leave_asking(journal, name)
    client = Client(readable(runs))
    found: list[str] = []
    for number in range(1, 6):
        page = (await client.get(f"/inbox?page={number}")).text
        assert "230 runs wait for a person" in page
        assert '>230<span class="vh"> waiting' in page, "the badge has the same number"
        found += listed(page)
    assert found == names
    assert "201 to 230 of 230" in page
    assert 'rel="prev"' in page
    assert 'rel="next"' not in page
    assert listed((await client.get("/inbox?page=99")).text) == names[200:], "the last page"
    assert listed((await client.get("/inbox?page=-1")).text) == names[:50]
    assert len((await client.get("/inbox")).body) < 100_000


async def test_the_list_is_filtered_by_agent_tool_tag_and_age(journal: MemoryJournal, runs: Runs) -> None:
    await leave_asking(journal, "first")
    await leave_asking(journal, "second", name="travel", tools=[reserve], tool="reserve")
    client = Client(readable(runs))
    for query, expected in {
        "": ["first", "second"],
        "?agent=travel": ["second"],
        "?tool=pay": ["first"],
        "?tool=reserve&agent=support": [],
        "?tag=team%3Dops": ["first", "second"],
        "?tag=team%3Dsales": [],
        "?tag=team": ["first", "second"],  # no filter
        "?age=1+hour": [],
        "?age=never": ["first", "second"],  # no filter
    }.items():
        page = (await client.get(f"/inbox{query}")).text
        assert listed(page) == expected, query
        assert f"{len(expected)} run{'' if len(expected) == 1 else 's'} wait" in page, query


async def test_a_row_says_what_is_asked_by_whom_since_when_and_until_when(
    journal: MemoryJournal, runs: Runs
) -> None:
    await leave_asking(journal, "one", note="rent <May>")
    await leave_asking(journal, "two", note="rent <June>")
    page = (await operating(runs).get("/inbox")).text
    row = html.unescape(re.sub(r"<[^>]+>", " ", page.split('id="asks-two">')[1].split("</div>")[0]))
    words = " ".join(row.split())
    assert re.fullmatch(
        r"pay (now|\d+ s ago) note rent <June> amount 7 support two team=ops expires in 7 d", words
    ), words


@pytest.mark.parametrize(
    ("rights", "content", "shown"),
    [
        ({"may_operate": True, "may_read_content": False}, "never", True),
        ({"may_operate": False}, "ask", True),
        ({"may_operate": False}, "never", False),
        ({"may_operate": False, "may_read_content": False}, "always", False),
    ],
)
async def test_arguments_are_shown_to_who_may_decide_or_read_contents(
    journal: MemoryJournal, runs: Runs, rights: dict[str, Any], content: Any, shown: bool
) -> None:
    await leave_asking(journal, "asks", note="omar_davis")
    client = Client(console_app(runs, actor=lambda _: Actor("ann", **rights), content=content))
    page = (await client.get("/inbox")).text
    assert page.count("omar_davis") == (3 if shown else 0), "in the row, as arguments and as canonical line"


def test_the_arguments_that_differ_between_calls_of_a_tool_are_the_telling_ones() -> None:
    def calls(*texts: str) -> list[WaitingCall]:
        return [WaitingCall("1:0", "pay", "approval", "", text, 0.0) for text in texts]

    assert telling_arguments(calls('{"a":1,"b":"x","c":true,"d":2}')) == [
        [("a", "1"), ("b", "x"), ("c", "true")]
    ]
    assert telling_arguments(calls('{"a":1,"b":2,"c":3,"d":4}', '{"a":1,"b":2,"c":3,"d":5}')) == [
        [("d", "4"), ("a", "1"), ("b", "2")],
        [("d", "5"), ("a", "1"), ("b", "2")],
    ]
    assert telling_arguments(calls('{"list":[1],"map":{},"empty":"","none":null,"zero":0}')) == [
        [("zero", "0")]
    ]
    assert telling_arguments(calls("", "[1]", "no JSON")) == [[], [], []]


async def test_a_row_and_the_question_say_who_else_looks_at_it(journal: MemoryJournal, runs: Runs) -> None:
    await leave_asking(journal, "asks")
    await leave_asking(journal, "other")
    name = "ann"
    app = console_app(runs, actor=lambda _: Actor(name, may_operate=True))
    ann, bob = Client(app), Client(app)
    await ann.get("/inbox?run=asks")
    assert "also" not in (await ann.get("/inbox?run=asks")).text, "nobody is told of themselves"
    name = "bob"
    page = (await bob.get("/inbox?run=asks")).text
    assert "ann also looks at it" in page
    assert "<b>ann</b> also looks at this run." in page
    page = (await bob.get("/inbox?run=other")).text
    assert page.count("ann also looks") == 1, "in the row of the other run"


def test_a_person_in_two_browsers_is_named_once() -> None:
    viewers = Viewers()
    for session, name in (("1", "eve"), ("2", "ann"), ("3", "eve")):
        viewers.look("r", session, name)
    assert viewers.others("r", "4") == ["ann", "eve"]
    assert viewers.others("r", "1") == ["ann", "eve"]


def test_who_has_left_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    viewers = Viewers()
    viewers.look("r", "session", "ann")
    now += LOOKS - 1
    assert viewers.others("r", "another") == ["ann"]
    assert viewers.others("r", "session") == viewers.others("another", "another") == []
    now += 1
    assert viewers.others("r", "another") == []


async def test_the_last_page_of_the_list_reads_no_run_of_the_pages_before(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        lease = await journal.create(f"asks-{number:03}", "me", {"graph": "g"})
        journal.append(lease, [Draft("parked", {"reason": "approval", "tools": ["pay"]})])
        await journal.release(lease)
    read: list[str] = []
    heads = journal.runs

    async def noted(**conditions: Any) -> Any:
        async for head in heads(**conditions):
            read.append(head.run_id)
            yield head

    monkeypatch.setattr(journal, "runs", noted)
    page = (await operating(runs).get("/inbox?page=3")).text
    assert listed(page) == [f"asks-{number:03}" for number in range(100, 120)]
    assert "101 to 120 of 120" in page
    assert {*read} == {f"asks-{number:03}" for number in range(100, 120)}


# ---- several at once ----


async def test_several_calls_are_rejected_with_one_reason_each_for_its_digest(
    journal: MemoryJournal, runs: Runs
) -> None:
    for name in ("one", "two"):
        await leave_asking(journal, name, note=name)
    client = operating(runs)
    page = await client.get("/answers?kind=reject&run=one&run=two")
    questions = [(await runs.pending(name))[0] for name in ("one", "two")]
    for question in questions:
        assert f'name="digest" value="{question.digest}"' in page.text
        assert (
            html.escape(f'"note": "{question.arguments.split(chr(34))[-2]}"').replace("&quot;", "&#34;")
            in page.text
        )
    form: dict[str, object] = {
        "form_token": page.form_token(),
        "kind": "reject",
        "run": ["one", "two"],
        "call": [question.key for question in questions],
        "digest": [questions[0].digest, "0" * 64],
    }
    assert (await client.post("/answers", form)).status == 400, "the models read a reason"
    assert [len(await runs.pending(name)) for name in ("one", "two")] == [1, 1]
    done = await client.post("/answers", {**form, "text": "not this month"})
    assert done.text.count("<td>rejected</td>") == 1
    assert "not posted: " in done.text, "the digest of another call"
    [posted] = (await runs.get("one")).unread
    assert (posted.kind, posted.by, posted.body["why"]) == ("reject", "ann", "not this month")
    assert (await runs.get("two")).unread == []


async def test_only_calls_that_can_be_taken_back_are_approved_together(
    journal: MemoryJournal, runs: Runs
) -> None:
    await leave_asking(journal, "money")
    await leave_asking(journal, "seat", name="travel", tools=[reserve], tool="reserve")
    client = operating(runs)
    page = await client.get("/answers?kind=approve&run=money&run=seat")
    assert "Approve 1 call?" in page.text
    assert "its effect is irreversible" in page.text
    money, seat = [(await runs.pending(name))[0] for name in ("money", "seat")]
    assert seat.digest in page.text
    assert money.digest not in page.text
    both = {  # a form that no page of ours has
        "form_token": page.form_token(),
        "kind": "approve",
        "run": ["money", "seat"],
        "call": [money.key, seat.key],
        "digest": [money.digest, seat.digest],
    }
    done = await client.post("/answers", both)
    assert "not posted: its effect is irreversible; answer it by itself" in done.text
    assert done.text.count("<td>approved</td>") == 1
    assert (await runs.get("money")).unread == []
    assert [one.kind for one in (await runs.get("seat")).unread] == ["approve"]
    again = await client.post("/answers", both)
    assert "<td>was approved before</td>" in again.text
    assert len((await runs.get("seat")).unread) == 1


@pytest.mark.parametrize("why", WHY)
@pytest.mark.parametrize("effect", ["pure", "idempotent", "compensable", "irreversible", ""])
@pytest.mark.parametrize(
    ("arguments", "expires_at"), [("{}", 0.0), ("x" * 20_001, 0.0), ("{}", 9.0), ("{}", 11.0)]
)
def test_what_is_answered_together(why: str, effect: str, arguments: str, expires_at: float) -> None:
    question = Question("1:0", "t", arguments, "0" * 64, why, expires_at, effect=effect)
    readable_in_time = len(arguments) < 20_000 and expires_at != 9.0
    approved = why == "approval" and effect in {"pure", "idempotent", "compensable"}
    assert (left_out("approve", question, 10.0) == "") is (readable_in_time and approved)
    assert (left_out("reject", question, 10.0) == "") is (
        readable_in_time and why in {"approval", "input", "plan"}
    )


async def test_the_forms_for_several_answers_refuse_who_may_not_operate_and_broken_forms(
    journal: MemoryJournal, runs: Runs
) -> None:
    await leave_asking(journal, "asks")
    [question] = await runs.pending("asks")
    reader, client = Client(readable(runs)), operating(runs)
    assert "checkbox" not in (await reader.get("/inbox")).text
    assert (await reader.get("/answers?kind=reject&run=asks")).status == 400
    token = {"form_token": (await client.get("/answers?kind=reject&run=asks")).form_token()}
    form = {"kind": "reject", "run": "asks", "call": question.key, "digest": question.digest, "text": "no"}
    assert (await client.post("/answers", form)).status == 403, "without its token"
    assert (await reader.post("/answers", {**token, **form})).status == 403
    many = {"run": ["asks"] * 501, "call": ["1:0"] * 501, "digest": [question.digest] * 501}
    broken_forms: list[dict[str, object]] = [
        {"kind": "respond"},
        {"run": []},
        {"run": ["asks", "asks"]},
        {"digest": question.digest[:12]},
        {**many},
    ]
    for broken in broken_forms:
        assert (await client.post("/answers", {**token, **form, **broken})).status == 400, broken
    for query in ("kind=approve", "kind=respond&run=asks", "kind=reject&" + "run=asks&" * 51):
        assert (await client.get(f"/answers?{query}")).status == 400, query
    assert (await client.get("/answers?kind=reject&run=nobody")).status == 404
    assert (await runs.get("asks")).unread == []
    unknown = await client.post("/answers", {**token, **form, "run": "nobody"})
    assert "not posted: " in unknown.text
