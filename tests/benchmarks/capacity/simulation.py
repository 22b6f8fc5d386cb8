"""A fleet as discrete events: arrivals, latencies of models, waits for people, and crashes of workers."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from tests.benchmarks.capacity.demand import SPREAD, Costs, Demand, Fleet

Process = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """The findings of one simulation."""

    turns_per_s: float
    delay_p50_s: float
    """Time of a run beyond its models and people."""
    delay_p95_s: float
    workers_busy: float
    """Share of their time that the workers' processors are used, 0 to 1."""
    server_busy: float
    repeated: int
    """Turns that were repeated after a crash."""


def simulate(demand: Demand, costs: Costs, fleet: Fleet, *, seconds: float, seed: int) -> Measured:
    """Simulate a fleet from its start; runs that arrive within `seconds` are followed to their ends.

    Args:
        demand: The work.
        costs: Measured costs.
        fleet: Workers and server.
        seconds: Time in which runs arrive.
        seed: Seed of all random values; the same seed gives the same findings.

    Raises:
        ValueError: No run arrives within `seconds`.
    """
    return _Simulation(demand, costs, fleet, random.Random(seed)).run(seconds)


def batch(runs: int, turns: int, costs: Costs, *, slots: int) -> float:
    """Return the turns a second of one worker on the measured machine, for runs that all wait at the start.

    This is the situation in which the costs were measured, so that both figures can be compared.
    """
    demand = Demand(0.0, turns, model_s=0.0, asking=0.0, crashes_per_hour=0.0)
    fleet = Fleet(1, slots, costs.cores, costs.cores)
    simulation = _Simulation(demand, costs, fleet, random.Random(0))
    for _ in range(runs):
        simulation.env.process(simulation.one_run())
    simulation.env.run()
    return runs * turns / float(simulation.env.now)


class _Worker:
    """A process: one interpreter, which one run uses at a time."""

    def __init__(self, env: simpy.Environment) -> None:
        self.interpreter = simpy.Resource(env, 1)
        self.runs = 0
        self.crashes = 0
        self.used = 0.0


class _Simulation:
    """One fleet and its runs."""

    def __init__(self, demand: Demand, costs: Costs, fleet: Fleet, chance: random.Random) -> None:
        self.env = simpy.Environment()
        self._demand, self._costs, self._chance, self._fleet = demand, costs, chance, fleet
        self._workers = [_Worker(self.env) for _ in range(fleet.workers)]
        self._slots = simpy.Resource(self.env, fleet.workers * fleet.slots)
        self._server = simpy.Resource(self.env, fleet.shared_cores or fleet.server_cores)
        self._cores = self._server if fleet.shared_cores else None
        self._commit: simpy.Event | None = None
        self._next_commit: simpy.Event | None = None
        self._server_used = 0.0
        self._delays: list[float] = []
        self._repeated = 0

    def run(self, seconds: float) -> Measured:
        """Simulate until the last run has ended."""
        self.env.process(self._arrive(seconds))
        for worker in self._workers:
            self.env.process(self._crash(worker, seconds))
        self.env.run()
        if not self._delays:
            raise ValueError(f"no run arrived within {seconds:g} s: simulate a longer time")
        delays = sorted(self._delays)
        return Measured(
            turns_per_s=len(delays) * self._demand.turns / seconds,
            delay_p50_s=statistics.median(delays),
            delay_p95_s=delays[int(0.95 * (len(delays) - 1))],
            workers_busy=sum(one.used for one in self._workers) / seconds / len(self._workers),
            server_busy=self._server_used / seconds / self._fleet.server_cores,
            repeated=self._repeated,
        )

    def one_run(self) -> Process:
        """Carry out a run: it takes a slot for its turns, and none while a person is asked."""
        began, own, left = self.env.now, 0.0, self._demand.turns
        while left:
            asked = False
            with self._slots.request() as slot:
                yield slot
                worker = min(self._workers, key=lambda one: one.runs)
                worker.runs += 1
                crashes = worker.crashes
                while left and not asked and crashes == worker.crashes:
                    own += yield from self._turn(worker)
                    if crashes == worker.crashes:
                        left -= 1
                        asked = self._chance.random() < self._demand.asking
                    else:
                        self._repeated += 1
                worker.runs -= 1
            if crashes != worker.crashes:
                yield self.env.timeout(self._costs.takeover_s)
            elif asked and left:
                wait = self._chance.expovariate(1 / self._demand.person_s)
                own += wait
                yield self.env.timeout(wait)
        self._delays.append(self.env.now - began - own)

    def _turn(self, worker: _Worker) -> Generator[simpy.Event, Any, float]:
        """Carry out a turn of two appends; return the time of its model."""
        latency = 0.0
        if self._demand.model_s:
            latency = self._chance.lognormvariate(math.log(self._demand.model_s), SPREAD)
        for half in (latency, 0.0):
            yield from self._used(worker)
            yield from self._append()
            if half:
                yield self.env.timeout(half)
        return latency

    def _used(self, worker: _Worker) -> Process:
        """Use the interpreter of a worker for half a turn, and a core if the machine shares them."""
        with worker.interpreter.request() as turn:
            yield turn
            if self._cores is None:
                yield self.env.timeout(self._costs.worker_s / 2)
            else:
                with self._cores.request() as core:
                    yield core
                    yield self.env.timeout(self._costs.worker_s / 2)
        worker.used += self._costs.worker_s / 2

    def _append(self) -> Process:
        """Use the server for one append, and wait for a commit that begins after it."""
        with self._server.request() as core:
            yield core
            yield self.env.timeout(self._costs.server_s / 2)
        self._server_used += self._costs.server_s / 2
        if self._commit is None:
            self._commit = self.env.event()
            self.env.process(self._flush())
            yield self._commit
        else:
            self._next_commit = self._next_commit or self.env.event()
            yield self._next_commit

    def _flush(self) -> Process:
        """Write the log as long as appends wait: one write serves all that were there when it began."""
        while self._commit is not None:
            yield self.env.timeout(self._costs.commit_s)
            self._commit.succeed()
            self._commit, self._next_commit = self._next_commit, None

    def _arrive(self, seconds: float) -> Process:
        while True:
            yield self.env.timeout(self._chance.expovariate(self._demand.runs_per_s))
            if self.env.now >= seconds:
                return
            self.env.process(self.one_run())

    def _crash(self, worker: _Worker, seconds: float) -> Process:
        while self._demand.crashes_per_hour:
            yield self.env.timeout(self._chance.expovariate(self._demand.crashes_per_hour / 3600))
            if self.env.now >= seconds:
                return
            worker.crashes += 1
