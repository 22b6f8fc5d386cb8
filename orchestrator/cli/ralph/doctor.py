"""`orchestrator ralph doctor`: which coding agents are installed, and with --ask which of them answer."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.ralph.agents import AgentsFile
from orchestrator.cli.trust.consent import is_trusted_folder
from orchestrator.runtime.ralph.coding_agent import PRESETS, CodingAgent, CodingCall, CodingPreset, answer_of
from orchestrator.runtime.service.program import ProgramExit, inherited, last_words, run_program

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


def examine_agents(*, file: Path | None, ask: bool, json: bool) -> int:
    """Print a line for each coding agent, and return the exit code; with `ask`, request one word from each.

    Without a file these are the agents with a preset of ours, and 0 means that one is usable. With one they are the
    agents that it names, and 0 means that all are. Raises ConfigError for a file with a fault.
    """
    presets = [*PRESETS.values()] if file is None else _presets_of(file)
    found = run_async(_reports(presets, ask=ask))
    if json:
        say_json({"agents": [asdict(report) for report in found]})
    else:
        for line in _lines(found):
            say(line)
    usable = [report.usable for report in found]
    return Exit.COMPLETED if (any(usable) if file is None else all(usable)) else Exit.FAILED


def _presets_of(file: Path) -> list[CodingPreset]:
    """Return the coding agents that a file of agents names. Raises ConfigError."""
    ports = AgentsFile.read(file).ports().values()
    return list({port.preset.name: port.preset for port in ports if isinstance(port, CodingAgent)}.values())


async def _reports(presets: Sequence[CodingPreset], *, ask: bool) -> list[CodingAgentReport]:
    return list(await asyncio.gather(*(_report(preset, ask=ask) for preset in presets)))


async def _report(preset: CodingPreset, *, ask: bool) -> CodingAgentReport:
    path = shutil.which(preset.program)
    if path is None:
        problem = f"not installed: {preset.install or f'there is no program {preset.program!r}'}"
        return CodingAgentReport(agent=preset.name, usable=False, problem=problem)
    about: dict[str, Any] = {"agent": preset.name, "path": path}
    started = await _tried([path, "--version"], b"", _VERSION_SECONDS)
    if not isinstance(started, str):
        about["version"] = started.out.decode(errors="replace").partition("\n")[0].strip()
    elif preset.name in PRESETS:  # another program may have no --version
        return CodingAgentReport(**about, usable=False, problem=started)
    fault = await _answer_problem(preset, path) if ask else None
    return CodingAgentReport(**about, usable=fault is None, problem=fault)


async def _answer_problem(preset: CodingPreset, path: str) -> str | None:
    """Return why a coding agent gives no answer, or None if it gives one."""
    call = CodingCall(permission="read", trusted=is_trusted_folder(Path.cwd()))
    environment = {**inherited(preset.env), **preset.variables(call)}
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
