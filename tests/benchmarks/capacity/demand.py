"""The demand of a fleet, measured costs, and the resources that they need by the utilisation law."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

COSTS: Final = Path(__file__).parents[1] / "results" / "costs.json"
SPREAD: Final = 0.6
"""Sigma of the lognormal distribution of a model's latency: the 95th percentile is 2.7 times the median."""
BUSY: Final = 0.6
"""Share of a resource's time that is planned as used, so that queues stay short and a lost worker can be replaced."""
CONNECTIONS: Final = 12
"""Connections of a worker, at most."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of a turn with two appends, and of a dispatch as its share of a turn."""

    worker_s: float
    """Processor seconds of the worker."""
    server_s: float
    """Processor seconds of all PostgreSQL processes."""
    commit_s: float
    """Seconds until a commit is on the disk."""
    log_bytes: float
    """Bytes of the write-ahead log of PostgreSQL."""
    run_bytes: float
    """Bytes of memory of a run that waits for a model."""
    turns_per_s: float
    """Measured throughput of one worker, with `cores` shared by worker and server."""
    cores: int
    takeover_s: float
    """Seconds until another worker continues a run of a killed one."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work: how many runs arrive, what they do, and how often workers crash."""

    runs_per_s: float
    turns: int = 5
    model_s: float = 3.0
    """Median of the latency of a model, which has a lognormal distribution."""
    asking: float = 0.05
    """Share of the turns after which a person is asked."""
    person_s: float = 600.0
    """Mean time until the person answers."""
    crashes_per_hour: float = 0.1
    """Crashes of each worker."""

    @property
    def turns_per_s(self) -> float:
        return self.runs_per_s * self.turns

    @property
    def mean_latency(self) -> float:
        """Mean of the latency of a model in seconds."""
        return self.model_s * math.exp(SPREAD**2 / 2)


@dataclass(frozen=True, slots=True)
class Server:
    """One PostgreSQL server, by its limits."""

    cores: int = 16
    connections: int = 500
    log_bytes_s: float = 100e6
    """Bytes of write-ahead log that its disk and its standby take in a second."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers of one database. `shared_cores`: workers and server share these, as on a machine of a developer."""

    workers: int
    slots: int
    """Runs that one worker executes at once."""
    server_cores: int
    shared_cores: int | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """The resources that a demand needs, at most `BUSY` used."""

    workers: int
    slots: int
    """Runs that wait for a model or work, in all workers together."""
    memory_bytes: float
    server_cores: float
    connections: int
    log_bytes_s: float
    databases: int
    first: str
    """The resource of one database that is exhausted first when the demand grows."""
    most_runs_per_s: float
    """Demand at which that happens."""


def needed(demand: Demand, costs: Costs, server: Server | None = None) -> Need:
    """Return the resources for a demand by the utilisation law, with as many databases as the limits of one require.

    Example:
        >>> costs = Costs(0.002, 0.001, 0.001, 6_000, 30_000, 300, 2, 3)
        >>> needed(Demand(100), costs).workers
        2
    """
    server, turns = server or Server(), demand.turns_per_s
    busy = turns * costs.worker_s / BUSY
    workers = max(1, math.ceil(busy))
    slots = math.ceil(turns * (demand.mean_latency + 0.1) / BUSY)
    used = {
        "processor of the server": turns * costs.server_s / BUSY / server.cores,
        "connections of the server": busy * CONNECTIONS / server.connections,
        "write-ahead log of the server": turns * costs.log_bytes / BUSY / server.log_bytes_s,
    }
    first = max(used, key=lambda name: used[name])
    return Need(
        workers=workers,
        slots=slots,
        memory_bytes=slots * costs.run_bytes,
        server_cores=turns * costs.server_s / BUSY,
        connections=workers * CONNECTIONS,
        log_bytes_s=turns * costs.log_bytes,
        databases=max(1, math.ceil(used[first])),
        first=first,
        most_runs_per_s=demand.runs_per_s / used[first],
    )


def read_costs(file: Path = COSTS) -> Costs:
    """Return the measured costs. Raises FileNotFoundError."""
    return Costs(**json.loads(file.read_text(encoding="utf-8")))


def write_costs(costs: Costs, file: Path = COSTS) -> None:
    """Write measured costs."""
    file.write_text(json.dumps(asdict(costs), indent=1) + "\n", encoding="utf-8")
