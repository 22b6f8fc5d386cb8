"""Exit codes: one for each outcome of a run, one for bad input, one for a closed output pipe.

A command that could not start ends with the code of bad input, whatever the cause: an option, a file, or a journal
that cannot be used now. After 2 nothing needs to be repaired; 1 says that an error occurred during the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum

from orchestrator.cli.output import shown
from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.outcome import Outcome


@dataclass(slots=True)
class Options:
    """Options before the name of the command."""

    traceback: bool = False
    """Whether an error ends the process with its traceback instead of one sentence, and those of tools are printed."""


GIVEN: ContextVar[Options] = ContextVar("options before the name of the command")


class Exit(IntEnum):
    """The exit codes of the process. Codes from 3 on give the reason why there is no answer."""

    COMPLETED = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    BUDGET_EXCEEDED = 4
    NO_PROGRESS = 5
    CANCELLED = 6
    REJECTED = 7
    PIPE = 141
    """The reader of the output has closed it: the code that a shell shows for a program ended by SIGPIPE."""


EXIT_CODES: Mapping[Outcome, Exit] = {outcome: Exit[outcome.name] for outcome in Outcome}
"""Outcome -> exit code. An outcome without a code raises an error at import."""

MEANINGS: Mapping[Exit, str] = {
    Exit.COMPLETED: "completed: a final answer (or: the command did what it was asked to)",
    Exit.FAILED: "failed: the run, the check or the replay did not come out right",
    Exit.USAGE: "bad input: options, files, settings, a journal that cannot be used; nothing was run",
    Exit.PARTIAL: "partial: a limit was reached and a wrap-up turn still answered, or the answer is incomplete",
    Exit.BUDGET_EXCEEDED: "budget_exceeded: a limit was reached",
    Exit.NO_PROGRESS: "no_progress: the run repeated itself",
    Exit.CANCELLED: "cancelled: SIGINT (Ctrl-C), SIGTERM or SIGHUP; a second one ends the process at once",
    Exit.REJECTED: "rejected: a guardrail refused the prompt or the answer, or a person ended the run",
    Exit.PIPE: "the reader of our output closed it (as in `| head -1`)",
}
"""Every exit code in words, for --help and README.md."""


@contextmanager
def beginning() -> Iterator[None]:
    """Raise a ConfigError for errors that prevent the start of a command."""
    try:
        yield
    except RunError as error:
        raise ConfigError(shown(str(error), 4_000)) from error


def table() -> str:
    """Return the exit codes as lines of text."""
    return "\n".join(f"{code.value:>3}  {text}" for code, text in MEANINGS.items())


EPILOG = "Exit codes, one for each outcome:\n\n\b\n" + table()
"""The last part of the help of commands that run a machine."""
