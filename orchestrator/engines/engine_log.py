"""What an engine writes to the log of its process: that it started and ended, and each order that it was given.

One line each, of the standard library's logger `orchestrator`; with `configure_logging` it is a JSON line in the schema
of the others. The journal has the same for good, with what came of it (`orchestrator runs events ENGINE`).
"""

from __future__ import annotations

import logging
from typing import Any

from orchestrator.engines.operator_command import KINDS
from orchestrator.engines.registration import Registration

_KEYS = {"graph": "machine", "slots": "limit", "grace": "duration_s"}
"""What an order is about -> the key of the log that has it; tools and models have their own names there."""


_log = logging.getLogger("orchestrator")


class EngineLog:
    """Writes the lines of one engine: `name` is what operators call it, `registration` has its run in the journal."""

    def __init__(self, name: str, registration: Registration) -> None:
        self._name = name
        self._registration = registration

    @property
    def _own(self) -> dict[str, str]:
        return {"engine": self._name, "run_id": self._registration.run_id}

    def started(self, slots: int, found: int) -> None:
        """Say that it takes runs; `found` had not ended when it started."""
        _log.info("engine.started", extra={**self._own, "limit": slots, "runs": found})

    def ordered(self, kind: str, by: str, why: str, about: Any = None, *, refused: str = "") -> None:
        """Say what was ordered, once it stands in the journal and before it is carried out; or why it is not."""
        member = KINDS.get(kind)
        of = {} if member is None or about is None else {_KEYS.get(member, member): about}
        outcome = {"outcome": "refused" if refused else "ok", "reason": refused or why}
        order = {"operation": kind, "by": by or "somebody", **outcome, **of}
        _log.info("engine.order", extra={**self._own, **order})

    def ended(self, left: int) -> None:
        """Say that it has stopped, and how many runs it left to others."""
        _log.info("engine.ended", extra={**self._own, "runs": left})
