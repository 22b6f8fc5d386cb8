"""Consents to configuration files: one small file for each content, file and working directory."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from orchestrator.cli.trust.project_file import ProjectFile
from orchestrator.cli.trust.state import folders, read_all_state, read_state, remove_state, write_state
from orchestrator.errors import ConfigError

_PREFIX = "consent-"


@dataclass(frozen=True, slots=True)
class TrustConsent:
    """A content of a file that the user trusts in one working directory."""

    file: str
    folder: str
    digest: str
    at: float = 0.0
    """When it was recorded, in seconds since the epoch."""

    @classmethod
    def to(cls, file: ProjectFile) -> TrustConsent:
        """Return the consent that a file needs."""
        return cls(str(file.path), str(file.folder), file.digest)

    @property
    def name(self) -> str:
        """Name of the file of the consent."""
        key = json.dumps([self.file, self.folder, self.digest])
        return f"{_PREFIX}{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}.json"

    @property
    def is_recorded(self) -> bool:
        """Whether the user gave it."""
        return any(True for _ in read_state(self.name))

    def record(self) -> None:
        """Record it. Raises ConfigError if no place for it can be written."""
        body = json.dumps({**asdict(self), "at": time.time()}).encode()
        if write_state(self.name, body) is None:
            raise ConfigError(
                f"the consent {unwritable()}, or allow it with --trust for each command, or with ORCHESTRATOR_TRUST"
            )

    def revoke(self) -> None:
        """Remove it. Raises OSError."""
        remove_state(self.name)


def consents() -> Iterator[TrustConsent]:
    """Yield every consent that is recorded."""
    for _, data in read_all_state(_PREFIX):
        try:
            yield TrustConsent(**json.loads(data))
        except (ValueError, TypeError):  # a later version wrote it
            continue


def unwritable() -> str:
    """Return the end of the sentence about state that cannot be written."""
    tried = ", ".join(map(str, folders()))
    return f"cannot be recorded: no folder can be written of {tried}; set XDG_STATE_HOME to a folder of yours"
