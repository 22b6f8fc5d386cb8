from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def moved(seq: int, source: str, dest: str, seconds: float, run: str = "r1", **more: Any) -> str:
    line = {
        "msg": "fsm.transition",
        "machine": "m",
        "run_id": run,
        "seq": seq,
        "from_state": source,
        "fsm_event": f"to_{dest}",
        "to_state": dest,
        "state_duration_s": seconds,
    }
    return json.dumps(line | more)


def ended(seq: int, outcome: str = "completed", reason: str = "none", run: str = "r1") -> str:
    line = {"msg": "run.completed", "machine": "m", "run_id": run, "seq": seq}
    return json.dumps(line | {"outcome": outcome, "reason": reason})


RUN = [moved(1, "a", "b", 1.0), moved(2, "b", "a", 5.0), moved(3, "a", "b", 2.0), moved(4, "b", "c", 2.0)]


def reported(cli: Cli, folder: Path, *lines: str) -> dict[str, Any]:
    (folder / "run.log").write_text("\n".join(lines))
    done = cli("report", "run.log", "--json")
    assert done.code == 0
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_states_have_visits_times_and_shares(cli: Cli, folder: Path) -> None:
    machine = reported(cli, folder, *RUN, ended(4))["machines"]["m"]
    assert machine["states"]["b"] == {
        "visits": 2,
        "min_s": 2.0,
        "mean_s": 3.5,
        "max_s": 5.0,
        "total_s": 7.0,
        "share": 0.7,
    }
    assert machine["bottleneck"] == "b"
    assert machine["commonest_edge"] == {"from_state": "a", "event": "to_b", "to_state": "b", "count": 2}
    assert machine["runs"] == [{"outcome": "completed", "reason": "none", "count": 1}]
    assert (machine["gaps"], machine["unfinished"]) == ([], [])


def test_an_edge_that_stays_is_no_visit(cli: Cli, folder: Path) -> None:
    stays = moved(2, "b", "b", 9.0, internal=True)
    machine = reported(cli, folder, RUN[0], stays, moved(3, "b", "c", 1.0))["machines"]["m"]
    assert machine["states"]["b"]["visits"] == 1


GAPS = [
    ((RUN[0], RUN[3], ended(4)), [(2, 3)]),
    ((RUN[1], RUN[3], ended(6)), [(1, 1), (3, 3), (5, 6)]),
    ((RUN[3], RUN[2], RUN[1], RUN[0]), []),
    ((ended(2),), [(1, 2)]),
]


@pytest.mark.parametrize(("lines", "gaps"), GAPS)
def test_lost_lines_are_named(
    cli: Cli, folder: Path, lines: tuple[str, ...], gaps: list[tuple[int, int]]
) -> None:
    machine = reported(cli, folder, *lines)["machines"]["m"]
    assert [(gap["first"], gap["last"]) for gap in machine["gaps"]] == gaps
    shown = cli("report", "run.log").out
    for first, last in gaps:
        assert f"lost: run r1, transition {first}" + (f" to {last}" if last > first else "") in shown


def test_many_gaps_are_counted_not_listed(cli: Cli, folder: Path) -> None:
    reported(cli, folder, *(moved(number, "a", "b", 1.0) for number in range(2, 50, 2)))
    assert "lost: 14 more gaps" in cli("report", "run.log").out


def test_a_run_without_an_end_is_counted(cli: Cli, folder: Path) -> None:
    assert reported(cli, folder, *RUN)["machines"]["m"]["unfinished"] == ["r1"]
    assert "1 without an end in these lines" in cli("report", "run.log").out


UNREADABLE = [
    "",
    "Listening on port 80",
    '{"msg": "fsm.transition"}',
    "[1]",
    '"text"',
    moved(5, "a", "b", 1.0)[:-9],
]


def test_other_lines_are_left_alone_and_broken_ones_counted(cli: Cli, folder: Path) -> None:
    others = ['{"msg": "tool.call", "machine": "m"}', '{"message": "of another program"}']
    found = reported(cli, folder, *RUN, ended(4), *others, *UNREADABLE, moved(9, "a", "b", float("nan")))
    assert (found["lines"], found["unreadable"]) == (13, 5)
    assert "5 of 13 lines cannot be read; the first: run.log, line 9" in cli("report", "run.log").out


def test_lines_that_stand_twice_count_once(cli: Cli, folder: Path) -> None:
    reported(cli, folder, *RUN, ended(4))
    found = json.loads(cli("report", "run.log", "run.log", "--json").out)
    assert found["repeated"] == 5
    assert found["machines"]["m"]["states"]["b"]["visits"] == 2
    assert "5 lines stand twice and count once" in cli("report", "run.log", "run.log").out


def test_machines_are_reported_one_by_one(cli: Cli, folder: Path) -> None:
    other = [line.replace('"machine": "m"', '"machine": "n"') for line in RUN]
    assert list(reported(cli, folder, *RUN, *other)["machines"]) == ["m", "n"]
    shown = cli("report", "run.log").out
    assert "m: 4 transitions of 1 run" in shown
    assert "n: 4 transitions of 1 run" in shown


def test_ends_are_counted_by_outcome_and_reason(cli: Cli, folder: Path) -> None:
    ends = [ended(0, run="x"), ended(0, run="y"), ended(0, "failed", "llm_error", run="z")]
    reported(cli, folder, *RUN, *ends)
    shown = cli("report", "run.log").out
    assert "  2 runs completed\n  1 run failed (llm_error)\n" in shown
