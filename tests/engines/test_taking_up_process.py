"""Service processes that are killed: what people answer afterwards is carried out, by one engine, once."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from tests.engines.process import Outside, Said, Start

Command = Callable[..., Said]


def killed(start: Start, outside: Outside, prompt: str, *, when: Callable[[], bool]) -> str:
    """Start a service with a run, kill it without warning, and return the id of its engine."""
    service = start(prompt)
    outside.until(when)
    service.process.kill()
    service.process.wait()
    return service.engine


def taken_by(outside: Outside, run_id: str) -> list[str]:
    """Who resumed a run, in order."""
    return [record.body["by"] for record in outside.records(run_id) if record.kind == "resumed"]


def test_an_irreversible_call_that_was_interrupted_by_a_kill_is_asked_about_after_the_restart(
    start: Start, outside: Outside, command: Command
) -> None:
    charged = {"charge:risk": 1}
    dead = killed(start, outside, "risk", when=lambda: outside.effects() == charged)
    outside.go("charge")
    service = start(recover="resume", name="service")
    outside.until(lambda: outside.reason("risk") == "unknown_effect")
    (live,) = outside.answered(service.engine)["live"]
    assert (live["run_id"], live["phase"]) == ("risk", "waiting")
    said = command("runs", "respond", "risk", "it was charged", "--by", "ann")
    assert (said.code, said.err) == (0, "")
    assert "holds the run and carries it out" in said.out
    outside.until(lambda: outside.head("risk").status == "ended")
    service.process.send_signal(signal.SIGTERM)
    service.report()
    assert outside.effects() == charged
    ended = outside.records("risk")[-1].body
    assert (ended["outcome"], ended["reason"]) == ("completed", "none")
    closed = outside.records(dead)[-1]
    assert (closed.kind, closed.body["outcome"]) == ("ended", "lost")
    assert closed.body["by"] == f"engine service ({service.engine})"


def test_an_approval_given_after_a_restart_is_carried_out_once_by_one_of_two_engines(
    start: Start, outside: Outside, command: Command
) -> None:
    killed(start, outside, "ask", when=lambda: outside.reason("ask") == "approval")
    services = [start(recover="resume", name=name) for name in ("one", "two")]
    assert taken_by(outside, "ask") == [], "what waits for an answer stays in the journal"
    assert "resumes it automatically" in command("runs", "show", "ask").out
    assert "engine-" not in command("runs", "list").out + command("doctor").out
    for shown in (command("runs", "list", "--all"), command("runs", "list", "--graph", "engine")):
        assert shown.out.count("engine-") == 3
        assert "lost (process_died)" in shown.out
    said = command("runs", "approve", "ask", "--by", "ann")
    assert (said.code, said.err) == (0, "")
    assert re.search(
        r"the run has no owner; engine one \(engine-\w+\) resumes it and carries this out", said.out
    )
    outside.until(lambda: outside.head("ask").status == "ended")
    for service in services:
        service.process.send_signal(signal.SIGTERM)
        service.report()
    assert outside.effects() == {"send:everybody": 1}
    assert taken_by(outside, "ask") in (["engine one"], ["engine two"])


@pytest.mark.canary
def test_a_run_of_a_service_that_is_killed_goes_on_in_another_one_that_lives(
    start: Start, outside: Outside
) -> None:
    living = start(recover="resume", name="living", rescan=0.2)
    killed(start, outside, "held", when=lambda: outside.reason("held") is not None)
    outside.go(*(f"held-{step}" for step in range(4)))
    outside.until(lambda: outside.head("held").status == "ended")
    living.process.send_signal(signal.SIGTERM)
    living.report()
    assert outside.effects() == {f"held:{step}": 1 for step in range(3)}
    assert taken_by(outside, "held") == ["engine living"]
