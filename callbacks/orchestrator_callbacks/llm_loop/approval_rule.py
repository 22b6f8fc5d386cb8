"""The approval rule of a tool, and the digest of an approved call.

The approval flag in the digest is `always`, `rule` or `never`, as the tool declares it. The result of a rule follows
from the arguments, and a function has no name that two processes share.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import orjson

from orchestrator.llm.message import ToolCall, encodable
from orchestrator.tools.result import explain
from orchestrator.tools.spec import SERVER, ToolSpec
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import Verdict, approval_digest

_LONGEST = 300
_DIGITS: Final = 12
_DIGESTS: Final[WeakKeyDictionary[ToolSpec, str]] = WeakKeyDictionary()


class ApprovalDecision(NamedTuple):
    """The decision of an approval rule about a call."""

    asks: bool
    """Whether a person has to approve the call."""
    verdict: Verdict | None = None
    notice: str = ""
    """Why the person is asked although the rule did not request it."""


def judge_call(spec: ToolSpec | None, call: ToolCall) -> ApprovalDecision:
    """Return whether a person has to approve a call in canonical form. A failing rule counts as yes."""
    if spec is None or isinstance(spec.approval, bool):
        return ApprovalDecision(spec is not None and spec.approval is True)
    try:
        found: object = spec.approval(json.loads(call.arguments))
    except Exception as error:  # noqa: BLE001 - for any error of a host's rule the safe answer is to ask
        return ApprovalDecision(asks=True, notice=_because(f"failed ({explain(error)})"))
    if isinstance(found, bool):
        return ApprovalDecision(found)
    if isinstance(found, Verdict) and _is_sound(found):
        return ApprovalDecision(not found.ok, found)
    return ApprovalDecision(
        asks=True, notice=_because(f"returned {type(found).__name__}, not a bool or a valid Verdict")
    )


def _because(what: str) -> str:
    text: str = encodable(what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…")
    return f"the approval rule of this tool {text}, so a person is asked"


def _is_sound(verdict: Verdict) -> bool:
    """Return whether a Verdict can be stored and shown."""
    ok: object = verdict.ok
    texts: tuple[object, ...] = (verdict.guard, verdict.detail)
    numbers: tuple[object, ...] = (verdict.observed, verdict.limit)
    return (
        isinstance(ok, bool)
        and all(isinstance(one, str) and one == encodable(one) for one in texts)
        and all(isinstance(one, int | float) and math.isfinite(one) for one in numbers)
    )


def approval_flag(spec: ToolSpec | None) -> str:
    """Return how a tool declares its approval."""
    if spec is not None and not isinstance(spec.approval, bool):
        return "rule"
    return "always" if spec is not None and spec.approval else "never"


def tool_digest(spec: ToolSpec) -> str:
    """Return a short digest of what a tool declares: schema, effect and approval flag."""
    found = _DIGESTS.get(spec)
    if found is None:
        declared = [dict(spec.parameters), spec.effect, approval_flag(spec)]
        body = orjson.dumps(declared, option=orjson.OPT_SORT_KEYS, default=repr)
        found = hashlib.sha256(body).hexdigest()[:_DIGITS]
        found = _DIGESTS[spec] = f"{SERVER}{found}" if spec.kind == "mcp" else found
    return found


def definition_of(specs: Iterable[ToolSpec]) -> dict[str, str]:
    """Return the tools of an agent as its runs store them: name -> digest."""
    return {spec.name: tool_digest(spec) for spec in specs}


def digest_of(run: LoopRun, call: ToolCall, about: str) -> str:
    """Return the digest of a call in canonical form; `about` names the call, and a later question about it."""
    spec = run.deps.tools.find(call.name)
    schema: dict[str, Any] | None = None if spec is None else dict(spec.parameters)
    return approval_digest(
        call.name if spec is None else spec.name,
        call.arguments,
        run=run.run_id,
        call=about,
        fingerprint=run.graph.fingerprint,
        schema=schema,
        effect="" if spec is None else spec.effect,
        approval=approval_flag(spec),
        agent=run.deps.agent,
    )
