"""The stored results of runs, read from their journal by the tool `read_result`."""

from __future__ import annotations

from orchestrator.kernel.journal import Journal
from orchestrator.tools.stored_result import NoSuchResult


class StoredResults:
    """Whole texts of results that were cut. A run can read its own only, because a handle is looked up in its records.

    Args:
        journal: The journal of the runs.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def read(self, run_id: str, handle: str) -> str:
        """Return the whole text of a result.

        Args:
            run_id: The run that reads.
            handle: The key of the call, as in the mark of the cut result.

        Raises:
            NoSuchResult: The run has no stored result with this handle.
            JournalError: The journal cannot be read, or the content is damaged.
        """
        digests = {
            record.body["key"]: record.body["whole"]
            for record in await self._journal.load(run_id)
            if record.kind == "done" and "whole" in record.body
        }
        if handle not in digests:
            known = ", ".join(digests) or "none"
            raise NoSuchResult(f"there is no stored result {handle!r} in this run; stored results: {known}")
        return (await self._journal.blob(digests[handle])).decode()
