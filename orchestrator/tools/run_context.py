"""What functions of the host about a whole run receive: deps factories and functions that give instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run, as its host started it.

    Example:
        def connect(run: RunContext) -> Database:
            return Database(tenant=run.metadata["tenant"])

        agent = Agent(llm, deps=connect)
    """

    run_id: str
    metadata: Mapping[str, Any]
    """The JSON data that the host gave the run. Not to be changed."""
    tags: Mapping[str, str]
    deps: Any = None
    """The host's own handles; None for the factory that makes them."""
