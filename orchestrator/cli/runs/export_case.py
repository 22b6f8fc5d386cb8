"""`orchestrator runs export --as-case`: runs as cases of an evaluation set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json
from orchestrator.cli.runs.export import write_new
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.runtime.evaluation.case_file import cases_text
from orchestrator.runtime.evaluation.recorded_case import recorded_case


def export_cases(
    names: Sequence[str], file: Path, *, alone: bool, json: bool, journal: Address | None
) -> int:
    """Write runs as cases to a new file. Raises ConfigError, before anything is written."""
    if not alone:
        raise ConfigError("--as-case writes its own file: leave out --content, --output and --as-test")
    cases_text((), file.suffix)  # an unknown format is refused before a run is read

    async def work(store: OpenStore) -> list[dict[str, Any]]:
        heads = {head.run_id: head for head in [await store.run(name) for name in names]}
        return [await recorded_case(run_id, await store.journal.load(run_id)) for run_id in heads]

    cases = at_journal(journal, work, only_reads=True)
    write_new(file, cases_text(cases, file.suffix).rstrip("\n"))
    if json:
        say_json({"cases": [case["name"] for case in cases], "output": str(file.absolute())})
    else:
        say(
            f"{file}: {many(len(cases), 'case')}. Review what they expect, and their texts, before you share them"
        )
    return Exit.COMPLETED
