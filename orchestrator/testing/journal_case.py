"""Base of the tests of the journal contract: a store for each test, an event loop, records to write."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from orchestrator.kernel.journal import Draft, Journal, write_records

write = write_records
"""Short name for the many tests of a journal."""

BODY: dict[str, Any] = {
    "graph": "llm_loop",
    "fingerprint": "f" * 64,
    "at": 1000.5,
    "parent_run_id": "parent",
    "conversation_id": "talk",
    "schema": 1,
}
NOTE = Draft("note", {"text": "größer ☃", "list": [1, 2.5, None, True], "deep": {"a": {"b": [{}]}}})
PARKED = Draft("parked", {"reason": "approval"})
ENDED = Draft("ended", {"reason": "max_iterations"})


def in_a_loop(
    test: Callable[[Any, Journal], Coroutine[Any, Any, None]],
) -> Callable[[Any, Path], None]:
    """Run a test with its own store in its own event loop."""

    @functools.wraps(test)
    def run(self: JournalCase, tmp_path: Path) -> None:
        async def inside() -> None:
            self.folder = tmp_path
            journal = self.again()
            try:
                await test(self, journal)
            finally:
                await journal.close()

        asyncio.run(inside())

    del run.__wrapped__  # pytest would read its signature
    return run


async def ended(journal: Journal, run_id: str, *, blobs: Sequence[bytes] = ()) -> None:
    """Create a run that has ended and was released."""
    lease = await journal.create(run_id, "me", BODY)
    await write(journal, lease, ENDED, blobs={digest(content): content for content in blobs})
    await journal.release(lease)


def digest(content: bytes) -> str:
    """Return the name of a blob."""
    return hashlib.sha256(content).hexdigest()


async def kinds(journal: Journal, run_id: str) -> list[str]:
    """Return the kinds of a run's records."""
    return [record.kind for record in await journal.load(run_id)]


class JournalCase:
    """A store for each test. Override `store`, and `die` if closing a store does not end its owners."""

    folder: Path

    def store(self, folder: Path) -> Journal:
        """Return a store; a second one for the same folder holds the same data."""
        raise NotImplementedError

    def again(self) -> Journal:
        """Return another handle of this test's data."""
        return self.store(self.folder)

    async def die(self, journal: Journal, owner: str) -> None:  # noqa: ARG002  for overriding methods
        """End an owner of runs through `journal`."""
        await journal.close()
