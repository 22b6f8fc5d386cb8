"""`orchestrator ralph doctor`: which coding agents are installed, and with --ask which of them answer."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import say, say_json, shown
from orchestrator.runtime.ralph.coding_preset import PRESETS, CodingCall, CodingPreset, answer_of
from orchestrator.runtime.service.program import ProgramExit, last_words, run_program

_VERSION_SECONDS = 30.0
_ANSWER_SECONDS = 120.0
_QUESTION = b"Reply with the single word: ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAgentReport:
    """The state of one coding agent."""

    agent: str
    usable: bool
    path: str | None = None
    version: str | None = None
    problem: str | None = None
    """Why it is not usable, and what to do."""


def examine_agents(*, ask: bool, json: bool) -> int:
    """Print a line for each coding agent; with `ask`, request one word from each. Exit code 0 if one is usable."""
    found = run_async(_reports(ask=ask))
    if json:
        say_json({"agents": [asdict(report) for report in found]})
    else:
        for line in _lines(found):
            say(line)
    return Exit.COMPLETED if any(report.usable for report in found) else Exit.FAILED


async def _reports(*, ask: bool) -> list[CodingAgentReport]:
    return list(await asyncio.gather(*(_report(preset, ask=ask) for preset in PRESETS.values())))


async def _report(preset: CodingPreset, *, ask: bool) -> CodingAgentReport:
    path = shutil.which(preset.program)
    if path is None:
        problem = f"not installed: {preset.install}"
        return CodingAgentReport(agent=preset.name, usable=False, problem=problem)
    about: dict[str, Any] = {"agent": preset.name, "path": path}
    started = await _tried([path, "--version"], b"", _VERSION_SECONDS)
    if isinstance(started, str):
        return CodingAgentReport(**about, usable=False, problem=started)
    about["version"] = next(iter(started.out.decode(errors="replace").split("\n")), "").strip()
    fault = await _answer_problem(preset, path) if ask else None
    return CodingAgentReport(**about, usable=fault is None, problem=fault)


async def _answer_problem(preset: CodingPreset, path: str) -> str | None:
    """Return why a coding agent gives no answer, or None if it gives one."""
    call = CodingCall(permission="read")
    environment = preset.variables(call)
    ended = await _tried(
        [path, *preset.arguments(call)], _QUESTION, _ANSWER_SECONDS, environment, any_code=True
    )
    if isinstance(ended, str):
        return ended
    answer = answer_of(preset, ended)
    if answer is None:
        return f"it {ended.how}: {last_words(ended.err) or last_words(ended.out)}"
    return answer.error or (None if answer.text else "its answer is empty")


async def _tried(
    argv: list[str],
    given: bytes,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    any_code: bool = False,
) -> ProgramExit | str:
    """Return the end of a program, or why it did not work."""
    try:
        ended = await run_program(argv, given, seconds=seconds, folder=Path.cwd(), environment=environment)
    except TimeoutError:
        return f"it took longer than {seconds:g} s and was killed"
    except OSError as error:
        return f"it cannot be started ({error.strerror or error})"
    if ended.code and not any_code:
        return f"it {ended.how}: {last_words(ended.err)}"
    return ended


def _lines(found: list[CodingAgentReport]) -> Iterator[str]:
    for report in found:
        state = "usable" if report.usable else "not usable"
        about = ", ".join(filter(None, (report.version, report.path, report.problem)))
        yield shown(f"{report.agent:<9} {state}: {about}")
