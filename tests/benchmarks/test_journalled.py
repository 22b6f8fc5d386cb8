"""The journalled cases at tiny sizes: our side, and what happens when a contestant is missing or fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as bench
from tests.benchmarks import report, syncs
from tests.benchmarks.cases import JOURNALLED as JOURNALLED_CASES
from tests.benchmarks.contestant import Contestant, NotMeasured
from tests.benchmarks.rounds import Case, run_case
from tests.benchmarks.script import PROMPT, Script
from tests.preload import preloading

OURS = (sys.executable, "-m", "tests.benchmarks.peers.children.ours")
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


@pytest.mark.campaign
def test_a_stopped_run_is_resumed_at_its_last_request(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours:
        column = run_case(RESUME, [ours], tmp_path).columns["ours"]

    assert column.why_not == ""
    assert len(column.values["resume_ms"]) == 2
    assert column.median("resume_ms") > 0


@pytest.mark.campaign
def test_a_contestant_that_cannot_be_had_leaves_a_row_that_says_why(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours, Contestant("peer", (), why_not="no registry") as peer:
        lines = list(report.block(run_case(JOURNALLED, [ours, peer], tmp_path)))
        about = report.ask_about(ours, str(tmp_path)), report.ask_about(peer, str(tmp_path))

    assert lines[-1].split(maxsplit=1) == ["peer", "not measured: no registry"]
    assert re.search(r"\d - \d", lines[-2]), "ours was measured all the same"
    assert "synchronous" in about[0]["store"]
    assert about[1] == {"not_measured": "no registry"}


@pytest.mark.campaign
def test_make_bench_shows_langgraph_beside_ours_or_says_plainly_that_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = bench._journalled([JOURNALLED, RESUME], tmp_path / "environments", install=False)

    assert [sorted(row.columns) for row in rows] == [["dbos", "langgraph", "langgraph, async", "ours"]] * 2
    assert all(row.columns["ours"].why_not == "" for row in rows)
    said = capsys.readouterr().out
    missing = "its environment is not there, and nothing was to be installed"
    for name in ("langgraph", "langgraph, async", "dbos"):
        assert f"LEFT OUT: {name}: {missing}; `make bench` makes it, without --offline\n" in said
    assert said.count(f"not measured: {missing}") == 3 * 3, "where each is introduced, and in each case"


def test_make_bench_measures_what_it_was_said_to_measure() -> None:
    journalled = [
        (case.kind, case.runs if case.kind == "journalled" else case.turns) for case in JOURNALLED_CASES
    ]
    assert set(journalled) >= {("journalled", 1), ("journalled", 32), ("journalled", 100)}
    assert set(journalled) >= {("resume", 500), ("resume", 1_000)}
    assert bench.JOURNALS == ("ours", "langgraph", "langgraph, async", "dbos")


@pytest.mark.system("cc")
def test_what_a_turn_waits_for_is_counted(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours:
        column = run_case(replace(JOURNALLED, runs=1), [ours], tmp_path).columns["ours"]

    assert column.why_not == ""
    assert column.median("syncs_per_turn") >= 2, "two appends, each with a sync"
    assert column.median("waits_per_turn") >= 4, "to the thread that writes and back"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/interpreter",), "its process did not start: No such file or directory"),
        (
            (sys.executable, "-c", "raise SystemExit('it lacks a library')"),
            "its process ended: it lacks a library",
        ),
        ((sys.executable, "-c", "input(); input()"), "no answer within 0.2 s"),
    ],
)
def test_a_process_that_fails_is_not_measured_and_stays_so(command: tuple[str, ...], why: str) -> None:
    # To start and to end takes long on a busy machine.
    seconds = 0.2 if why.startswith("no answer") else 100.0
    with Contestant("peer", command, timeout=seconds) as peer:
        for _ in range(2):
            with pytest.raises(NotMeasured, match=f"^{re.escape(why)}$"):
                peer.ask("journalled")


def test_a_process_that_was_lost_in_one_case_is_started_anew_for_the_next(tmp_path: Path) -> None:
    once = tmp_path / "once"
    ends_the_first_time = (
        "import os, pathlib, sys\n"
        f"once = pathlib.Path({str(once)!r})\n"
        "if not once.exists(): once.touch(); sys.exit('it fell over')\n"
        "for _ in sys.stdin: print('{\"cpu_us_per_turn\": 1.0}', flush=True)\n"
    )
    case = Case("tiny", "turns", rounds=2, turns=1)
    with Contestant("peer", (sys.executable, "-c", ends_the_first_time)) as peer:
        first, second = (run_case(case, [peer], tmp_path).columns["peer"] for _ in range(2))

    assert first.why_not == "its process ended: it fell over"
    assert second.values == {"cpu_us_per_turn": [1.0, 1.0]}


@pytest.mark.campaign
def test_a_contestant_that_takes_too_long_takes_part_in_no_further_round(tmp_path: Path) -> None:
    with Contestant("ours", OURS) as ours:
        column = run_case(Case("tiny", "turns", rounds=5, turns=2, patience=0.0), [ours], tmp_path).columns[
            "ours"
        ]

    assert (column.rounds, column.why_not) == (1, "")


@pytest.mark.campaign
def test_an_error_of_one_request_leaves_the_process_for_the_next(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with Contestant("ours", OURS) as ours:
        with pytest.raises(NotMeasured, match=r"^StoreDown: .*file"):
            ours.ask("about", folder=str(in_the_way))
        assert "SQLite" in ours.ask("about", folder=str(tmp_path))["store"]


async def test_a_run_that_ends_before_its_last_request_is_not_taken_for_a_stopped_one() -> None:
    async def run() -> str:
        return PROMPT

    with pytest.raises(RuntimeError, match="ended before it could be stopped"):
        await Script(1, held=1).stop(run())


@pytest.mark.system("cc")
def test_what_counts_syncs_is_loaded_from_a_folder_with_a_space(tmp_path: Path) -> None:
    library = tmp_path / "a b" / "syncs.so"
    library.parent.mkdir()
    source = Path(syncs.__file__).with_name("syncs.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    shown = subprocess.run(
        ["cat", "/proc/self/maps"],
        env=os.environ | preloading(library),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (str(library) in shown.stdout, shown.stderr) == (True, "")
