"""The command line. Only `main` turns errors into a sentence on stderr and an exit code.

Modules are imported when they are needed: `--help` imports typer only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from orchestrator.cli.exit import Options

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of an output that cannot be written. The input is not their cause."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    status = _status(sys.argv[1:] if arguments is None else arguments)
    loop = sys.modules.get("orchestrator.cli.loop")
    if loop is not None and loop.is_stuck():  # threads and tasks of code that ignored its cancellation
        import logging

        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _status(arguments: Sequence[str]) -> int:
    from orchestrator.cli.exit import Exit, Options
    from orchestrator.cli.output import complain, escape_streams

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed (`>&-`): no file of ours may get its descriptor
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open
    for stream in (sys.stdout, sys.stderr):  # the terminal's encoding may lack recorded characters
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    escape_streams()
    options = Options()
    try:
        return _run_command(arguments, options)
    except BrokenPipeError:
        return Exit.PIPE
    except (Exception, KeyboardInterrupt) as error:
        if options.traceback:
            raise
        code, sentence = explained(error)
        complain(sentence)
        return code
    finally:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # a closed pipe must not become an error at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _run_command(arguments: Sequence[str], options: Options) -> int:
    from orchestrator.errors import MissingExtra

    if list(arguments) == ["--version"]:  # also without the extra `cli`
        from orchestrator.cli.output import say
        from orchestrator.version import __version__

        say(f"orchestrator {__version__}")
        return 0
    for package in ("typer", "rich"):
        if find_spec(package) is None:
            raise MissingExtra(package, "cli")
    from orchestrator.cli.app import execute

    return execute(arguments, options)


def explained(error: BaseException) -> tuple[int, str]:
    """Return the exit code for an error and one sentence: the fault, and the allowed input."""
    from orchestrator import errors
    from orchestrator.cli.exit import Exit

    code = Exit.USAGE
    match error:
        case KeyboardInterrupt():
            code, sentence = Exit.CANCELLED, "cancelled before anything ran"
        case errors.GraphError():
            sentence = f"{error.graph}: {'; '.join(map(str, error.problems))}"
        case errors.RunError() | errors.EventError():
            code, sentence = Exit.FAILED, str(error)
        case errors.OrchestratorError() | errors.MissingExtra():
            sentence = str(error)
        case OSError():
            code = Exit.FAILED if error.errno in _FULL else Exit.USAGE
            sentence = f"{error.filename or 'input or output'}: {error.strerror or error}"
        case _ if hasattr(error, "format_message"):  # typer's; their base class differs between its versions
            command = getattr(getattr(error, "ctx", None), "command_path", "orchestrator")
            said = str(getattr(error, "format_message")()).rstrip(".")  # noqa: B009
            sentence = f"{said}; see `{command} --help`"
        case _:
            where = "`orchestrator --traceback …` shows where"
            code, sentence = Exit.FAILED, f"unexpected {type(error).__name__}: {error} ({where})"
    return code, sentence
