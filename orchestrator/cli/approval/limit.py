"""Limits of a project, given as `--limit NAME=VALUE`. They are stored with the request for later commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from orchestrator.cli.load import params_from
from orchestrator.errors import ConfigError
from orchestrator.machines.approval.limits import ApprovalLimits, PlanCaps
from orchestrator.settings import build

_CAPS = frozenset(item.name for item in fields(PlanCaps))


def members_from(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the given limits by name. Raises ConfigError, also for an unknown name."""
    members = params_from(pairs)
    limits_of(members)
    return members


def limits_of(members: Mapping[str, Any]) -> ApprovalLimits:
    """Return limits of members by name; limits of one plan have the same names. Raises ConfigError."""
    known = sorted((_CAPS | {item.name for item in fields(ApprovalLimits)}) - {"caps"})
    if strange := [name for name in members if name not in known]:
        raise ConfigError(f"unknown limit {strange[0]!r}; known: {', '.join(known)}")
    caps = {name: value for name, value in members.items() if name in _CAPS}
    own = {name: value for name, value in members.items() if name not in _CAPS}
    return build(ApprovalLimits, {**own, "caps": build(PlanCaps, caps, "limits")}, "limits")
