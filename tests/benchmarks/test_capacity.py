"""The model of a fleet agrees with the laws of queues, with its own costs, and with the measured throughput."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import workers
from tests.benchmarks.capacity.__main__ import compared, simulated, sizes
from tests.benchmarks.capacity.demand import Costs, Demand, Fleet, Server, needed, read_costs, write_costs
from tests.benchmarks.capacity.simulation import batch, simulate

MADE_UP = Costs(
    worker_s=0.004,
    server_s=0.002,
    commit_s=0.001,
    log_bytes=6_000,
    run_bytes=30_000,
    turns_per_s=300,
    cores=2,
    takeover_s=3,
)


def test_processors_are_busy_as_the_utilisation_law_says() -> None:
    demand = Demand(20, turns=4, model_s=1.0, asking=0.0, crashes_per_hour=0.0)
    found = simulate(demand, MADE_UP, Fleet(2, 400, 1), seconds=50, seed=3)
    assert found.turns_per_s == pytest.approx(demand.turns_per_s, rel=0.05)
    assert found.workers_busy == pytest.approx(demand.turns_per_s * MADE_UP.worker_s / 2, rel=0.05)
    assert found.server_busy == pytest.approx(demand.turns_per_s * MADE_UP.server_s, rel=0.05)


def test_an_idle_fleet_delays_a_run_by_its_own_work_alone() -> None:
    demand = Demand(0.5, turns=4, model_s=1.0, asking=0.0, crashes_per_hour=0.0)
    found = simulate(demand, MADE_UP, Fleet(4, 16, 4), seconds=200, seed=3)
    own = 4 * (MADE_UP.worker_s + MADE_UP.server_s + 2 * MADE_UP.commit_s)
    assert found.delay_p50_s == pytest.approx(own, rel=0.02)


def test_the_same_seed_gives_the_same_findings_and_another_seed_gives_others() -> None:
    first, again, other = (
        simulate(Demand(5), MADE_UP, Fleet(1, 100, 1), seconds=60, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_too_few_slots_make_runs_wait_and_more_slots_mend_it() -> None:
    demand = Demand(5, model_s=2.0, asking=0.0)
    few, many = (
        simulate(demand, MADE_UP, Fleet(1, slots, 1), seconds=40, seed=1).delay_p95_s for slots in (20, 200)
    )
    assert few > 10
    assert many < 0.2


def test_a_person_takes_no_slot() -> None:
    demand = Demand(2, model_s=0.1, asking=1.0, person_s=1_000)
    found = simulate(demand, MADE_UP, Fleet(1, 4, 1), seconds=100, seed=1)
    assert found.delay_p95_s < 0.5


def test_runs_of_a_crashed_worker_repeat_a_turn_and_end() -> None:
    demand = Demand(5, asking=0.0, crashes_per_hour=600)
    found = simulate(demand, MADE_UP, Fleet(2, 200, 1), seconds=60, seed=1)
    assert found.repeated > 0
    assert found.turns_per_s == pytest.approx(demand.turns_per_s, rel=0.1), "every run ended"
    assert found.delay_p95_s > MADE_UP.takeover_s


def test_a_simulation_without_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="no run arrived within 1 s"):
        simulate(Demand(1e-9), MADE_UP, Fleet(1, 1, 1), seconds=1, seed=1)


def test_a_batch_is_as_fast_as_the_slower_of_worker_and_cores() -> None:
    assert batch(40, 5, replace(MADE_UP, server_s=0.0, commit_s=0.0), slots=16) == pytest.approx(
        1 / MADE_UP.worker_s, rel=0.05
    )
    one_core = batch(40, 5, replace(MADE_UP, cores=1, commit_s=0.0), slots=16)
    assert one_core == pytest.approx(1 / (MADE_UP.worker_s + MADE_UP.server_s), rel=0.05)


def test_needs_grow_with_the_demand_and_databases_with_the_limits_of_one() -> None:
    small, big = (needed(Demand(rate), MADE_UP) for rate in (1, 1_000))
    assert (small.workers, small.databases) == (1, 1)
    assert big.workers == math.ceil(1_000 * 5 * MADE_UP.worker_s / 0.6)
    assert big.slots == pytest.approx(1_000 * small.slots, rel=0.05)
    assert big.databases == math.ceil(1_000 / big.most_runs_per_s)
    assert needed(Demand(1_000), MADE_UP, Server(cores=1)).first == "processor of the server"
    assert needed(Demand(1_000), MADE_UP, Server(connections=10)).first == "connections of the server"
    assert needed(Demand(1_000), MADE_UP, Server(log_bytes_s=1e6)).first == "write-ahead log of the server"


def test_the_planned_fleet_is_busy_as_planned_and_its_delay_is_short() -> None:
    need = needed(Demand(100), MADE_UP)
    fleet = Fleet(need.workers, math.ceil(need.slots / need.workers), math.ceil(need.server_cores))
    found = simulate(Demand(100), MADE_UP, fleet, seconds=10, seed=1)
    assert found.workers_busy < 0.65
    assert found.delay_p95_s < 1


def test_the_model_is_near_the_measured_throughput() -> None:
    costs = read_costs()
    modelled = batch(300, workers.TURNS, costs, slots=16)
    assert modelled == pytest.approx(costs.turns_per_s, rel=0.35), compared(costs)


def test_tables_have_a_line_for_each_rate() -> None:
    costs = read_costs()
    assert [line.split()[0] for line in sizes(costs)] == ["runs/s", "1", "100", "10,000"]
    assert [line.split()[0] for line in simulated(costs, rates=(1, 10), turns=800)] == ["runs/s", "1", "10"]


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_costs(MADE_UP, file := tmp_path / "costs.json")
    assert read_costs(file) == MADE_UP
