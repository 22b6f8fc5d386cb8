"""The table of aims: figures of results and of the outputs of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import aims, cases, own_time, turn_calls, workers
from tests.benchmarks.aims import AIMS, Aim

RESUME = next(aim for aim in AIMS if aim.figure == "resume_ms")


def results(**figures: float) -> dict[str, Any]:
    """Return results of a resume: contestant -> milliseconds."""
    each = {name.replace("_", "-"): {"resume_ms": [ms, ms - 1, ms + 1]} for name, ms in figures.items()}
    return {"workloads": [{"name": "resume of 1,000 turns", "contestants": each}]}


def row(aim: Aim, told: dict[str, Any], taken: dict[str, Any] | None = None) -> tuple[str, ...]:
    return aim.row(aims.Told(told), taken or {})


def test_an_aim_is_reached_at_its_bound_missed_beyond_it_and_never_guessed() -> None:
    bound = RESUME.bound
    assert bound is not None
    reached, missed = row(RESUME, results(ours=bound)), row(RESUME, results(ours=bound + 2))
    assert reached[1:6] == ("49", "30", "29-31", "≤ 30", "reached")
    assert missed[1:6] == ("49", "32", "31-33", "≤ 30", "missed")
    assert row(RESUME, {"workloads": []})[2] == "not measured"


def test_the_best_peer_is_an_agent_library_and_its_figure_stands_beside_ours() -> None:
    told = results(ours=20, hand=1, transitions=2, langgraph=24, pydantic_ai=50)
    assert row(RESUME, told)[6] == "24 LangGraph"
    assert row(RESUME, results(ours=20, hand=1))[6] == "-"


def test_every_line_has_a_command_and_a_figure_or_says_that_it_was_not_measured() -> None:
    table = list(aims.lines(json.loads(aims.PEERS.read_text()), aims.kept()))
    assert len(table) == 1 + len(AIMS) == 1 + len({aim.name for aim in AIMS})
    for aim, line in zip(AIMS, table[1:], strict=True):
        assert line.startswith(aim.name)
        assert line.endswith(aim.command)
        assert bool(aim.case) != bool(aim.number)
    every = [case.name for case in cases.CASES]
    assert all(any(name.startswith(aim.case) for name in every) for aim in AIMS if aim.case)


def beside(runs: int) -> str:
    return "\n".join(
        own_time.model_lines(
            [
                own_time.Beside(runs, "hand", (0.1, 0.2), 0.01, [1.0]),
                own_time.Beside(runs, "full", (0.5, 1.25), 0.4, [1.01, 1.02, 1.03]),
            ]
        )
    )


SAID = {
    "python -m tests.benchmarks.instructions": (
        (
            "hand          48,000 instructions a turn\nwatched      382,000 instructions a turn, 8.0 x hand\n"
            "full         950,000 instructions a turn, 19.8 x hand, limit 957,000\n"
            "bare         782,000 instructions a turn, 16.3 x hand, limit 785,000\n"
            "import    976,000,000 instructions of an import, limit 1,050,000,000\n"
        ),
        [382_000, 950_000, 782_000, 976_000_000],
    ),
    "python -m tests.benchmarks.turn_calls": (
        f"bare\n{turn_calls.table({'a.py': 180, 'b.py': 7})}\nfull\n{turn_calls.table({'a.py': 300})}\n",
        [187],
    ),
    "python -m tests.benchmarks.own_time models 1": (beside(1), [1.0005, 0.5, 1.25]),
    "python -m tests.benchmarks.own_time models 100": (beside(100), [1.0025, 0.5, 1.25]),
    "python -m tests.benchmarks --offline --only workers": (
        f"{workers.Carried(1, 300, 29.0, 290.4, 1.0).told()}\n{workers.Carried(2, 300, 9.0, 99.0, 1.0).told()}",
        [290],
    ),
    "python -m tests.benchmarks.waiting_runs full": ("full: 28.9 KiB a run, 147 objects\n  bytes", [28.9]),
    "python -m tests.benchmarks.evicted_runs": (
        (
            "resident memory 1,450 MB, 4.5 KiB for each caller\n"
            "1,000 answers, to the next step: p50 20 ms, p95 31 ms\nprocessor time"
        ),
        [1_450, 31],
    ),
    "python -m tests.benchmarks.listing": ("postgres:  9 ms\npostgres: 45.1 ms at most (aim: 50 ms)", [45.1]),
    "python -m tests.benchmarks.incident": (
        (
            " 0.095 s (0.090 to 0.100), aim 0.1 s: orchestrator --help\n"
            " 0.200 s (0.190 to 0.250), aim 0.5 s: orchestrator runs list\n"
            " 0.300 s (0.290 to 0.350), aim 0.5 s: orchestrator runs show run1\n"
            " 0.400 s (0.390 to 0.450), aim 0.5 s: orchestrator runs events run1\n"
            " 1.200 s (1.190 to 1.450), aim 2 s: orchestrator runs list --limit 0 --json\n"
        ),
        [95, 200, 300, 400],
    ),
    'python -m tests.benchmarks --offline --only "journalled, 50 ms model"': (
        (
            "journalled, 50 ms model  50010.0 50012.0 51000.0 51900.0   1.00    1.02    1.04   1.01-1.05"
            "         1.049         1.048\n"
        ),
        [1.049],
    ),
    f'python -m tests.benchmarks --only "{cases.BUSY.name}"': (
        (
            f"{cases.BUSY.name}\n     turns/s   spread\n  ours                         812         700 - 1,050  1\n"
            "  langgraph                    185         150 - 190  1\n"
        ),
        [812],
    ),
}
"""Command -> its output, and the figures in it in the order of the aims."""


def test_every_figure_is_found_in_the_output_of_its_command() -> None:
    assert {aim.command for aim in AIMS if aim.number} == SAID.keys()
    for command, (output, figures) in SAID.items():
        some = [aim for aim in AIMS if aim.command == command]
        read = [aim.read(output)["figure"][0] for aim in some]
        assert read == pytest.approx(figures), command
    busy = next(aim for aim in AIMS if aim.peer)
    assert busy.read(SAID[busy.command][0])["figure"] == [812, 700, 1_050]
    assert busy.read(SAID[busy.command][0])["peer"] == "185 langgraph"


def test_a_command_that_prints_no_figure_leaves_the_one_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aims, "TAKEN", tmp_path / "aims.json")
    aims.TAKEN.write_text(json.dumps({"a": {"figure": [1.0, 1.0, 1.0], "taken": "2026-01-01"}}))
    version = Aim(name="a", bound=None, command="python --version", number=r"no such number: (\d+)")
    right = Aim(name="b", bound=3, command="python --version", number=r"^Python (3)\.")
    said: list[str] = []
    taken = aims.take([version, right], said.append)
    assert (taken["a"]["figure"][0], taken["b"]["figure"]) == (1.0, [3.0, 3.0, 3.0])
    assert said[0] == "running: python --version"
    assert said[1].startswith("not measured: no number of a in: Python 3")
    assert len(said) == 2, "the command ran once for both"
