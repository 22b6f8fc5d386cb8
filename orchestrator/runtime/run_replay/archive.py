"""The records of one run as a file for a test: secrets are replaced, options of the command line are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.redacted import parted
from orchestrator.kernel.journal import Draft, Record
from orchestrator.kernel.redaction import replace_secrets

FORMAT: Final = "orchestrator-records/1"
_LEFT_OUT: Final = frozenset(("launch", "metadata", "deposited"))
"""Members of the first record that a replay does not need: they may name keys, addresses and people."""


def archive_of(run_id: str, records: Iterable[Record]) -> dict[str, Any]:
    """Return the records of a run as plain data. Equal secrets get equal replacements, `[redacted 1]` and so on."""
    known: dict[str, str] = {}

    def replacement(secret: str) -> str:
        return known.setdefault(secret, f"[redacted {len(known) + 1}]")

    plain = []
    for record in records:
        body = {name: value for name, value in record.body.items() if name not in _LEFT_OUT}
        plain.append([record.kind, _cleaned(body, parted(record.kind, body).content, replacement)])
    return {"format": FORMAT, "run_id": run_id, "records": plain}


async def journal_of(data: Mapping[str, Any]) -> MemoryJournal:
    """Return a journal with the archived run. Raises ConfigError for data of another form."""
    kind = data.get("format", FORMAT)
    if kind != FORMAT:
        raise ConfigError(f"the format of the archive is {kind!r:.60}; it must be {FORMAT!r}")
    try:
        (_, created), *rest = data["records"]
        drafts = [Draft(str(kind), dict(body)) for kind, body in rest]
        run_id = str(data["run_id"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"this is no archived run ({type(error).__name__}); export it again") from None
    journal = MemoryJournal()
    lease = await journal.create(run_id, "archive", created)
    if drafts:
        journal.append(lease, drafts)
    await journal.release(lease)
    return journal


def _cleaned(body: Any, content: Any, replacement: Any) -> Any:
    """Return a body whose content has no secrets. `content` is the part of the body that is content."""
    if isinstance(body, Mapping) and isinstance(content, Mapping):
        return {
            name: _cleaned(value, content[name], replacement) if name in content else value
            for name, value in body.items()
        }
    if isinstance(body, list | tuple) and isinstance(content, list | tuple) and len(body) == len(content):
        return [_cleaned(one, other, replacement) for one, other in zip(body, content, strict=True)]
    return replace_secrets(body, replacement) if isinstance(body, str) else body
