"""Names of the keys of a log line: ours, those of the Elastic Common Schema, or those of OpenTelemetry.

Runbooks, the schema and `orchestrator report` use ours. The other forms are for a log store that expects its own names;
keys without a name there get the prefix `orchestrator.`, and fields of the host keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from orchestrator.errors import ConfigError

FieldNames: TypeAlias = Literal["orchestrator", "ecs", "otel"]

_SEVERITY = {"debug": 5, "info": 9, "warning": 13, "error": 17, "critical": 21}

_ECS = {
    "ts": "@timestamp",
    "level": "log.level",
    "msg": "message",
    "logger": "log.logger",
    "service": "service.name",
    "pid": "process.pid",
    "trace_id": "trace.id",
    "span_id": "span.id",
    "error_type": "error.type",
    "error_code": "error.code",
}
_OTEL = {
    "ts": "timestamp",
    "level": "severity_text",
    "msg": "body",
    "logger": "otel.scope.name",
    "service": "service.name",
    "pid": "process.pid",
    "trace_id": "trace_id",
    "span_id": "span_id",
    "agent": "gen_ai.agent.name",
    "model": "gen_ai.request.model",
    "provider": "gen_ai.provider.name",
    "tool": "gen_ai.tool.name",
    "tokens_in": "gen_ai.usage.input_tokens",
    "tokens_out": "gen_ai.usage.output_tokens",
    "error_type": "error.type",
}


@dataclass(frozen=True, slots=True)
class Renamer:
    """Renames the keys of a line."""

    names: Mapping[str, str]
    ours: frozenset[str]
    constant: Mapping[str, Any] = field(default_factory=dict)
    severity: bool = False

    def __call__(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the line under other names."""
        found = {self._name(key): value for key, value in line.items()} | dict(self.constant)
        if self.severity:
            found["severity_number"] = _SEVERITY.get(str(line.get("level")), 0)
        return found

    def _name(self, key: str) -> str:
        return self.names.get(key) or (f"orchestrator.{key}" if key in self.ours else key)


def renamer(names: FieldNames, ours: frozenset[str]) -> Renamer | None:
    """Return what renames the keys of a line; None for our own names. Raises ConfigError for an unknown form."""
    match names:
        case "orchestrator":
            return None
        case "ecs":
            return Renamer(_ECS, ours, {"ecs.version": "8.11.0"})
        case "otel":
            return Renamer(_OTEL, ours, severity=True)
    raise ConfigError(f"names is {names!r}; it must be 'orchestrator', 'ecs' or 'otel'")
