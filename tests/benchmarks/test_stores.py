from __future__ import annotations

import pytest

from tests.benchmarks import stores
from tests.postgres import Cluster

pytestmark = pytest.mark.campaign


@pytest.mark.usefixtures("postgres")
def test_every_store_does_the_whole_workload_and_is_measured() -> None:
    rows = stores.measure(runs=(1, 3), turns=4, rounds=2)

    assert [(row.store, row.runs) for row in rows] == [
        (store, runs) for runs in (1, 3) for store in ("memory", "sqlite", "postgres")
    ]
    assert all(row.turns_per_s > 0 for row in rows)
    assert all((row.added_ms == 0) == (row.store == "memory") for row in rows)
    told = list(stores.lines(rows))
    assert len(told) == 2 + len(rows)
    assert "% of 0.5 s" in told[3]


def test_what_could_not_be_measured_is_said(monkeypatch: pytest.MonkeyPatch, postgres: Cluster) -> None:
    monkeypatch.setattr(stores, "programs", lambda: None)
    rows = stores.measure(runs=(1,), turns=2, rounds=1)
    assert [row.store for row in rows] == ["memory", "sqlite"]
    assert "LEFT OUT: postgres" in list(stores.lines(rows))[-1]


def test_the_cost_of_the_high_water_mark_is_measured() -> None:
    cost = stores.mark_cost(appends=20, rounds=2)
    assert min(cost.mark_us, cost.append_us) > 0
    assert "% (aim: at most 3 %)" in cost.line()
