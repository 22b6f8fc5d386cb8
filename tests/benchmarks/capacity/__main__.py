"""A model of a fleet: how many workers and which PostgreSQL a load needs, and which resource is exhausted first.

`python -m tests.benchmarks.capacity` reads measured costs (`results/costs.json`; `--measure` measures them on this
machine, about a minute, and writes them), simulates fleets as discrete events, and prints the tables of
`orchestrator/engines/README.md`. A simulation draws arrivals, latencies of models, waits for people and crashes of
workers from one seed.

`needed` uses the utilisation law: the processor time that a resource spends each second is throughput times cost. It
gives the size of fleets that are too large to simulate; the simulation shows, for the smaller ones, that the delay is
acceptable at that size.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace

from tests.benchmarks.capacity.demand import Costs, Demand, Fleet, needed, read_costs, write_costs
from tests.benchmarks.capacity.measured import RUNS, SLOTS, measured_costs
from tests.benchmarks.capacity.simulation import batch, simulate
from tests.benchmarks.workers import TURNS


def sizes(costs: Costs, rates: tuple[float, ...] = (1, 100, 10_000)) -> Iterator[str]:
    """Yield the table of the fleets that these numbers of runs a second need."""
    yield (
        f"{'runs/s':>8} {'workers':>8} {'slots':>8} {'memory':>9} {'cores of':>9} {'WAL':>9} {'databases':>10}"
        "  first limit of one database"
    )
    for rate in rates:
        need = needed(Demand(rate), costs)
        yield (
            f"{rate:8,.0f} {need.workers:8,} {need.slots:8,} {need.memory_bytes / 1e9:6.1f} GB {need.server_cores:9.1f}"
            f" {need.log_bytes_s / 1e6:4.1f} MB/s {need.databases:10,}"
            f"  {need.first}, at {need.most_runs_per_s:,.0f} runs/s"
        )


def simulated(
    costs: Costs, rates: tuple[float, ...] = (1, 10, 100), seed: int = 1, turns: int = 40_000
) -> Iterator[str]:
    """Yield the table of simulations of those fleets, each of about so many turns."""
    yield f"{'runs/s':>8} {'delay p50':>10} {'delay p95':>10} {'workers':>8} {'server':>7} {'repeated turns':>15}"
    for rate in rates:
        need = needed(Demand(rate), costs)
        fleet = Fleet(
            need.workers, math.ceil(need.slots / need.workers), max(1, math.ceil(need.server_cores))
        )
        seconds = min(3_600.0, turns / rate / Demand(rate).turns)
        found = simulate(Demand(rate), costs, fleet, seconds=seconds, seed=seed)
        yield (
            f"{rate:8,.0f} {found.delay_p50_s * 1e3:7.0f} ms {found.delay_p95_s * 1e3:7.0f} ms"
            f" {found.workers_busy:8.0%} {found.server_busy:7.0%} {found.repeated:15,}"
        )


def compared(costs: Costs) -> str:
    """Return the throughput of the model beside the measured one, as one line."""
    modelled = batch(RUNS, TURNS, costs, slots=SLOTS)
    return (
        f"one worker and its server on {costs.cores} cores: {costs.turns_per_s:,.0f} turns/s measured,"
        f" {modelled:,.0f} in the model ({modelled / costs.turns_per_s - 1:+.0%})"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.capacity", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the simulations")
    parser.add_argument(
        "--faster", type=float, default=1.0, help="divide processor costs by this: other machines"
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure the costs on this machine and write them"
    )
    options = parser.parse_args()
    if options.measure:
        write_costs(measured_costs())
    costs = read_costs()
    print(compared(costs), "", sep="\n")
    scaled = replace(
        costs, worker_s=costs.worker_s / options.faster, server_s=costs.server_s / options.faster
    )
    print(*sizes(scaled), "", *simulated(scaled, seed=options.seed), sep="\n")


if __name__ == "__main__":
    main()
