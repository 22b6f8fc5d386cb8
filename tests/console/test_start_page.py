"""Runs that a person starts in an engine from the console: with an input, again, and from a turn."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, LocalEngine, MemoryJournal, Runs, tool
from orchestrator.cli.shipped import SHIPPED
from orchestrator.console import Actor, console_app
from orchestrator.console.start_page import not_forked, not_repeated
from orchestrator.engines import engine_directory
from orchestrator.engines.engine_directory import STARTED, Registration
from orchestrator.evaluation import load_cases
from orchestrator.journal.address import address_of
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.journal import Draft, Record, RunHead, write_records
from orchestrator.llm.message import Request
from orchestrator.llm.port import SystemClock
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.rlm import Rlm
from orchestrator.runtime.llm_loop.hosting import PROMPT
from orchestrator.runtime.runs.result import FORKED_FROM, FORKED_TURN
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import RunContext, ToolContext
from tests.console.client import Answer, Client
from tests.console.stored import leave_planned, look, said
from tests.runtime.pipeline_stage import Stages


@tool(effect="pure")
async def whose(context: ToolContext[dict[str, str]]) -> str:
    """Tell whose run it is."""
    return context.deps["user"]


@tool(effect="irreversible")
async def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


def echo(request: Request) -> Any:
    """Answer with the last message of the user; look first where the user asks to."""
    last = request.messages[-1]
    if last.role == "user" and "look" in last.text:
        return said(
            call("look", where="here"), call("refund", amount=7) if "refund" in last.text else call("look")
        )
    users = [message.text for message in request.messages if message.role == "user"]
    return said(text=f"{request.messages[0].text}|{'|'.join(users)}")


def support(journal: Any, instructions: str = "Help.", **options: Any) -> Agent:
    """An agent whose answer has its instructions and the messages of the user."""
    options = {"tools": [look], "observers": (), "name": "support", **options}
    return Agent(FunctionLLM(echo), journal=journal, instructions=instructions, **options)


def actor(**rights: Any) -> Any:
    return lambda _: Actor("mara", **{"may_operate": True, **rights})


async def test_a_run_whose_parents_are_in_a_circle_is_looked_at_once() -> None:
    """Only a damaged journal has them."""

    class Circle(MemoryJournal):
        async def head(self, run_id: str) -> RunHead:
            return replace(await super().head(run_id), parent_run_id="b" if run_id == "a" else "a")

    journal = Circle()
    for run_id in ("a", "b"):
        await support(journal).run("go", run_id=run_id)
    client = Client(console_app(Runs(journal), actor=actor()))
    async with asyncio.timeout(20):
        assert (await client.get("/start?run=a")).status == 200


def fields(page: Answer) -> dict[str, str]:
    """Return the fields of the form that starts a run, as the browser sends them untouched."""
    [form] = re.findall(
        r'<form class="card gap" method="post" action="/start">.*?</form>', page.text, re.DOTALL
    )
    found = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form))
    found |= dict(re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL))
    return {name: html.unescape(value) for name, value in found.items()}


async def started(client: Client, form: dict[str, str]) -> str:
    """Send a form; return the id of its run."""
    answer = await client.post("/start", form)
    assert answer.status == 303, answer.text
    assert answer.headers["location"] == f"/runs/{form['run_id']}"
    return form["run_id"]


async def ended(runs: Runs, run_id: str) -> list[Record]:
    """Return the records of a run, after its end."""
    # Another engine may end it, so the journal has no event to wait for.
    while (await runs.head(run_id)).status != "ended":  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return await runs.records(run_id)


async def output(runs: Runs, run_id: str) -> Any:
    await ended(runs, run_id)
    return (await runs.result(run_id)).output


async def ids(runs: Runs) -> set[str]:
    return {head.run_id for head in await runs.list()}


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return (
        tmp_path / "journal.db"
        if request.param == "sqlite"
        else address_of(request.getfixturevalue("database"))
    )


@contextlib.asynccontextmanager
async def elsewhere(address: Any, *agents: Any, **options: Any) -> AsyncIterator[tuple[Client, Runs]]:
    """An engine with agents, and a console that reads the same journal by itself, as in another process."""
    async with contextlib.AsyncExitStack() as stack:
        its = await stack.enter_async_context(journal_at(address))
        ours: Any = await stack.enter_async_context(journal_at(address))
        made = [make(its) for make in agents]
        await stack.enter_async_context(LocalEngine({one.name or "plan": one for one in made}, **options))
        runs = Runs(ours)
        yield Client(console_app(runs, actor=actor())), runs


# ---- with an input ----


async def test_a_run_is_started_in_the_engine_that_has_the_agent_with_what_a_person_wrote(
    address: Any,
) -> None:
    def deps(context: RunContext) -> dict[str, str]:
        return {"user": str(context.metadata["user"])}

    def reader(journal: Any) -> Agent:
        answers = [said(call("whose")), said(text="Done.")]
        return Agent(
            ScriptedLLM(answers), tools=[whose], deps=deps, journal=journal, observers=(), name="reader"
        )

    async with elsewhere(address, reader) as (client, runs):
        page = await client.get("/start?agent=reader")
        form = {
            **fields(page),
            "input Message": "Whose is it?\r\nSay it.",
            "tags": "team=ops\n order = 4711 \n",
            "metadata": '{"user": "ann"}',
            "tenant": "acme",
        }
        run_id = await started(client, form)
        records = await ended(runs, run_id)
        created = records[0].body
        assert created["context"]["messages"] == [{"role": "user", "content": "Whose is it?\nSay it."}]
        assert (created["tags"], created["metadata"]) == ({"team": "ops", "order": "4711"}, {"user": "ann"})
        assert created["deposited"] == {"tenant": "acme"}
        assert [one.body["content"] for one in records if one.kind == "done"] == ["ann"], (
            "deps are those of the agent"
        )
        [engine] = [head async for head in runs.journal.runs(graph="engine")]
        [answer] = [one.body for one in await runs.records(engine.run_id) if one.kind == STARTED]
        assert (answer["by"], answer["run_id"], answer["agent"]) == ("mara", run_id, "reader")


async def test_a_form_that_is_sent_twice_starts_one_run_also_at_the_same_time(address: Any) -> None:
    async with elsewhere(address, support) as (client, runs):
        form = {**fields(await client.get("/start")), "input Message": "Hello."}
        answers = await asyncio.gather(*(client.post("/start", form) for _ in range(3)))
        assert [answer.status for answer in answers] == [303] * 3
        assert await output(runs, form["run_id"]) == "Help.|Hello."
        await started(client, {**form, "input Message": "Another text."})
        assert await ids(runs) == {form["run_id"]}
        assert fields(await client.get("/start"))["run_id"] != form["run_id"]


async def test_an_embedded_console_starts_runs_of_its_engine_on_a_journal_in_memory(
    journal: MemoryJournal,
) -> None:
    async with LocalEngine({"support": support(journal)}) as engine:
        runs = Runs(journal)
        client = Client(console_app(runs, actor=actor(), engine=engine))
        form = {**fields(await client.get("/start")), "input Message": "Hello."}
        assert await output(runs, await started(client, form)) == "Help.|Hello."
        await started(client, form)
        noted = [one.body for one in await journal.load(engine.run_id) if one.kind == STARTED]
        assert [(one["by"], one["run_id"]) for one in noted] == [("mara", form["run_id"])]
        other = Client(console_app(runs, actor=actor()))
        assert "No live engine on this journal" in (await other.get("/start")).text, (
            "nobody reads its requests"
        )


async def test_a_wrong_field_has_its_fault_beside_it_and_keeps_its_text_and_nothing_starts(
    journal: MemoryJournal,
) -> None:
    async with LocalEngine({"support": support(journal)}) as engine:
        runs = Runs(journal)
        client = Client(console_app(runs, actor=actor(), engine=engine))
        form = fields(await client.get("/start"))
        wrong = {"input Message": "  ", "tags": "team", "metadata": "[1]", "tenant": "x" * 300}
        page = await client.post("/start", {**form, **wrong})
        assert page.status == 422
        told = re.findall(r'class="fault" id="f-([^"]+)">([^<]+)<', page.text)
        faults = {name: html.unescape(text) for name, text in told}
        assert faults["input-Message"] == "Message: a value is required"
        assert "name=value" in faults["tags"]
        assert "dict with text keys" in faults["metadata"]
        assert faults["tenant"].startswith("tenant ")
        assert {name: fields(page)[name] for name in ("tags", "metadata")} == {
            "tags": "team",
            "metadata": "[1]",
        }
        assert fields(page)["run_id"] == form["run_id"]
        twice = await client.post("/start", {**form, "input Message": "x", "tags": "a=1\na=2"})
        assert (twice.status, "once" in twice.text) == (422, True)
        broken = await client.post("/start", {**form, "input Message": "x", "metadata": "{"})
        assert (broken.status, "This is not JSON" in broken.text) == (422, True)
        assert await ids(runs) == set()


async def test_the_input_of_a_pipeline_is_json_and_an_rlm_has_a_field_for_its_question_and_its_data(
    journal: MemoryJournal,
) -> None:
    rlm = Rlm(ScriptedLLM(["Three."]), mode="tools", journal=journal, observers=(), name="reader")
    agents: dict[str, Any] = {"plan": Stages().pipeline(journal=journal), "reader": rlm}
    async with LocalEngine(agents) as engine:
        runs = Runs(journal)
        client = Client(console_app(runs, actor=actor(), engine=engine))
        assert 'name="input' not in (await client.get("/start")).text, "of two agents a person chooses one"
        form = {**fields(await client.get("/start?agent=plan")), "input Spec": '{"goal": "x"}'}
        assert (await ended(runs, await started(client, form)))[0].body["context"]["spec"] == {"goal": "x"}
        page = await client.get("/start?agent=reader")
        form = {**fields(page), "input prompt": "How many?", "input context": '["a", "b"]'}
        created = (await ended(runs, await started(client, form)))[0].body
        assert (created["context"]["prompt"], created["material"]) == ("How many?", ["a", "b"])
        without = {**fields(await client.get("/start?agent=reader")), "input context": "x"}
        assert "prompt: a value is required" in (await client.post("/start", without)).text


async def test_without_an_engine_that_has_the_agent_the_form_says_so(address: Any) -> None:
    async with elsewhere(address, support) as (client, _):
        page = await client.get("/start?agent=billing")
        assert "No live engine has an agent billing" in page.text
        form = {**fields(await client.get("/start")), "input Message": "Hello."}
        refused = await client.post("/start", {**form, "agent": "billing"})
        assert refused.status == 409
    async with journal_at(address) as journal:
        client = Client(console_app(Runs(journal), actor=actor()))
        page = await client.get("/start")
        assert "No live engine on this journal starts runs" in page.text
        assert "Start an engine with the agent" in page.text
        assert await ids(Runs(journal)) == set()


async def test_the_page_of_an_agent_leads_to_its_form_also_if_its_engine_has_it_under_another_name(
    journal: MemoryJournal,
) -> None:
    made = support(journal)
    await made.run("Hello.", run_id="first")
    async with LocalEngine({"desk": made, "other": support(journal, name="other")}) as engine:
        runs = Runs(journal)
        client = Client(console_app(runs, actor=actor(), engine=engine))
        assert "/start?agent=support" in (await client.get("/agents/support")).text
        form = {**fields(await client.get("/start?agent=support")), "input Message": "Hello."}
        assert form["agent"] == "desk"
        assert await output(runs, await started(client, form)) == "Help.|Hello."


async def test_what_an_engine_refuses_is_on_the_form_with_the_text_of_the_person(address: Any) -> None:
    def without_deps(journal: Any) -> Agent:
        return Agent(ScriptedLLM([]), tools=[whose], journal=journal, observers=(), name="reader")

    async with elsewhere(address, without_deps) as (client, runs):
        form = {**fields(await client.get("/start")), "input Message": "Hello."}
        refused = await client.post("/start", form)
        assert refused.status == 409
        assert "reads deps" in refused.text
        assert fields(refused)["input Message"] == "Hello."
        assert await ids(runs) == set()


async def test_a_closed_engine_leaves_the_run_to_an_older_one(address: Any) -> None:
    async with (
        elsewhere(address, support) as (client, runs),
        journal_at(address) as its,
        LocalEngine({"support": support(its)}) as newer,
    ):
        await newer.control("stop_admitting", by="ann", why="a deployment")
        form = {**fields(await client.get("/start")), "input Message": "Hello."}
        assert await output(runs, await started(client, form)) == "Help.|Hello."


async def test_a_request_that_an_engine_has_not_answered_stays_posted_and_the_form_says_so(
    address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_directory, "ANSWERS_WITHIN", 0.1)
    async with journal_at(address) as its, journal_at(address) as ours:
        registration = Registration(its, SystemClock())  # of an engine whose loop is blocked
        about = {"agent": "support", "graph": "llm_loop", "input": PROMPT}
        await registration.begin({"name": "slow", "agents": {"support": about}})
        runs = Runs(ours)
        client = Client(console_app(runs, actor=actor()))
        form = {**fields(await client.get("/start")), "input Message": "Hello."}
        waits = await client.post("/start", form)
        assert waits.status == 202
        assert "Engine slow has not answered." in waits.text
        assert fields(waits)["run_id"] == form["run_id"]
        monkeypatch.undo()
        [posted] = await its.inbox(registration.run_id)
        assert (posted.kind, posted.by, posted.body["value"]) == ("start", "mara", "Hello.")
        async with LocalEngine({"support": support(its)}) as engine:
            assert await output(runs, await started(client, form)) == "Help.|Hello."
            await engine._commands.take(posted)  # as the blocked engine does later
            assert await ids(runs) == {form["run_id"]}
        await registration.end({})


# ---- again ----


async def test_a_run_is_run_again_with_its_input_under_the_present_instructions(address: Any) -> None:
    async with journal_at(address) as journal:
        await support(journal, "Old.").run(
            "First.",
            run_id="first",
            tags={"team": "ops"},
            metadata={"user": "ann"},
            params={"temperature": 0},
        )
    async with elsewhere(address, lambda its: support(its, "New.")) as (client, runs):
        page = await client.get("/runs/first")
        assert "/start?run=first" in page.text
        form_page = await client.get("/start?run=first")
        assert "options of its own" in form_page.text
        run_id = await started(client, fields(form_page))
        assert await output(runs, run_id) == "New.|First."
        created = (await runs.records(run_id))[0].body
        assert created["tags"] == {"team": "ops", FORKED_FROM: "first", FORKED_TURN: "0"}
        assert created["metadata"] == {"user": "ann"}
        new, old = await client.get(f"/runs/{run_id}"), await client.get("/runs/first")
        assert "Started again from" in new.text
        assert f"/compare?run=first&amp;run={run_id}" in new.text
        assert f"/compare?run=first&amp;run={run_id}" in old.text
        compared = await client.get(f"/compare?run={run_id}&run=first")
        assert "started again with the input of the first" in compared.text
        third = await started(client, fields(await client.get(f"/start?run={run_id}")))
        tags = (await ended(runs, third))[0].body["tags"]
        assert tags == {"team": "ops", FORKED_FROM: run_id, FORKED_TURN: "0"}


async def test_runs_of_a_pipeline_a_team_and_an_rlm_are_run_again_with_their_whole_input(
    address: Any,
) -> None:
    def plan(journal: Any) -> Any:
        return Stages(plan=[{"steps": 1}] * 2, made=["code"] * 2).pipeline(journal=journal)

    def reader(journal: Any) -> Rlm:
        return Rlm(ScriptedLLM(["Three."]), mode="tools", journal=journal, observers=(), name="reader")

    def team(journal: Any) -> Agent:
        other = Agent(ScriptedLLM([]), journal=journal, observers=(), name="other")
        return Agent(FunctionLLM(echo), journal=journal, observers=(), name="desk", handoffs=[other])

    async with journal_at(address) as journal:
        await plan(journal).run({"goal": "x"}, run_id="p")
        await reader(journal).run("How many?", {"rows": [1, 2]}, run_id="m")
        await team(journal).run("Hello.", run_id="t")
    async with elsewhere(address, plan, reader, team) as (client, runs):
        found = {}
        for source in "pmt":
            new = await started(client, fields(await client.get(f"/start?run={source}")))
            found[source] = (await ended(runs, new))[0].body
            before = (await runs.records(source))[0].body
            assert found[source]["context"].get("messages") == before["context"].get("messages")
            assert found[source].get("material") == before.get("material")
        assert found["p"]["context"]["spec"] == {"goal": "x"}
        assert (found["m"]["context"]["prompt"], found["m"]["material"]) == ("How many?", {"rows": [1, 2]})
        pair = await client.get(f"/compare?run=p&run={(await runs.list(tag={FORKED_FROM: 'p'}))[0].run_id}")
        assert "equal" in pair.text
        assert "forked" in (await client.get("/runs/p")).text, "the page says why a pipeline is not forked"


async def test_only_agents_of_the_run_are_offered_and_other_machines_say_why_they_are_not_run_again(
    journal: MemoryJournal, tmp_path: Path
) -> None:
    await leave_planned(journal, tmp_path / "shop", "planned")
    await support(journal, name="billing").run("Hello.", run_id="billed")
    async with LocalEngine({"support": support(journal)}) as engine:
        runs = Runs(journal)
        client = Client(console_app(runs, actor=actor(), engine=engine))
        refused = await client.get("/start?run=planned")
        assert (refused.status, "has not ended" in refused.text) == (409, True)
        over = replace(await runs.head("planned"), status="ended")
        assert not_repeated(over).startswith("A run of approval starts in its own program")
        assert not_forked(over).startswith(
            "Only runs of llm_loop are forked, and this one belongs to approval"
        )
        nobody = await client.get("/start?run=billed")
        assert "No live engine has agent billing" in nobody.text
        assert 'action="/start"' not in nobody.text
        forged = {
            "form_token": (await client.get("/start")).form_token(),
            "run_id": "a" * 32,
            "agent": "support",
        }
        assert (await client.post("/start", {**forged, "run": "billed"})).status == 409
        assert await ids(runs) == {"planned", "billed"}


# ---- from a turn ----


async def test_a_fork_continues_after_a_turn_and_both_runs_link_each_other(address: Any) -> None:
    async with journal_at(address) as journal:
        await support(journal, "Old.").run("Please look.", run_id="first", tags={"team": "ops"})
    async with elsewhere(address, lambda its: support(its, "New.")) as (client, runs):
        page = await client.get("/runs/first")
        assert "/start?run=first&amp;turn=1" in page.text
        form = fields(await client.get("/start?run=first&turn=1"))
        run_id = await started(client, form)
        assert await output(runs, run_id) == "New.|Please look."
        messages = (await runs.records(run_id))[0].body["context"]["messages"]
        assert [one["role"] for one in messages] == ["system", "user", "assistant", "tool", "tool"]
        assert "after turn 1" in (await client.get(f"/runs/{run_id}")).text
        assert f"/runs/{run_id}" in (await client.get("/runs/first")).text
        end = await client.get("/start?run=first&turn=2")
        assert 'id="s-Next-message"' in end.text
        empty = await client.post("/start", fields(end))
        assert (empty.status, "write what comes next" in empty.text) == (422, True)
        more = await started(client, {**fields(end), "Next message": "And now?"})
        assert await output(runs, more) == "New.|Please look.|And now?"
        compared = await client.get(f"/compare?run=first&run={more}")
        assert "forked after turn 2" in compared.text
        for turn in ("3", "-1", "x", "9" * 30):
            assert (await client.get(f"/start?run=first&turn={turn}")).status in {400, 409}


async def test_the_form_names_the_tools_whose_effects_cannot_be_taken_back(journal: MemoryJournal) -> None:
    made = support(journal, tools=[look, refund])
    async with LocalEngine({"support": made}) as engine:
        await made.run("look and refund", run_id="paid")
        client = Client(console_app(Runs(journal), actor=actor(), engine=engine))
        page = await client.get("/start?run=paid")
        assert "effects cannot be taken back:</b> refund" in page.text


async def test_the_page_of_a_run_lists_its_newest_forks_and_not_their_child_runs(
    journal: MemoryJournal,
) -> None:
    made = support(journal)
    await made.run("Hello.", run_id="first")
    for number in range(7):
        await made.run("Hello.", run_id=f"fork-{number}", tags={FORKED_FROM: "first", FORKED_TURN: "1"})
    helper = support(journal, name="helper")
    parent = Agent(
        ScriptedLLM([said(call("helper", task="x")), said(text="Done.")]),
        tools=[helper.as_tool(name="helper", description="Help.")], journal=journal, observers=(), name="parent",
    )  # fmt: skip
    await parent.run("Go.", run_id="parent", tags={FORKED_FROM: "first", FORKED_TURN: "1"})
    client = Client(console_app(Runs(journal), actor=actor()))
    facts = re.search(r'<div id="forks">.*?</div>', (await client.get("/runs/first")).text, re.DOTALL)
    assert facts is not None
    linked = re.findall(r'class="link id" href="/runs/([^"]+)"', facts[0])
    assert linked == ["parent", "fork-6", "fork-5", "fork-4", "fork-3"]
    assert "/?q=forked_from%3Dfirst" in facts[0]
    [child] = [branch.head.run_id for branch in (await Runs(journal).children("parent")).children]
    assert "Forked from" not in (await client.get(f"/runs/{child}")).text


# ---- as a case ----


async def test_an_ended_run_is_downloaded_as_a_case_that_an_evaluation_reads(
    journal: MemoryJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await support(journal).run("Please look.", run_id="first")
    client = Client(console_app(Runs(journal), actor=actor(may_operate=False)))
    assert "/cases/first" in (await client.get("/runs/first")).text
    with caplog.at_level("INFO", "orchestrator.console"):
        answer = await client.get("/cases/first")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="case-first.jsonl"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    file = tmp_path / "cases.jsonl"
    file.write_bytes(answer.body)
    [case] = load_cases(file)
    assert (case.name, case.input, case.expect.outcome) == ("first", "Please look.", "completed")
    assert "run first was given to mara as a case" in caplog.text
    hostile = 'a"; filename="b.sh'
    await support(journal).run("Please look.", run_id=hostile)
    named = await client.get(f"/cases/{hostile}")
    assert named.headers["content-disposition"] == 'attachment; filename="case-a___filename__b.sh.jsonl"'


async def test_runs_that_make_no_case_say_why_and_content_that_is_not_shown_is_not_given(
    journal: MemoryJournal,
) -> None:
    await support(journal).run("Please look.", run_id="first")
    await Stages().pipeline(journal=journal).run({"goal": "x"}, run_id="p")
    runs = Runs(journal)
    reader = Client(console_app(runs, actor=actor()))
    assert (await reader.get("/cases/p")).status == 409
    page = (await reader.get("/runs/p")).text
    assert "Only runs of an agent become cases" in page
    assert "/cases/" not in page
    assert (await reader.get("/cases/none")).status == 404
    refusals: tuple[tuple[dict[str, Any], dict[str, bool]], ...] = (
        ({"content": "never"}, {}),
        ({}, {"may_read_content": False}),
    )
    for options, rights in refusals:
        client = Client(console_app(runs, actor=actor(**rights), **options))
        refused = await client.get("/cases/first")
        assert refused.status == 403
        assert "Please look." not in refused.text
        assert "/cases/" not in (await client.get("/runs/first")).text


AGAIN = {"llm_loop", "team", "pipeline", "code_mode", "tools_mode"}


@pytest.mark.parametrize("graph", [*SHIPPED, "map_reduce", "a_machine_of_the_host"])
async def test_the_page_of_an_ended_run_of_each_machine_offers_what_can_be_done_and_says_why_not_the_rest(
    journal: MemoryJournal, runs: Runs, graph: str
) -> None:
    body = {"graph": graph, "fingerprint": "f" * 64, "at": 1.0, "context": {}}
    lease = await journal.create("r", "owner", body)
    await write_records(journal, lease, Draft("ended", {"outcome": "completed", "reason": "none", "at": 2.0}))
    page = (await Client(console_app(runs, actor=actor())).get("/runs/r")).text
    told = re.search(r'<div id="not-offered">.*?</div>', page, re.DOTALL)
    offers = {"again": '/start?run=r"', "fork": "/start?run=r&amp;turn=", "case": '/cases/r"'}
    shown = {name for name, address in offers.items() if address in page}
    assert shown == {
        *(("again",) if graph in AGAIN else ()),
        *(("fork",) if graph == "llm_loop" else ()),
        *(("case",) if graph in {"llm_loop", "team"} else ()),
    }
    reasons = "" if told is None else told[0]
    assert (f"A run of {graph} starts in its own program" in reasons) is ("again" not in shown)
    assert ("Only runs of llm_loop are forked" in reasons) is ("fork" not in shown)
    assert ("Only runs of an agent become cases" in reasons) is ("case" not in shown)
