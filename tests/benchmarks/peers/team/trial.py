"""Run a program as a host would: undisturbed, then killed in five places, started again, and asked once more."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.ergonomics import server
from tests.benchmarks.peers.ergonomics.trial import Host, Process, host, same
from tests.benchmarks.peers.team import script, task
from tests.providers.loopback import Asked, Reply

PLACES = ("lookup", "handoff", "question", "payment", "end")
"""Where a process is killed: in the last of three lookups, the others having returned; while the model answers
refunds for the first time; while a person is asked; after the refund is in the ledger, before the tool returns; after
the answer was shown."""
RESUMED = "resumed"


def opened(library: str, interpreter: Path, folder: Path) -> AbstractContextManager[Host]:
    """Have a folder and a model for the processes of a library's program."""
    module = f"{task.__package__}.programs.{library}"
    return host(module, interpreter, folder, _model, PLACES[1], _asks_refunds)


def _model(asked: Asked) -> Reply:
    return server.reply(asked, script.answer(asked))


def _asks_refunds(asked: Asked) -> bool:
    return script.speaker(asked) == "refunds"


def run(library: str, interpreter: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was observed after a kill in each place. Raises Different if the work is not done undisturbed."""
    with opened(library, interpreter, folder / "undisturbed") as undisturbed:
        _undisturbed(undisturbed)
    killed = {}
    for place in PLACES:
        with opened(library, interpreter, folder / place) as host_of_place:
            killed[place] = _killed(host_of_place, place)
    return killed


def _undisturbed(host: Host) -> None:
    done = host.start("1", TOGETHER="1")  # a lookup returns only when all have started
    same(f"the process ends ({done.error})", done.code, 0)
    same("the customer reads the answer", done.shown.get("answer"), [script.ANSWERS[0]])
    same("the agents speak in turn", _speakers(host), script.SPEAKERS)
    same("a person is asked once", [_question(*one) for one in done.shown.get("question", ())], [_QUESTION])
    same("the refund is paid once", _lines(host, task.LEDGER), 1)
    same("each lookup runs once", _lines(host, task.LOOKUPS), len(task.FOUND))
    following = host.start("2")
    same(f"the next process ends ({following.error})", following.code, 0)
    same("the customer reads the next answer", following.shown.get("answer"), [script.ANSWERS[1]])
    same("refunds has the conversation", _follower(host), "refunds")


def _killed(host: Host, place: str) -> dict[str, Any]:
    """Kill a process at a place, start it again, send the next message, and return what was observed."""
    same(f"the process is killed at the {place}", host.start("1", stop=place).code, -signal.SIGKILL)
    again = host.start("1")
    asked = len(host.requests)
    found = {
        "lost": _lost(again, script.ANSWERS[0]),
        "asked again": asked - len(script.SPEAKERS) - (place == "handoff"),
        "looked up again": _lines(host, task.LOOKUPS) - len(task.FOUND) - (place == "lookup"),
        "paid": _lines(host, task.LEDGER),
        "told": "unknown_effect" in str(again.shown.get("question")),
    }
    following = host.start("2")
    lost = _lost(following, script.ANSWERS[1])
    return {**found, "next": lost or (_follower(host) if len(host.requests) > asked else "nobody")}


def _lost(process: Process, answer: str) -> str:
    """Return why the customer does not read the answer; "" if it is there."""
    if process.code == 0 and process.shown.get("answer") == [answer]:
        return ""
    return process.error or f"the answer was {process.shown.get('answer')}"


_QUESTION = ("refund", script.REFUND, "approval")


def _question(tool: str, arguments: Any, why: str) -> tuple[str, Any, str]:
    return tool, json.loads(arguments) if isinstance(arguments, str) else arguments, why


def _speakers(host: Host) -> tuple[str, ...]:
    return tuple(map(script.speaker, host.requests))


def _follower(host: Host) -> str:
    """Return the agent that was asked last, if it read the first message too."""
    last = host.requests[-1]
    return script.speaker(last) if task.PROMPTS[0] in last.body.decode() else "an agent without the history"


def _lines(host: Host, file: Path) -> int:
    path = host.folder / file
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
