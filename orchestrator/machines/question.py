"""A question to a person about a call or a plan of a run, and whether an answer counts. For every machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.tools.input_request import InputAnswer, read_answer, request_of
from orchestrator_guards import DIGEST_VERSION, Refusal, Verdict, judge_answer

WHY = ("approval", "unknown_effect", "undo_failed", "input", "plan")
"""The tool needs approval; a crash left it open whether the call happened; the same, and undoing it failed; the tool
needs input; a plan of the machine approval waits."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a person about one call. The answer must name its digest."""

    key: str
    """`TURN:POSITION`."""
    tool: str
    arguments: str
    """Canonical JSON text: checked and coerced, with defaults, in the order of the schema. The tool receives this."""
    digest: str
    """SHA-256 (hex) of the content to approve (see `guards.approval`)."""
    why: str
    """One of WHY."""
    expires_at: float = 0.0
    """Epoch seconds after which the call cannot be approved any more; 0 means never."""
    verdict: Verdict | None = field(default=None, metadata={"fingerprint": None})
    """Verdict of the tool's approval rule, if it returned one: guard, observed, limit, detail."""
    notice: str = field(default="", metadata={"fingerprint": None})
    """A sentence for the person: the approval rule failed, so the question is asked as a precaution."""
    version: int = field(default=DIGEST_VERSION, metadata={"fingerprint": None})
    """Version of the digest. A question with an older one is asked again when the run is resumed."""
    epoch: int = field(default=0, metadata={"fingerprint": None})
    """Epoch of the lease under which it was asked; part of the digest of a question about an interrupted call."""
    effect: str = field(default="", metadata={"fingerprint": None})
    """Declared effect of the tool: `pure`, `idempotent`, `compensable` or `irreversible`. Empty in records of earlier
    versions and for an unknown tool: assume that the effect cannot be undone."""
    input: Mapping[str, Any] | None = field(default=None, metadata={"fingerprint": None})
    """The request for input and the others of its round (`InputRequired.record`), if the tool asks for input."""

    @classmethod
    def from_record(
        cls, key: str, tool: str, said: str, body: Mapping[str, Any], effect: str = ""
    ) -> Question:
        """Parse the body of an `asked` record.

        Args:
            key: Key of the call.
            tool: Name of the tool.
            said: The model's own text of the arguments, for records that do not repeat it.
            body: The body.
            effect: Effect of the tool for records of earlier versions, which do not have it.
        """
        verdict = body.get("verdict")
        return cls(
            key,
            tool,
            body.get("arguments") or said,
            str(body.get("digest", "")),
            str(body.get("why", "approval")),
            float(body.get("expires_at") or 0.0),
            Verdict(**verdict) if verdict else None,
            str(body.get("notice", "")),
            int(body.get("version", 1)),
            int(body.get("epoch", 0)),
            str(body.get("effect") or effect),
            body.get("input"),
        )

    def record(self, said: str) -> dict[str, Any]:
        """Return the body of its `asked` record. `said` is the model's own text, which is not repeated."""
        body: dict[str, Any] = {
            "key": self.key,
            "tool": self.tool,
            "digest": self.digest,
            "version": self.version,
            "why": self.why,
        }
        if self.arguments != said:
            body["arguments"] = self.arguments
        if self.verdict is not None:
            body["verdict"] = self.verdict._asdict()
        for name in ("expires_at", "notice", "epoch", "effect", "input"):
            if value := getattr(self, name):
                body[name] = value
        return body


def judge(
    asked: Collection[Question],
    decided: Mapping[str, Mapping[str, Any]],
    answer: Mapping[str, Any],
    *,
    now: float,
) -> Question | Refusal:
    """Return the question of an answer, or the reason why it does not count. Arguments as for `judge_answer`.

    An answer to a request for input must fit its form, unless it ends the run.
    """
    found = judge_answer(asked, decided, answer, now=now)
    if isinstance(found, Refusal) or found.input is None or answer.get("end"):
        return found
    given = read_answer(request_of(found.input), answer)
    return found if isinstance(given, InputAnswer) else Refusal("input", given)
