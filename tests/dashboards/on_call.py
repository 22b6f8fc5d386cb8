"""A person on call, as a thread: reads the webhook, opens the runbook, finds the guilty run, and stops it.

Each command is a line of the runbook's text, typed in a shell on the host: `orchestrator …` in a process, with the
words in capital letters replaced by labels of the alert and by what earlier commands printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.dashboards.incident import mitigations, read, typed
from tests.dashboards.monitoring import SCALE, Webhook, at_once, until

LIMIT = 120
"""Seconds for a run to end, on a machine that has much to do."""

_SHELL = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
"""Without the switches of the tests: a command refuses a setting that it does not know."""


@dataclass
class Call:
    """One incident: the alert with its labels, where its runs are, the guilty one, and the command that stops it."""

    alert: str
    labels: Mapping[str, str]
    journal: Path
    guilty: str
    """Id of the run; empty for the newest of the agent in the label."""
    remedy: str
    """The first words of the command."""
    switched: Callable[[], float]
    """Returns the time at which the fault was turned on (epoch seconds)."""
    words: Mapping[str, str] = field(default_factory=dict)
    began: float = 0.0
    received: float = 0.0
    found: float = 0.0
    stopped: float = 0.0

    @property
    def full_name(self) -> str:
        return f"Orchestrator{self.alert}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an alert is this one."""
        return labels["alertname"] == self.full_name and self.labels.items() <= labels.items()


class OnCall:
    """Answers calls in the order in which they arrive."""

    def __init__(self, webhook: Webhook, calls: Iterable[Call]) -> None:
        self.calls = tuple(calls)
        self._webhook = webhook
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="on call", daemon=True)

    def start(self) -> None:
        """Begin to wait for calls."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no further call."""
        self._stopping.set()
        self._thread.join()

    def finish(self, alert: str, seconds: float, look: Callable[[], object]) -> None:
        """Wait until the calls of an alert are answered, and look around meanwhile. Raises what went wrong."""

        def done() -> bool:
            look()
            if self._error is not None:
                raise self._error
            return all(call.stopped for call in self.calls if call.alert == alert)

        until(done, seconds, f"the answer to {alert}")

    def table(self) -> str:
        """Return the times of each call: measured, and at the pace of production."""
        head = (
            "| alert | fault → received | in production | runbook → guilty run | → stopped | resolved after |"
        )
        lines = [head, "|---|---|---|---|---|---|"]
        for call in self.calls:
            if call.stopped:
                after = call.received - call.began
                spans = f"{call.found - call.received:.1f} s | {call.stopped - call.found:.1f} s"
                resolved = self._resolved(call)
                later = "–" if resolved is None else f"{resolved - call.stopped:.0f} s"
                paces = f"{after:.0f} s | {after * SCALE / 60:.0f} min"
                lines.append(f"| {call.alert} | {paces} | {spans} | {later} |")
        return "\n".join(lines)

    def _resolved(self, call: Call) -> float | None:
        notes = [(at, one) for at, _, one in list(self._webhook.notes) if call.matches(one["labels"])]
        return min(
            (at for at, one in notes if one["status"] == "resolved" and at > call.stopped), default=None
        )

    def _work(self) -> None:
        try:
            while not self._stopping.wait(0.1):
                for call in self.calls:
                    if not call.received and (told := self._told(call)):
                        self._answer(call, *told)
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error

    def _told(self, call: Call) -> tuple[float, Mapping[str, str]] | None:
        for at, _, one in list(self._webhook.notes):
            if one["status"] == "firing" and call.matches(one["labels"]):
                return at, one["labels"]
        return None

    def _answer(self, call: Call, at: float, labels: Mapping[str, str]) -> None:
        call.began, call.received = call.switched(), at
        first, *lines = mitigations(call.full_name)
        words = {**{name.upper(): value for name, value in labels.items()}, **call.words}
        run = _command(call.journal, first, words).splitlines()[1].split()[0]
        assert run == call.guilty or not call.guilty, (call, run)
        call.found = time.time()
        words["RUN"] = run
        if shown := next((line for line in lines if line.startswith("orchestrator runs show ")), ""):
            digest = re.search(r"\b[0-9a-f]{64}\b", _command(call.journal, shown, words))
            words["DIGEST"] = digest[0] if digest else ""
        (stops,) = (line for line in lines if line.startswith(f"orchestrator {call.remedy} "))
        _command(call.journal, stops, words)
        until(lambda: read(call.journal, run).status == "ended", LIMIT, f"the end of {run}")
        call.stopped = time.time()


def _command(journal: Path, line: str, words: Mapping[str, str]) -> str:
    """Execute a command of a runbook on the host of a journal; return what it printed."""
    done = subprocess.run(
        [*at_once(), sys.executable, "-m", "orchestrator", *typed(line, words)],
        cwd=journal.parent,
        env={**_SHELL, "ORCHESTRATOR_JOURNAL": str(journal)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), (line, done)
    return done.stdout
