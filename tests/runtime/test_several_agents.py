"""The cost of each pattern of several agents, and its runs, counted in the programs of their guide."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import MemoryJournal, Request, Response
from orchestrator.llm.message import input_bound, output_estimate
from orchestrator.testing import ScriptedLLM

GUIDE = Path(__file__).parents[2] / "orchestrator/runtime/SEVERAL_AGENTS.md"
PATTERN = re.compile(r"^## (\w+)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def counted(journal: MemoryJournal) -> tuple[list[str], int, int]:
    """Return the runs of a journal, the answers of models, and the number of records."""
    heads = [head.run_id async for head in journal.runs()]
    kinds = [record.kind for run_id in heads for record in await journal.load(run_id)]
    return sorted(heads), kinds.count("answer"), len(kinds)


async def tagged(journal: MemoryJournal) -> list[str]:
    """Return the runs of a journal that have a tag with the case that they are for."""
    return sorted(
        [head.run_id async for head in journal.runs() if head.tags == {"case": head.run_id.partition(".")[0]}]
    )


def rows_of(text: str, name: str) -> list[str]:
    table = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert table is not None
    return table[1].splitlines()[2:]


def test_the_tables_of_costs_and_runs_count_the_programs_of_the_guide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = [0, 0]
    complete = ScriptedLLM.complete

    async def measured(llm: ScriptedLLM, request: Request) -> Response:
        response = await complete(llm, request)
        tokens[0] += input_bound(request.messages, request.tools)
        tokens[1] += output_estimate(response)
        return response

    monkeypatch.setattr(ScriptedLLM, "complete", measured)
    text = GUIDE.read_text(encoding="utf-8")
    costs, trees = [], []
    for pattern, program in PATTERN.findall(text):
        tokens[:] = 0, 0
        names: dict[str, Any] = {"__name__": __name__}  # dataclasses look their module up
        exec(compile(program, f"{GUIDE}: {pattern}", "exec"), names)  # noqa: S102  a program of the guide
        runs, requests, records = asyncio.run(counted(names["journal"]))
        if pattern in {"Triage", "Pipeline"}:
            assert asyncio.run(tagged(names["journal"])) == runs, "found and stopped by their tag"
        figures = len(runs), requests, *tokens, records
        costs.append(f"| {pattern.lower()} | {' | '.join(map(str, figures))} |")
        trees.append(f"| {pattern.lower()} | {', '.join(f'`{run_id}`' for run_id in runs)} |")
    assert len(costs) == 5
    assert rows_of(text, "several-agents") == costs
    assert rows_of(text, "several-agents-runs") == trees
