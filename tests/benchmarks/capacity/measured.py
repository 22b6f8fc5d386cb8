"""The costs of a turn on this machine: a worker, its PostgreSQL server, and runs whose model answers at once.

The cost of the start of the worker is taken off by a second, smaller batch.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks import machine, workers
from tests.benchmarks.capacity.demand import Costs
from tests.benchmarks.stores import DISK
from tests.postgres import Cluster, cluster

RUNS: Final = 300
SLOTS: Final = 16
"""Slots of the measured worker (`workers._people`)."""
_FEW: Final = 30
_RUN_BYTES: Final = 29 * 1024
"""Memory of a run that waits for a model: case "10,000 runs" of `make bench-peers`."""


def measured_costs() -> Costs:
    """Measure the costs, which takes about a minute. Raises RuntimeError without PostgreSQL."""
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=DISK)))
        few, many = (_batch(disk, runs) for runs in (_FEW, RUNS))
        _, takeover = workers.measure(workers=(), kills=5)
    turns = (RUNS - _FEW) * workers.TURNS
    return Costs(
        worker_s=(many.worker_s - few.worker_s) / turns,
        server_s=(many.server_s - few.server_s) / turns,
        commit_s=statistics.median(machine.sync_ms(DISK)) / 1e3,
        log_bytes=(many.log_bytes - few.log_bytes) / turns,
        run_bytes=_RUN_BYTES,
        turns_per_s=many.turns_per_s,
        cores=os.cpu_count() or 1,
        takeover_s=takeover.p50_s if takeover else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """The costs of one batch of runs."""

    worker_s: float
    server_s: float
    log_bytes: float
    turns_per_s: float


def _batch(disk: Path, runs: int) -> _Batch:
    with cluster(DISK) as server:
        database = server.database()
        asyncio.run(workers.leave(database, runs))
        spent, written = workers.processor_seconds(server.pid), _log_position(server)
        carried = asyncio.run(workers.executed(database, disk, 1, runs))
        return _Batch(
            carried.processor_s,
            workers.processor_seconds(server.pid) - spent,
            _log_position(server) - written,
            carried.turns_per_s,
        )


def _log_position(server: Cluster) -> float:
    [(position,)] = server.tell("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
    return float(position)
