"""Engines in processes of their own: signals, kills, and orders from other processes through the journal they share."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.engines import engine_directory as roster
from orchestrator.engines.engine_directory import POLL
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import ENGINE, RunHead
from tests.engines.process import Outside, Said, Start, Worker

ALL_STEPS = [f"{step}" for step in range(4)]


def all_steps(*prompts: str) -> list[str]:
    return [f"{prompt}-{step}" for prompt in prompts for step in ALL_STEPS]


def once_each(*prompts: str) -> dict[str, int]:
    return {f"{prompt}:{step}": 1 for prompt in prompts for step in range(3)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_signal_another_process_resumes_the_rest_and_every_effect_happens_once(
    start: Start, outside: Outside, number: int
) -> None:
    names = ("held a", "held b", "held c")
    first = start(*names, "free", "ask", "held queued", slots=4, grace=0.0, settle=True)
    outside.until(lambda: outside.effects() == once_each("free"))
    outside.go("held a-0", "held b-0")
    outside.until(lambda: {"held a:0", "held b:0"} <= outside.effects().keys())
    outside.until(lambda: outside.reason("ask") == "approval")
    outside.until(lambda: outside.reason("free") == "none")
    outside.until(lambda: outside.reason("held queued") is not None)  # those two gave their slots back
    first.process.send_signal(number)
    outside.until(lambda: any(record.kind == "control" for record in outside.records(first.engine)))
    outside.go("held a-1")  # it comes to the end of its step
    outside.until(lambda: outside.reason("held a") == "shutdown")
    outside.go("settled")
    report = first.report()
    assert sorted(report["parked"]) == ["ask", "held a"]
    assert sorted(report["interrupted"]) == ["held b", "held c", "held queued"]
    assert (report["ended"], report["refused"]) == ([], [])
    reasons = {name: outside.head(name).reason for name in ("held a", "held b", "ask", "free")}
    assert reasons == {"held a": "shutdown", "held b": "interrupted", "ask": "approval", "free": "none"}
    engine = outside.head(first.engine)
    assert (engine.status, engine.owner) == ("ended", None)
    (order,) = [record.body for record in outside.records(first.engine) if record.kind == "control"]
    assert (order["kind"], order["by"], order["why"]) == ("drain", "signal", signal.Signals(number).name)

    outside.go(*all_steps(*names, "held queued"))
    second = start(recover="resume", finish=True)
    assert second.report() == dict.fromkeys((*names, "held queued"), "completed")
    assert outside.effects() == once_each(*names, "held queued", "free")
    assert outside.head("ask").reason == "approval"


def test_a_second_signal_ends_the_process_at_once_and_loses_nothing(start: Start, outside: Outside) -> None:
    first = start("held", grace=600.0)
    outside.go("held-0")
    outside.until(lambda: outside.results("held") == 1)
    first.process.send_signal(signal.SIGTERM)
    outside.until(lambda: any(record.kind == "control" for record in outside.records(first.engine)))
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=60) == -signal.SIGTERM
    assert outside.head("held").owner is None
    outside.go(*all_steps("held"))
    assert start(recover="resume", finish=True).report() == {"held": "completed"}
    assert outside.effects() == once_each("held")


@pytest.mark.canary
def test_a_killed_engine_shows_as_dead_and_its_runs_are_taken_up_elsewhere(
    start: Start, outside: Outside, operate: Callable[..., Said]
) -> None:
    first = start("held", name="mill")
    outside.go("held-0")
    outside.until(lambda: outside.results("held") == 1)
    first.process.kill()
    first.process.wait()
    said = operate("status")
    assert said.code == 0
    assert f"mill ({first.engine})" in said.out
    assert "is dead: its process is gone, and it never stopped" in said.out
    said = operate("drain")
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "orchestrator: no engine runs on this journal; 1 died without stopping, their runs wait for "
        "`orchestrator runs resume`\n"
    )
    outside.go(*all_steps("held"))
    assert start(recover="resume", finish=True).report() == {"held": "completed"}
    assert outside.effects() == once_each("held")


def test_orders_reach_a_live_engine_and_stand_in_its_records(
    start: Start, outside: Outside, operate: Callable[..., Said]
) -> None:
    worker = start("held", "held too", name="mill", slots=1)

    def status() -> dict[str, Any]:
        said = operate("status", "--json")
        assert said.code == 0, said
        found: dict[str, Any] = json.loads(said.out)
        return found

    outside.until(lambda: any(one["state"] == "await_llm" for one in status()["status"]["live"]))
    seen = status()
    assert (seen["name"], seen["run_id"], seen["alive"]) == ("mill", worker.engine, True)
    live = {"run_id": "held", "agent": "agent", "graph": "llm_loop", "state": "await_llm", "phase": "running"}
    assert seen["status"]["live"] == [live | {"reason": ""}]
    assert (seen["status"]["slots"], seen["status"]["queued"]) == (1, 1)

    who = ("--by", "ann", "--why", "a test")
    assert operate("stop-admitting", *who).code == 0
    assert operate("disable-tool", "work", *who).code == 0
    assert operate("block-model", "worker", *who).code == 0
    assert operate("slots", "2", *who).code == 0
    now = status()["status"]
    assert (now["slots"], now["admitting"], now["closed"]["by"]) == (2, False, "ann")
    assert [order["about"] for order in now["disabled"] + now["blocked"]] == ["work", "worker"]
    assert (now["running"], now["queued"]) == (1, 1), "the other one could only wait for its model"
    text = operate("status").out
    assert "admits no runs (ann: a test)" in text
    assert "tool work is disabled (ann: a test)" in text

    outside.go(*all_steps("held", "held too"))
    outside.until(lambda: outside.reason("held") == "waiting")
    for order in (("enable-tool", "work"), ("unblock-model", "worker"), ("start-admitting",)):
        assert operate(*order, "--by", "ben").code == 0
    outside.until(lambda: outside.reason("held") == outside.reason("held too") == "none")
    denied = {"held:0"}  # the tool was disabled then
    assert outside.effects() == {step: 1 for step in once_each("held", "held too") if step not in denied}

    said = operate("drain", "--grace", "5", "--engine", "mill", *who)
    assert said.code == 0
    assert f"mill ({worker.engine}) carries out drain, ordered by ann" in said.out
    assert worker.report()["refused"] == []
    told = [record.body for record in outside.records(worker.engine) if record.kind == "control"]
    assert [one["kind"] for one in told[:4]] == ["stop_admitting", "disable_tool", "block_model", "slots"]
    assert {(one["by"], one["why"]) for one in told} >= {("ann", "a test"), ("ben", "")}
    assert told[-1]["kind"] == "drain"
    said = operate("status")
    assert (said.code, said.out) == (2, "")
    assert said.err == "orchestrator: no engine runs on this journal\n"


def test_all_runs_are_paused_resumed_and_cancelled_from_another_process(
    start: Start, outside: Outside, operate: Callable[..., Said]
) -> None:
    worker = start("held a", "held b", "ask")
    outside.until(lambda: outside.reason("ask") == "approval")
    assert operate("pause-all", "--graph", "llm_loop", "--by", "ann", "--why", "look").code == 0
    outside.answered(worker.engine)  # it journals an order, carries it out, and then reads the next
    outside.go("held a-0", "held b-0")
    outside.until(lambda: outside.reason("held a") == outside.reason("held b") == "paused")
    assert outside.effects() == {}
    assert operate("resume-all", "--by", "ben").code == 0
    outside.until(lambda: outside.effects() == {"held a:0": 1, "held b:0": 1})
    assert operate("cancel-all", "--by", "ann", "--why", "enough").code == 0
    outside.until(lambda: {outside.reason(name) for name in ("held a", "held b", "ask")} == {"caller"})
    (ended,) = [record.body for record in outside.records("held a") if record.kind == "ended"]
    assert (ended["outcome"], ended["reason"]) == ("cancelled", "caller")
    asked = [(r.body["kind"], r.body["by"]) for r in outside.records("held a") if r.kind == "control"]
    assert asked == [("pause", "ann"), ("resume", "ben"), ("cancel", "ann")]
    assert POLL <= 0.2
    outside.until(lambda: not outside.answered(worker.engine)["live"])  # a moment after their last record
    worker.process.send_signal(signal.SIGTERM)
    assert worker.report() == {"ended": [], "parked": [], "interrupted": [], "refused": []}


def test_orders_that_cannot_be_carried_out_are_one_sentence(
    start: Start, outside: Outside, operate: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    def orders(worker: Worker) -> list[str]:
        return [one.body["kind"] for one in outside.records(worker.engine) if one.kind == "control"]

    said = operate("status")
    assert said.code == 2
    assert "there is no journal" in said.err
    one = start(name="one")
    said = operate("disable-tool", "wrok", "--by", "ann")
    assert said.code == 1
    assert (
        f"one ({one.engine}) refused disable-tool: engine 'one' has no tool 'wrok'; it has: charge, send, work"
        in said.out
    )
    said = operate("slots", "0")
    assert (said.code, said.err) == (2, "orchestrator: slots is 0; it must be a whole number, 1 or more\n")
    said = operate("drain", "--by", " ")
    assert (said.code, said.err) == (
        2,
        "orchestrator: it must be known who orders this: give --by NAME\n",
    )
    said = operate("drain", "--engine", "two")
    assert said.err == (
        f"orchestrator: no engine 'two' runs on this journal; running engines: one ({one.engine})\n"
    )
    two = start(name="two")
    said = operate("stop-admitting", "--by", "ann")
    assert said.code == 2
    assert "2 engines run on this journal; choose with --engine, or `all`: one (" in said.err
    assert operate("stop-admitting", "--engine", "all", "--by", "ann").code == 0
    assert len(operate("status", "--json").out.splitlines()) == 2
    frozen = two.process
    frozen.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(roster, "ANSWERS_WITHIN", 0.5)
    said = operate("start-admitting", "--engine", "two", "--by", "ann")
    assert said.code == 1
    assert "has not answered within 0.5 s; start-admitting stays posted" in said.out
    assert "lives, but has not answered within 0.5 s: its event loop may be blocked" in operate("status").out
    frozen.send_signal(signal.SIGCONT)
    outside.until(lambda: "start_admitting" in orders(two))
    for worker in (one, two):
        worker.process.send_signal(signal.SIGTERM)
        worker.report()
    assert orders(two)[:2] == ["stop_admitting", "start_admitting"]
    heads = outside.read(_engines)
    assert [head.status for head in heads] == ["ended", "ended"]


async def _engines(journal: SqliteJournal) -> list[RunHead]:
    return [head async for head in journal.runs(graph=ENGINE)]
