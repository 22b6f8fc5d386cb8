"""The other end of `child`: a contestant's process, started once and asked many times."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.syncs import counts_syncs

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}


class NotMeasured(Exception):
    """There is no figure, and the message says why."""


class Contestant:
    """A process that answers `ask`. One that cannot start, ends or takes too long is not measured until `renew`.

    With `why_not` nothing is ever started: the contestant could not be had.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], *, why_not: str = "", timeout: float = 600.0
    ) -> None:
        self.name = name
        self._command = list(map(str, command))
        self._timeout = timeout
        self._never = why_not
        self._why_not = why_not
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = None if why_not else self._started()

    def _started(self) -> subprocess.Popen[bytes] | None:
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=ROOT,
                env=os.environ | QUIET | counts_syncs(),
            )
        except OSError as error:
            self._why_not = f"its process did not start: {error.strerror}"
            return None

    def renew(self) -> None:
        """Start a fresh process: with no memory of what was asked before, also after one that was lost."""
        if self._never:
            return
        self.close()
        self._why_not = ""
        self._errors.truncate(0)
        self._process = self._started()

    @property
    def lost(self) -> bool:
        """Whether it could be had, and its process is gone."""
        return self._process is None and not self._never

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """Return the answer to one request. Raises NotMeasured."""
        line = self._exchange(json.dumps({"do": do, **options}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(line)
        if why := answer.get("error"):
            raise NotMeasured(str(why))
        return answer

    def _exchange(self, request: bytes) -> bytes:
        process = self._process
        if self._why_not or process is None or process.stdin is None or process.stdout is None:
            raise NotMeasured(self._why_not)
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._lost() from None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            if not ready.select(self._timeout):
                raise self._lost(f"no answer within {self._timeout:g} s")
        answer = process.stdout.readline()
        if not answer:
            raise self._lost()
        return answer

    def _lost(self, why: str = "") -> NotMeasured:
        """Close, and keep why for whoever asks next: by default the last thing that the process said."""
        self.close()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._why_not = why or f"its process ended: {said[-1] if said else 'without a word'}"
        return NotMeasured(self._why_not)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()
        self._why_not = self._why_not or "its process was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._errors.close()
