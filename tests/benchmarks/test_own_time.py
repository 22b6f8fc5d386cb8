"""The parts of a turn beside a model."""

from __future__ import annotations

import statistics
from itertools import product

import pytest

from tests.benchmarks import own_time


def test_a_turn_takes_as_many_passes_of_the_event_loop_as_that_of_the_hand_written_loop() -> None:
    found = own_time.traced(turns=12, rounds=1)

    names = ("hand", "h+t", "bare", "full")
    assert found.keys() == set(product(names, own_time.WAITS))
    passes = {key: statistics.median(one.passes for one in turns) for key, turns in found.items()}
    assert {passes[name, "waits"] for name in names} == {2}, "one until the timer is due, one for the task"
    assert {passes[name, wait] for name in names for wait in ("answers at once", "spins", "sweeps")} == {0}
    assert all(len(turns) == 11 for turns in found.values())
    assert statistics.median(one.log for one in found["full", "waits"]) > 0
    assert all(one.log == 0 for one in found["bare", "waits"])


@pytest.mark.parametrize("runs", own_time.PARTS_OF_A_SECOND)
def test_every_run_waits_its_own_recorded_latencies(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(own_time.PARTS_OF_A_SECOND, runs, 20_000)
    found = own_time.beside_models(runs, turns=3, rounds=1)

    assert [one.name for one in found] == ["hand", "h+t", "bare", "full"]
    assert all(one.own[0] <= one.own[1] and one.cpu > 0 and len(one.ratios) == 1 for one in found)
    assert found[0].ratios == [1.0]


def test_only_full_beyond_the_bound_is_reported() -> None:
    def figure(name: str, ratio: float) -> dict[str, object]:
        return {"runs": 1, "name": name, "own": (0.1, 0.2), "cpu": 0.1, "ratios": [ratio]}

    divided = own_time.PARTS_OF_A_SECOND[1] * (own_time.MOST - 1) + 1
    assert not own_time.beyond([figure("full", divided - 0.01), figure("bare", 9.0), {"name": "other"}])
    assert "runs at once: 1" in own_time.beyond([figure("full", divided + 0.1)])
