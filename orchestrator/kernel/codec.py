"""Parts of record bodies: the context of a run, through the codec of its composition, and the error of a failed run.

The context is plain data: complete in the first record, then only its changes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator import errors
from orchestrator.kernel.record import EventFailed
from orchestrator.kernel.redaction import scrub
from orchestrator.kernel.run import Run
from orchestrator_guards.verdict import Verdict

_LONGEST = 2_000
"""Characters of each text of an error that are stored."""
_PLAIN = (str, int, float, bool, type(None))


class Codec(Protocol):
    """Converts `run.ctx` to record bodies. Without a codec a run is journalled but cannot be resumed."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the codec's part of the `created` record: the whole context."""
        ...

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return, in a new dict, the changes of the context since the last call or since the opening."""
        ...

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the codec's part of the `ended` record: the output."""
        ...


# ---- the error of a failed run ----


def error_body(failure: EventFailed) -> dict[str, Any]:
    """Return the stored part of a failure: place, reason, and the fields of an error of this package.

    Texts are cut at 2,000 characters: servers repeat whole requests in their errors. The error of a server also loses
    probable secrets; ours do not, because ids of runs look like secrets.
    """
    error = failure.error
    ours = _ours(type(error))
    fields = {} if ours is None else {name: _plain(value) for name, value in vars(error).items()}
    return {
        "type": type(error).__name__,
        "message": scrub(str(error)) if ours is errors.LLMError else str(error)[:_LONGEST],
        "is": None if ours is None else ours.__name__,
        "fields": {name: value for name, value in fields.items() if value is not _LOST},
        "reason": failure.reason,
        "state": failure.state,
        "event": failure.event,
        "hook": failure.hook,
        "at": failure.at,
        "iteration": failure.iteration,
        "committed": failure.committed,
        **({"where": where} if (where := raised_at(error)) else {}),
    }


def raised_at(error: BaseException | None) -> str | None:
    """Return file and line of the innermost frame of an error, or None if it was never raised."""
    trace = None if error is None else error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119 - no path is made


def restored_failure(body: Mapping[str, Any], graph: str, run_id: str) -> tuple[Exception, EventFailed]:
    """Return the error and its fact. An error that is not of this library is restored as a RunError."""
    error = _restored(body)
    fact = EventFailed(
        graph,
        run_id,
        body["state"],
        body["event"],
        body["reason"],
        body["at"],
        body["iteration"],
        body["hook"],
        error,
        body["committed"],
    )
    return error, fact


def _restored(body: Mapping[str, Any]) -> Exception:
    kind = getattr(errors, str(body["is"]), None)
    if not isinstance(kind, type) or not issubclass(kind, errors.OrchestratorError):
        return errors.RunError(f"{body['type']}: {body['message']}")
    error: errors.OrchestratorError = kind.__new__(kind)
    error.args = (body["message"],)
    vars(error).update({name: _value(value) for name, value in body["fields"].items()})
    return error


def _ours(kind: type[Any]) -> type[Any] | None:
    """Return the most specific class of this library among the classes of an error."""
    return next((each for each in kind.__mro__ if vars(errors).get(each.__name__) is each), None)


_LOST = object()


def _plain(value: object) -> object:
    if isinstance(value, Verdict):
        return {"verdict": value._asdict()}
    if isinstance(value, str):
        return value[:_LONGEST]
    return value if isinstance(value, _PLAIN) else _LOST


def _value(value: Any) -> Any:
    return Verdict(**value["verdict"]) if isinstance(value, dict) else value
