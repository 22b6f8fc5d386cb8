"""The one thread that writes to the server: queued appends together (`batch`), other jobs one by one (`work`).

It also sends the heartbeats, so that a busy event loop does not look like a dead process, and a frozen process does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from orchestrator.errors import Corrupt, JournalError, RunError, StoreDown
from orchestrator.journal.postgres.batch import AppendBatch, Db, PostgresAppend
from orchestrator.journal.postgres.error_mapping import explain
from orchestrator.journal.postgres.presence import PostgresPresence
from orchestrator.journal.postgres.session import PostgresSession
from orchestrator.journal.postgres.work import PostgresClaim, PostgresCreate
from orchestrator.journal.writer_thread import DeferredWork, Outcome, WriterJob, WriterThread
from orchestrator.kernel.journal import Lease

_Job: TypeAlias = WriterJob[Db, Any]

SOON: Final = 0.5
"""Seconds to wait for an unreachable server to release a run; after that the release is owed."""


class PostgresWriter(WriterThread[Db]):
    """Owns the writing session from its start on."""

    def __init__(
        self, session: PostgresSession, presence: PostgresPresence, *, limit: int, name: str
    ) -> None:
        super().__init__(limit=limit, name=name)
        self._session = session
        self._presence = presence

    def stop(self, timeout: float | None = None) -> None:
        """Write the queued jobs without waiting for an unreachable server, then end the thread."""
        self._session.stopping.set()
        super().stop(timeout)

    def _commit(self, jobs: Sequence[_Job]) -> None:
        for group in _groups(jobs):
            if isinstance(group[0].work, PostgresAppend):
                self._append(group)
            else:
                self._alone(group[0])
            self._idle()

    def _append(self, jobs: Sequence[_Job]) -> None:
        batch = AppendBatch()
        try:
            added = [
                (job, job.work, batch.add(job.work)) for job in jobs if isinstance(job.work, PostgresAppend)
            ]
            self._session.run(batch)
        except (StoreDown, Corrupt) as error:
            self._fail(jobs, error)
        except Exception as error:  # noqa: BLE001  a job that cannot be stored must not fail the others
            self._one_by_one(jobs, self._explained(error))
        else:
            batch.settle()
            self.commits += 1
            self._deliver([(job, None, fault or batch.outcome(append)) for job, append, fault in added])

    def _alone(self, job: _Job) -> None:
        outcome: Outcome
        gives_back = isinstance(job.work, DeferredWork)
        try:
            outcome = job, self._session.run(job.work, SOON if gives_back else None), None
            self.commits += 1
        except StoreDown as away:
            if gives_back:
                self._owe(job)
                return
            if isinstance(job.work, PostgresCreate | PostgresClaim) and self._session.lost:
                job.work.doubt()
            outcome = job, None, away
        except RunError as refused:
            outcome = job, None, refused
        except Exception as error:  # noqa: BLE001  passed to the caller of the job
            outcome = job, None, self._explained(error)
        self._deliver([outcome])

    def _explained(self, error: Exception) -> JournalError:
        return explain(error, self._session.address)

    def _idle(self) -> float | None:
        wait = self._presence.wait()
        if wait:
            return wait
        if wait is not None:
            self._presence.postpone()
            # If this fails, the next job reports it, or the next heartbeat succeeds.
            with contextlib.suppress(JournalError):
                self._session.run(self._presence.write, 0.0)
                while self._owed:
                    self._session.run(self._owed[0].work, 0.0)
                    del self._owed[0]
        return self._presence.wait()

    def _close(self) -> None:
        self._session.close(self._presence.end)


def _groups(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Yield the jobs in groups, in order: appends with one lease for each run, or one other job."""
    group: list[_Job] = []
    leases: dict[str, Lease] = {}
    for job in jobs:
        work = job.work
        lease = work.lease if isinstance(work, PostgresAppend) else None
        if lease is not None and leases.setdefault(lease.run_id, lease) is lease:
            group.append(job)
            continue
        if group:
            yield group
        group, leases = [], {}
        if lease is None:
            yield [job]
        else:
            group, leases = [job], {lease.run_id: lease}
    if group:
        yield group
