"""Recorded conversations, played through the loop into a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.journal.memory import MemoryJournal
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.replay import ReplayError, ReplayLLM, ReplayTools, scan, split_runs
from orchestrator.runtime.llm_loop.agent import Agent


async def played(corpus: Path, limits: dict[str, Any]) -> tuple[MemoryJournal, int]:
    """Run each run of each conversation under the limits; return their journal and their number."""
    journal, runs = MemoryJournal(), 0
    for record in scan(corpus):
        assert not isinstance(record, ReplayError)
        for script in split_runs(record):
            agent = Agent(
                ReplayLLM(script),
                tools=ReplayTools(script),
                limits=Limits(**limits),
                journal=journal,
                observers=(),
                retry=RetryPolicy(attempts=1),
                name=f"conversation-{runs}",
            )
            await agent.run([*script.history, *script.prompt])
            runs += 1
    return journal, runs
