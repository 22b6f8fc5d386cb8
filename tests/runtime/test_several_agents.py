"""The cost of each pattern of several agents, counted in the programs of their guide."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from orchestrator import MemoryJournal

GUIDE = Path(__file__).parents[2] / "orchestrator/runtime/SEVERAL_AGENTS.md"
PATTERN = re.compile(r"^## (\w+)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def counted(journal: MemoryJournal) -> tuple[int, int, int]:
    """Return the runs of a journal, the answers of models, and the records."""
    runs = [await journal.load(head.run_id) async for head in journal.runs()]
    kinds = [record.kind for records in runs for record in records]
    return len(runs), kinds.count("answer"), len(kinds)


def test_the_table_of_costs_counts_the_programs_of_the_guide() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    rows = []
    for pattern, program in PATTERN.findall(text):
        names: dict[str, Any] = {"__name__": __name__}  # dataclasses look their module up
        exec(compile(program, f"{GUIDE}: {pattern}", "exec"), names)  # noqa: S102  a program of the guide
        runs, requests, records = asyncio.run(counted(names["journal"]))
        rows.append(f"| {pattern.lower()} | {runs} | {requests} | {records} |")
    assert len(rows) == 5
    table = re.search(r"<!-- several-agents -->\n(.*?)<!-- /several-agents -->", text, re.DOTALL)
    assert table is not None
    assert table[1].splitlines()[2:] == rows
