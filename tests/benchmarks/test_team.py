"""The same team of agents with four libraries: ours pays once after each kill, and the table says what was observed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.peers.ergonomics.measure import count
from tests.benchmarks.peers.ergonomics.run import LIBRARIES
from tests.benchmarks.peers.ergonomics.trial import Different
from tests.benchmarks.peers.team import run, script, table, task, trial
from tests.benchmarks.peers.team.table import words
from tests.derived import HINT, PLACES, ROOT, TEAM_GUIDE
from tests.providers.loopback import Asked

RESUMED = {"lost": "", "asked again": 0, "looked up again": 0, "paid": 1, "told": False, "next": "refunds"}


@pytest.mark.campaign
def test_our_team_does_what_the_table_says_after_each_kill(tmp_path: Path) -> None:
    assert trial.run("ours", Path(sys.executable), tmp_path) == _killed()["ours"]


@pytest.mark.campaign
def test_each_round_does_all_the_work_in_a_process_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ROUNDS", 2)
    times = run.processor_time({LIBRARIES[0]: Path(sys.executable)}, tmp_path / "rounds")
    assert len(times["ours"]) == 2
    assert all(one > 0 for one in times["ours"])
    ledgers = sorted((tmp_path / "rounds" / "ours").glob("*/ledger"))
    assert [file.read_text(encoding="utf-8") for file in ledgers] == ["A-17 40\n"] * len(ledgers)
    assert len(ledgers) == 4  # two rounds that nobody counts come first


@pytest.mark.campaign
def test_a_program_that_ends_is_no_measured_round(tmp_path: Path) -> None:
    with trial.opened("ours", Path(sys.executable), tmp_path / "rounds") as host:
        host.command[1:] = ["-c", "raise SystemExit('no such program')"]
        with run._rounds(host) as take, pytest.raises(Different, match="no such program"):
            take(0)


def test_ours_is_the_shortest_program_with_the_fewest_concepts_and_nothing_to_store() -> None:
    ours, *peers = (count(run.PROGRAMS / f"{library.name}.py") for library in LIBRARIES)
    assert ours.lines <= min(peer.lines for peer in peers)
    assert ours.concepts <= min(peer.concepts for peer in peers)
    assert ours.storing == 0


def test_every_program_was_killed_in_every_place_and_took_part_in_every_round() -> None:
    found = run.results()["programs"]
    assert list(found) == [library.name for library in LIBRARIES]
    for one in found.values():
        assert tuple(one["killed"]) == trial.PLACES
        assert all(place.keys() == RESUMED.keys() for place in one["killed"].values())
        assert len(one["cpu_us"]) == run.ROUNDS
        assert one["versions"]


def test_only_ours_paid_once_after_a_kill_in_the_payment_and_said_why_it_asked() -> None:
    payments = {name: killed["payment"] for name, killed in _killed().items()}
    assert [name for name, found in payments.items() if found["paid"] == 1] == ["ours"]
    assert payments["ours"]["told"]


def test_every_library_continues_with_the_agent_that_had_the_conversation() -> None:
    assert {place["next"] for killed in _killed().values() for place in killed.values()} == {"refunds"}


def test_the_table_of_the_page_is_that_of_the_programs_and_results() -> None:
    (place,) = [place for place in PLACES if place.file == TEAM_GUIDE]
    text = (ROOT / TEAM_GUIDE).read_text(encoding="utf-8")
    assert place.filled(text) == text, HINT


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ({}, "resumed"),
        ({"told": True}, "resumed, asks a person"),
        ({"lost": "ValueError: no tool"}, "lost: ValueError: no tool"),
        ({"asked again": 2}, "asked the model 2 × again"),
        ({"looked up again": 1}, "looked 1 × up again"),
        ({"paid": 2}, "paid 2 times"),
        ({"paid": 0}, "paid 0 times"),
        ({"next": "triage", "paid": 2}, "paid 2 times, next message to triage"),
    ],
)
def test_each_difference_from_a_resumed_run_is_said(difference: dict[str, Any], said: str) -> None:
    assert words(RESUMED | difference) == said


def test_a_table_from_a_busy_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run.results()
    monkeypatch.setattr(table, "results", lambda: found | {"busy_cores": 1.25})
    assert "not quiet: other processes used 1.25 cores" in table.table()
    monkeypatch.setattr(table, "results", lambda: found | {"busy_cores": 0.05})
    assert "not quiet" not in table.table()


def test_an_agent_is_known_by_the_instructions_of_its_request_alone() -> None:
    triage, refunds = task.INSTRUCTIONS["triage"], task.INSTRUCTIONS["refunds"]
    responses = _asked(instructions=refunds, input=[{"role": "assistant", "content": triage}])
    chat = _asked(messages=[{"role": "system", "content": triage}, {"role": "user", "content": refunds}])
    both = _asked(messages=[{"role": "system", "content": triage}, {"role": "system", "content": refunds}])
    assert [script.speaker(one) for one in (responses, chat, both)] == ["refunds", "triage", "2 agents"]


def test_a_model_that_has_the_three_lookups_hands_over_with_the_tool_that_it_was_offered() -> None:
    system = {"role": "system", "content": task.INSTRUCTIONS["delivery"]}
    found = {"role": "user", "content": " ".join(task.FOUND.values())}
    own = _asked(messages=[system, found], tools=[{"function": {"name": "transfer_to_refunds"}}])
    one_for_all = _asked(messages=[system, found], tools=[{"function": {"name": "transfer"}}])
    assert [call.tool for call in script.answer(own).calls] == ["transfer_to_refunds"]
    assert [call.arguments for call in script.answer(one_for_all).calls] == ['{"to": "refunds"}']
    assert [call.tool for call in script.answer(_asked(messages=[system])).calls] == list(task.FOUND)


def _asked(**body: Any) -> Asked:
    return Asked("POST", "/v1/chat/completions", {}, json.dumps(body).encode())


def _killed() -> dict[str, dict[str, dict[str, Any]]]:
    return {name: one["killed"] for name, one in run.results()["programs"].items()}
