"""Changes of a project outside the plan, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.machines.approval.plan import Fingerprint

_INSTEAD = {
    "directory": "a folder is there",
    "symlink": "a symlink is there",
    "special": "a device, pipe or socket is there",
    "unreachable": "its folder is no longer a folder",
}


@dataclass(frozen=True, slots=True)
class DriftEntry:
    """One file that differs from its expected state."""

    expected: Fingerprint
    found: Fingerprint

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.expected.path

    @property
    def why(self) -> str:
        """Description of the difference for a person."""
        if self.found.sha256 is None:
            there = _INSTEAD.get(self.found.encoding or "")
            return "was removed outside" if there is None else f"was replaced outside: {there}"
        return "was made outside" if self.expected.sha256 is None else "was changed outside"

    def plain(self) -> dict[str, Any]:
        """Return the entry as JSON types."""
        sides = {"expected": self.expected, "found": self.found}
        return {
            "path": self.path,
            "why": self.why,
            **{name: side.model_dump(mode="json", exclude={"path"}) for name, side in sides.items()},
        }

    def __str__(self) -> str:
        return f"{self.path!r} {self.why}"


@dataclass(frozen=True, slots=True)
class DriftReport:
    """All differences in order of the paths. False if there are none."""

    entries: tuple[DriftEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def plain(self) -> list[dict[str, Any]]:
        """Return the report as JSON types."""
        return [entry.plain() for entry in self.entries]
