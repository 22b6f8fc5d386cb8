from __future__ import annotations

import pytest

from tests.benchmarks import workers

pytestmark = pytest.mark.campaign


@pytest.mark.usefixtures("postgres")
def test_workers_carry_the_whole_workload_and_take_over_and_are_measured() -> None:
    carried, takeover = workers.measure(workers=(1,), runs=6, kills=1)

    assert [(row.workers, row.runs) for row in carried] == [(1, 6)]
    assert carried[0].turns_per_s == pytest.approx(workers.TURNS * carried[0].runs_per_s)
    assert takeover is not None
    assert (takeover.kills, takeover.p50_s <= takeover.p95_s) == (1, True)
    assert "takeover after kill -9: p50" in list(workers.lines(carried, takeover))[-1]


def test_what_could_not_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "programs", lambda: None)
    assert "LEFT OUT: workers" in next(workers.lines(*workers.measure()))
