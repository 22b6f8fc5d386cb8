"""Log lines of an engine: its start, its end and each operator command.

Each is one line of the standard library's logger `orchestrator`. After `configure_logging` it is a JSON line in the
schema of all other lines. The journal stores the same events permanently (`orchestrator runs events ENGINE`).
"""

from __future__ import annotations

import logging
from typing import Any

from orchestrator.engines.operator_command import KINDS
from orchestrator.engines.registration import Registration

_KEYS = {"graph": "machine", "slots": "limit", "grace": "duration_s"}
"""Object of a command -> its log key; tools and models keep their names."""


_log = logging.getLogger("orchestrator")


class EngineLog:
    """Write the log lines of one engine. `name` is the engine's name, `registration` its run in the journal."""

    def __init__(self, name: str, registration: Registration) -> None:
        self._name = name
        self._registration = registration

    @property
    def _own(self) -> dict[str, str]:
        return {"engine": self._name, "run_id": self._registration.run_id}

    def started(self, slots: int, found: int) -> None:
        """Log that the engine admits runs; `found` is how many runs had not ended when it started."""
        _log.info("engine.started", extra={**self._own, "limit": slots, "runs": found})

    def ordered(self, kind: str, by: str, why: str, about: Any = None, *, refused: str = "") -> None:
        """Log a command after it was journalled and before it is carried out, or the reason why it was refused."""
        member = KINDS.get(kind)
        of = {} if member is None or about is None else {_KEYS.get(member, member): about}
        outcome = {"outcome": "refused" if refused else "ok", "reason": refused or why}
        order = {"operation": kind, "by": by or "unknown", **outcome, **of}
        _log.info("engine.order", extra={**self._own, **order})

    def ended(self, left: int) -> None:
        """Log that the engine has stopped, and how many runs it left in the journal."""
        _log.info("engine.ended", extra={**self._own, "runs": left})
