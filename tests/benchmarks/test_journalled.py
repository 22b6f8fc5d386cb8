"""The plumbing of the journalled benchmark at tiny sizes: our side, and what happens when a contestant is missing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.benchmarks import peers, report
from tests.benchmarks.contestant import Contestant, NotMeasured
from tests.benchmarks.durable import Case, run_case
from tests.benchmarks.script import PROMPT, Script

OURS = (sys.executable, "-m", "tests.benchmarks.child_ours")
JOURNALLED = Case("tiny", "journalled", runs=2, turns=3, rounds=2)
RESUME = Case("tiny", "resume", runs=1, turns=4, rounds=2)


def test_journalled_turns_are_counted_by_a_process_of_its_own(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours:
        column = run_case(JOURNALLED, [ours], tmp_path).columns["ours"]

    assert column.why_not == ""
    assert len(column.values["turns_per_s"]) == 2
    assert column.median("turns_per_s") > 0
    assert column.median("write_p95_ms") > 0
    assert column.median("writes_per_turn") >= 2
    assert column.median("bytes_per_turn") > 0
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_run_is_resumed_at_its_last_request(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours:
        column = run_case(RESUME, [ours], tmp_path).columns["ours"]

    assert column.why_not == ""
    assert len(column.values["resume_ms"]) == 2
    assert column.median("resume_ms") > 0


def test_a_contestant_that_cannot_be_had_leaves_a_row_that_says_why(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours, Contestant("peer", (), why_not="no registry") as peer:
        line = report.row(run_case(JOURNALLED, [ours, peer], tmp_path))
        introduction = report.introduce([ours, peer], tmp_path)

    assert "not measured: no registry" in line
    assert re.search(r"\d \d+-\d+", re.sub(" +", " ", line)), "ours was measured all the same"
    assert "synchronous" in introduction[-2]
    assert introduction[-1].split(maxsplit=1) == ["peer", "not measured: no registry"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/interpreter",), "its process did not start: No such file or directory"),
        (
            (sys.executable, "-c", "raise SystemExit('it lacks a library')"),
            "its process ended: it lacks a library",
        ),
        ((sys.executable, "-c", "input(); input()"), "no answer within 1 s"),
    ],
)
def test_a_process_that_fails_is_not_measured_and_stays_so(command: tuple[str, ...], why: str) -> None:
    with Contestant("peer", command, timeout=1.0) as peer:
        for _ in range(2):
            with pytest.raises(NotMeasured, match=f"^{re.escape(why)}$"):
                peer.ask("journalled")


def test_an_error_of_one_request_leaves_the_process_for_the_next(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with Contestant("ours", OURS) as ours:
        with pytest.raises(NotMeasured, match=r"^StoreDown: .*file"):
            ours.ask("about", folder=str(in_the_way))
        assert "SQLite" in ours.ask("about", folder=str(tmp_path))["about"]


def test_pins_that_cannot_be_had_are_told_without_the_place_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    pins = tmp_path / "peers.txt"
    pins.write_text("fsm-orchestrator-no-such-peer==1.0\n")

    with pytest.raises(
        NotMeasured, match=r"could not be installed: .*fsm-orchestrator-no-such-peer==1.0"
    ) as told:
        peers.python(tmp_path / "peers", pins)
    assert not peers._PLACES.search(str(told.value))
    assert not (tmp_path / "peers" / ".ready").exists()


def test_every_peer_is_pinned_exactly_and_no_place_is_named() -> None:
    lines = [line for line in peers.PINS.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", line)] == []
    assert {"langgraph", "langgraph-checkpoint-sqlite"} <= {line.partition("==")[0] for line in lines}


async def test_a_run_that_ends_before_its_last_request_is_not_taken_for_a_stopped_one() -> None:
    async def run() -> str:
        return PROMPT

    with pytest.raises(RuntimeError, match="ended before it could be stopped"):
        await Script(1, blocks=True).stop(run())
