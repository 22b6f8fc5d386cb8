"""Calls of agents and their usage, as text and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import shown
from orchestrator.cli.runs.phrase import many, table
from orchestrator.llm.usage import Usage

if TYPE_CHECKING:
    from orchestrator.machines.ralph.model import RoleCall


def stored_calls(context: Mapping[str, Any]) -> list[RoleCall]:
    """Return the calls in a stored context; none for a graph without coding agents."""
    if not (stored := context.get("agent_calls")):
        return []
    # Here, because the module builds schemas: an eighth of the instructions of `runs show`.
    from orchestrator.machines.ralph.contract import Role
    from orchestrator.machines.ralph.model import RoleCall

    return [
        RoleCall(**{**one, "role": Role(one["role"]), "usage": Usage.of(one.get("usage") or {})})
        for one in stored
    ]


def call_table(calls: Sequence[RoleCall]) -> list[str]:
    """Return the calls as a table, with their sessions."""
    rows = [
        (
            one.role.value,
            one.task_id or "-",
            shown(one.agent or one.child_run_id or "-", 60),
            shown(one.model or "-", 40),
            shown(one.session or "-", 60),
            tokens_phrase(one.usage),
            cost_phrase(one.usage).removeprefix("cost "),
        )
        for one in calls
    ]
    return table(("role", "task", "agent", "model", "session", "tokens", "cost"), rows) if rows else []


def usage_phrase(usage: Usage, calls: Sequence[RoleCall]) -> str:
    """Return the usage of a run in one line; estimates and unknown costs are named."""
    unknown = sum(1 for one in calls if one.usage.cost_micros is None)
    parts = [many(len(calls), "agent call"), tokens_phrase(usage), cost_phrase(usage)]
    if unknown and usage.cost_micros is not None:
        parts.append(f"cost of {many(unknown, 'call')} unknown")
    return ", ".join(parts)


def token_counts(usage: Usage) -> str:
    """Return the tokens of a usage."""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"


def tokens_phrase(usage: Usage) -> str:
    """Return the tokens, and the part of them that is an estimate."""
    estimate = usage.estimated_input_tokens + usage.estimated_output_tokens
    return token_counts(usage) + (f" ({estimate:,} estimated)" if estimate else "")


def cost_phrase(usage: Usage) -> str:
    """Return the cost, or that it is unknown, and the part of it that is an estimate."""
    if usage.cost is None:
        return "cost unknown"
    estimate = f" ({usage.estimated_cost:g} estimated)" if usage.estimated_cost_micros else ""
    most = "" if usage.cost_max_micros is None else f" to {usage.cost_max:g}"
    return f"cost {usage.cost:g}{most}{estimate}"


def call_json(call: RoleCall) -> dict[str, Any]:
    """Return one call as plain data."""
    return {**asdict(call), "role": call.role.value, "usage": call.usage.as_json()}
