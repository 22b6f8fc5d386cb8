"""A store that takes no new run says so as a write that failed; an id that it knows is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import JournalError, RunExists
from orchestrator.kernel.fact import JournalWrite
from orchestrator.kernel.journal import Lease
from tests.kernel.toy import CountingJournal, SlowJournal, rig

BOTH = pytest.mark.parametrize("journal", [CountingJournal, SlowJournal], ids=["at once", "awaited"])


class Full(JournalError):
    kind = "full"


@pytest.mark.parametrize(("error", "outcome"), [(Full("disk full"), "full"), (OSError("EIO"), "other")])
@BOTH
async def test_a_run_that_the_store_refuses_to_begin_is_told_as_a_write_that_failed(
    journal: type[CountingJournal | SlowJournal], error: Exception, outcome: str
) -> None:
    class Dead(journal):  # type: ignore[misc, valid-type]
        async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
            raise error

    a = rig(journal=Dead())
    with pytest.raises(type(error)):
        await a.driver.drive(a.run)
    told = [(w.backend, w.operation, w.records, w.outcome) for w in a.facts.of(JournalWrite)]
    assert told == [(Dead.backend, "create", 1, outcome)]


@BOTH
async def test_an_id_that_is_known_is_no_failure_of_the_store(journal: Any) -> None:
    shared = journal()
    first, again = rig(journal=shared), rig(journal=shared)
    await first.driver.drive(first.run)
    with pytest.raises(RunExists):
        await again.driver.drive(again.run)
    assert again.facts.of(JournalWrite) == []
