"""Make a recorded run a regression test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Journal
from orchestrator.runtime.run_replay import journal_of, replay_run


async def assert_replays(
    journal: Journal | Path | str, run_id: str, *, hooks: Iterable[object] = (), until: int | None = None
) -> None:
    """Check that a recorded run of an agent takes its recorded transitions again, without the world.

    The model, the tools and the clock give what the records have; graph, guards, hooks and limits are real.

    Args:
        journal: The journal, or a file that `orchestrator runs export --as-test` wrote.
        run_id: Id of the run.
        hooks: Hook modules or objects, as for `Agent`.
        until: Number of the last record to compare; None for all.

    Raises:
        AssertionError: A transition differs. The message has the fields of both contexts that differ.
        ConfigError: The run belongs to another graph, or the file is of another form.
        RunUnknown: The journal does not have the run.

    Example:
        await assert_replays(journal, "incident-17")
    """
    if isinstance(journal, Path | str):
        journal = await journal_of(_read(Path(journal)))
    found = await replay_run(run_id, await journal.load(run_id), hooks=hooks, until=until)
    difference = found.difference
    if difference is not None:
        fields = "".join(
            f"\n  {name}: recorded {ours!r:.200}, replayed {theirs!r:.200}"
            for name, (ours, theirs) in difference.fields.items()
        )
        raise AssertionError(f"run {run_id!r}: {difference}{fields}")


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ConfigError(f"{file} is not JSON; write it with `orchestrator runs export --as-test`")
    return data
