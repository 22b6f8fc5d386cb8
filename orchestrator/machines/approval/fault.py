"""Error codes of approval: the one table that validation, gates, execution and retries read.

A retry that would need the person's choice is never made: a step whose bytes were approved is retried with the same
bytes, and a command that may have had an effect is not retried.

A plan that breaks a rule is one error with single reasons. `ApprovalError.code` decides about retries;
`ApprovalError.faults`, each with its own code, name what the person or the model has to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from orchestrator.errors import (
    ConfigError,
    Corrupt,
    JournalError,
    LLMError,
    OrchestratorError,
    Refused,
    RunError,
)
from orchestrator_guards import BlockedGate


class FaultFamily(StrEnum):
    """The part of the system that an error belongs to; `category` is its name for people."""

    VAL = "validation"
    FS = "file_system"
    AI = "provider"
    BLD = "build"
    ST = "state"
    RES = "resource"
    SEC = "security"
    CFG = "configuration"
    IPC = "command"


class FaultSeverity(StrEnum):
    """Severity of an error.

    A warning changes nothing, an error stops the work, and after a fatal error no state can be trusted.
    """

    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class RecoveryPath(StrEnum):
    """Action that the person can take."""

    RETRY = "Retry"
    MODIFY = "Modify"
    CONFIGURE = "Configure"
    INSTALL = "Install"
    REPORT = "Report"
    RESTART = "Restart"


class FaultRule(NamedTuple):
    """One row of the table. Delays are in seconds; the n-th is `base * 2**(n-1)`, at most `most`."""

    code: str
    meaning: str
    severity: FaultSeverity
    recovery_path: RecoveryPath
    retries: int = 0
    """Further attempts without asking."""
    base: float = 0.0
    most: float = 0.0
    kind: str = "other"
    """Error kind for orchestrator.llm.retry: one of errors.ERROR_KINDS."""

    @property
    def category(self) -> str:
        """Name of the family."""
        return FaultFamily[self.code.partition("-")[0]].value

    @property
    def retryable(self) -> bool:
        """Whether the error is retried without asking."""
        return self.retries > 0


_W, _E, _F = FaultSeverity.WARNING, FaultSeverity.ERROR, FaultSeverity.FATAL
_RETRY, _MODIFY, _CONFIGURE = RecoveryPath.RETRY, RecoveryPath.MODIFY, RecoveryPath.CONFIGURE
_INSTALL, _REPORT, _RESTART = RecoveryPath.INSTALL, RecoveryPath.REPORT, RecoveryPath.RESTART

_ROWS = (
    # ---- the plan document ----
    FaultRule("VAL-001", "there is no text to work on, or too much", _W, _MODIFY),
    FaultRule("VAL-002", "a plan document cannot be read", _E, _MODIFY),
    FaultRule("VAL-003", "a diff does not fit the file exactly", _E, _RETRY, 1, kind="malformed"),
    FaultRule("VAL-004", "a plan breaks the rules for plans", _E, _RETRY, 2, kind="malformed"),
    FaultRule("VAL-005", "a file would not be valid in its language", _E, _RETRY, 1, kind="malformed"),
    FaultRule("VAL-006", "a plan has no step", _E, _MODIFY),
    FaultRule("VAL-007", "a plan has too many steps", _E, _MODIFY),
    FaultRule("VAL-008", "a step has too many files", _E, _MODIFY),
    FaultRule("VAL-009", "a plan has too many files", _E, _MODIFY),
    FaultRule("VAL-010", "the diff of a step has too many lines", _E, _MODIFY),
    FaultRule("VAL-011", "a step has too many constraints", _E, _MODIFY),
    FaultRule("VAL-012", "an operation writes too many bytes", _E, _MODIFY),
    FaultRule("VAL-013", "a plan deletes more than one file", _E, _MODIFY),
    FaultRule("VAL-014", "a step has no target", _E, _MODIFY),
    FaultRule("VAL-015", "the steps are not in order: an unknown, later or duplicate step", _E, _MODIFY),
    FaultRule("VAL-016", "a step has a field that its kind does not allow", _E, _MODIFY),
    FaultRule("VAL-017", "a diff cannot be read", _E, _MODIFY),
    FaultRule("VAL-018", "a step changes nothing", _E, _MODIFY),
    FaultRule("VAL-019", "a chosen step is not in the plan", _W, _MODIFY),
    # ---- files ----
    FaultRule("FS-001", "a file does not exist", _E, _MODIFY),
    FaultRule("FS-002", "a file exists already", _E, _MODIFY),
    FaultRule("FS-003", "the operating system denies permission", _E, _CONFIGURE),
    FaultRule("FS-004", "the file system is read-only", _E, _CONFIGURE),
    FaultRule(
        "FS-005", "a file or the project is locked by another process", _E, _RETRY, 3, 5.0, 5.0, "timeout"
    ),
    FaultRule("FS-006", "a file is not as it was when the plan was made", _E, _MODIFY),
    FaultRule("FS-007", "a file is binary", _E, _MODIFY),
    FaultRule("FS-008", "a file is too large", _E, _MODIFY),
    FaultRule("FS-009", "a folder is where a file should be", _E, _MODIFY),
    FaultRule("FS-010", "reading or writing a file failed", _E, _REPORT),
    FaultRule("FS-011", "a name is too long for the file system", _E, _MODIFY),
    FaultRule("FS-012", "the file system does not answer", _E, _REPORT),
    # ---- the provider ----
    FaultRule("AI-001", "the provider rejects the API key", _E, _CONFIGURE, kind="auth"),
    FaultRule("AI-002", "the provider does not answer", _E, _RETRY, 3, 1.0, 30.0, "timeout"),
    FaultRule("AI-003", "the provider limits the request rate", _E, _RETRY, 3, 1.0, 30.0, "rate_limited"),
    FaultRule("AI-004", "the provider rejects the request", _E, _CONFIGURE, kind="client_error"),
    FaultRule("AI-005", "the answer of the model cannot be used", _E, _RETRY, 1, kind="malformed"),
    FaultRule("AI-006", "the model refuses to answer", _E, _MODIFY, kind="content_filter"),
    FaultRule("AI-007", "the request is too long for the model", _E, _MODIFY, kind="context_length"),
    FaultRule("AI-008", "the request is not clear enough", _W, _MODIFY),
    # ---- commands of a plan ----
    FaultRule("BLD-001", "a program is not installed", _E, _INSTALL),
    FaultRule("BLD-002", "a command failed", _E, _MODIFY),
    FaultRule("BLD-003", "a command took too long and was stopped", _E, _MODIFY),
    FaultRule("BLD-004", "a command could not be started just now", _E, _RETRY, 1, 1.0, 1.0, "timeout"),
    # ---- the machine ----
    FaultRule("ST-001", "the command is not allowed in this state", _F, _REPORT),
    FaultRule("ST-002", "the stored data is not the data that was written", _F, _RESTART),
    FaultRule("ST-003", "the plan is not approved", _E, _MODIFY),
    FaultRule("ST-004", "the plan has expired", _W, _RETRY),
    FaultRule("ST-005", "the project changed outside while the work was paused", _E, _MODIFY),
    FaultRule("ST-006", "it is unknown whether a command has run", _E, _MODIFY),
    FaultRule("ST-007", "a file was changed outside, so it was not restored", _E, _MODIFY),
    FaultRule("ST-008", "an unexpected error occurred", _E, _REPORT),
    # ---- resources ----
    FaultRule("RES-001", "the disk is full", _E, _CONFIGURE),
    FaultRule("RES-002", "the token budget is used up", _E, _CONFIGURE),
    FaultRule(
        "RES-003", "the system has no memory or handle left just now", _E, _RETRY, 1, 1.0, 1.0, "timeout"
    ),
    FaultRule("RES-004", "too many writes, commands or requests in a minute", _W, _RETRY),
    # ---- forbidden in every plan ----
    FaultRule("SEC-001", "a path leads out of the project", _E, _MODIFY),
    FaultRule("SEC-002", "a path is absolute", _E, _MODIFY),
    FaultRule("SEC-003", "a path goes through a symlink", _E, _MODIFY),
    FaultRule("SEC-004", "a path is in a hidden folder", _E, _MODIFY),
    FaultRule("SEC-005", "a path is on the list of denied names", _E, _MODIFY),
    FaultRule("SEC-006", "a path is in a folder of build output", _E, _MODIFY),
    FaultRule("SEC-007", "a path is a device, pipe or socket", _E, _MODIFY),
    FaultRule("SEC-008", "a file has further hard links, perhaps outside", _E, _MODIFY),
    FaultRule("SEC-009", "two names are the same name on some file systems", _E, _MODIFY),
    FaultRule("SEC-010", "a name has characters that disguise it", _E, _MODIFY),
    FaultRule("SEC-011", "a path was swapped between check and use", _E, _REPORT),
    FaultRule("SEC-012", "a command is a shell, or starts other programs", _E, _MODIFY),
    FaultRule("SEC-013", "a file runs with the rights of its owner or group", _E, _MODIFY),
    # ---- settings ----
    FaultRule("CFG-001", "no provider is configured", _E, _CONFIGURE),
    FaultRule("CFG-002", "a setting is out of range", _E, _CONFIGURE),
    FaultRule("CFG-003", "the project folder cannot be used", _E, _CONFIGURE),
    FaultRule("CFG-004", "the settings changed since the plan was made", _W, _RETRY),
    # ---- commands of a person ----
    FaultRule("IPC-001", "the command is unknown", _W, _MODIFY),
    FaultRule("IPC-002", "the command is not possible now", _W, _MODIFY),
    FaultRule("IPC-006", "the command arrived twice", _W, _RETRY, 1, kind="timeout"),
    FaultRule("IPC-007", "a command before this one is missing", _E, _RESTART),
    FaultRule("IPC-008", "no process accepted the command in time", _E, _RETRY, 1, 1.0, 1.0, "timeout"),
)

RULES: Mapping[str, FaultRule] = {row.code: row for row in _ROWS}
"""Code -> its row."""


def rule(code: str) -> FaultRule:
    """Return the row of a code. Raises ConfigError for an unknown code."""
    found = RULES.get(code)
    if found is None:
        raise ConfigError(f"unknown error code {code!r}; families: {', '.join(FaultFamily.__members__)}")
    return found


@dataclass(frozen=True, slots=True)
class Fault:
    """One error, described for a person. Raises ConfigError for an unknown code."""

    code: str
    message: str
    """Says what was wrong and what is allowed; contains no file content and no key."""
    technical_detail: str = ""
    path: str = ""
    step: str = ""

    def __post_init__(self) -> None:
        rule(self.code)

    @property
    def rule(self) -> FaultRule:
        """Row of the code."""
        return RULES[self.code]

    @property
    def category(self) -> str:
        """Name of the family."""
        return self.rule.category

    @property
    def severity(self) -> FaultSeverity:
        """Severity of the error."""
        return self.rule.severity

    @property
    def recovery_path(self) -> RecoveryPath:
        """Action that the person can take."""
        return self.rule.recovery_path

    @property
    def retryable(self) -> bool:
        """Whether the error is retried without asking."""
        return self.rule.retryable

    @property
    def retry_policy(self) -> dict[str, float] | None:
        """Retries and their delays in seconds; None if the error is not retried."""
        row = self.rule
        return {"retries": row.retries, "base": row.base, "most": row.most} if row.retries else None

    def plain(self) -> dict[str, Any]:
        """Return all properties as JSON types."""
        return {
            "code": self.code,
            "category": self.category,
            "severity": self.severity.value,
            "message": self.message,
            "technical_detail": self.technical_detail,
            "recovery_path": self.recovery_path.value,
            "retryable": self.retryable,
            "retry_policy": self.retry_policy,
            "path": self.path,
            "step": self.step,
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Fault:
        """Parse the result of `plain`; properties of the code come from the table."""
        return cls(*(str(plain.get(name, "")) for name in cls.__slots__))

    def at(self, step: str) -> Fault:
        """Return the same fault for a step."""
        return replace(self, step=step)

    def __str__(self) -> str:
        where = f"step {self.step}: " if self.step else ""
        return f"{self.code}: {where}{self.message}"


class ApprovalError(RunError):
    """An error of the table. No operation is left half done.

    `code` decides about retries: orchestrator.llm.retry reads `kind`, `retryable` and `retry_after`. `faults` are the
    single reasons.
    """

    def __init__(
        self, faults: Fault | Iterable[Fault], *, code: str = "", retry_after: float | None = None
    ) -> None:
        self.faults = (faults,) if isinstance(faults, Fault) else tuple(faults)
        self.code = code or self.faults[0].code
        self.retry_after = retry_after
        self._said: tuple[
            str, ...
        ] = ()  # a record of a failure stores only our own texts and numbers, and this text is not one
        row = rule(self.code)
        self.kind, self.retryable = row.kind, row.retryable
        super().__init__("; ".join(map(str, self.faults)))

    @property
    def output(self) -> str:
        """Last part of the failed command's output. No record contains it."""
        return "".join(self._said)

    def saying(self, output: str) -> ApprovalError:
        """Return itself with the output of the command."""
        self._said = (output,)
        return self

    @property
    def fault(self) -> Fault:
        """The error as one fault, with its single reasons in the technical detail."""
        first = self.faults[0]
        if len(self.faults) == 1 and self.code == first.code:
            return first
        return Fault(self.code, f"{rule(self.code).meaning}: {first}", "; ".join(map(str, self.faults)))


class GateRefused(Refused):
    """An action was refused before any change was made."""

    def __init__(self, blocked: BlockedGate, *, state: str = "", event: str = "") -> None:
        super().__init__(blocked.reason, graph="approval" if event else "", state=state, event=event)
        self.gate = blocked.gate
        self.next_steps = blocked.next_steps
        self.retryable_now = blocked.retryable_now
        self.code = blocked.code

    def __str__(self) -> str:
        """Return one sentence with reason and next steps."""
        hint = f"; next: {', '.join(self.next_steps)}" if self.next_steps else ""
        code = f"{self.code}: " if self.code else ""
        return f"{code}{self.reason} (gate {self.gate}){hint}"


# ---- exceptions of other parts ----

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (Corrupt, "ST-002"),
    (JournalError, "FS-010"),
    (TimeoutError, "AI-002"),
)
"""Type of an exception other than ApprovalError -> its code."""

_OF_PROVIDERS = {row.kind: row.code for row in RULES.values() if row.code.startswith("AI-")} | {
    "connection": "AI-002",
    "server_error": "AI-002",
}
"""Kind of a provider's error -> its code."""


def fault_of(error: Exception | None) -> Fault:
    """Return the fault of an exception. The text of an unknown exception is never stored."""
    if isinstance(error, ApprovalError):
        return error.fault
    if isinstance(error, LLMError):
        return Fault(_OF_PROVIDERS.get(error.kind, "AI-002"), str(error))
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "ST-008")
    if isinstance(error, OrchestratorError):
        return Fault(code, str(error))
    return Fault(code, f"an unexpected {type(error).__name__}", technical_detail=type(error).__name__)
