"""`orchestrator rlm isolation`: which locks hold on this machine, and an exit code for whoever demands a level."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.rlm import isolation as command
from orchestrator.repl import Isolation, SandboxLock
from orchestrator.repl.isolation import LOCKS

Cli = Callable[..., Any]


def test_every_lock_is_listed_with_whether_it_holds(cli: Cli, folder: Path) -> None:
    done = cli("rlm", "isolation")
    found = json.loads(cli("rlm", "isolation", "--json").out)
    assert (done.code, done.err) == (0, "")
    assert f"isolation {found['level']}: " in done.out
    assert set(found["locks"]) == set(LOCKS)
    for name, lock in found["locks"].items():
        assert f"  {name:17}  {'yes' if lock['holds'] else 'no'}" in done.out


@pytest.mark.parametrize(
    ("locks", "level", "codes"),
    [
        ((), "limits", (0, 1, 1)),
        (("limits",), "limits", (0, 1, 1)),
        (("seccomp",), "partial", (0, 0, 1)),
        (("landlock", "seccomp"), "full", (0, 0, 0)),
        (("file_tree", "pid_namespace", "network_namespace", "no_processes"), "full", (0, 0, 0)),
        (("file_tree", "pid_namespace", "network_namespace"), "partial", (0, 0, 1)),
    ],
)
def test_the_exit_code_says_whether_a_level_is_reached(
    cli: Cli,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    locks: tuple[str, ...],
    level: str,
    codes: tuple[int, ...],
) -> None:
    found = Isolation(
        tuple(SandboxLock(name, name in locks, "" if name in locks else "not offered") for name in LOCKS)
    )
    monkeypatch.setattr(command, "examined", lambda: found)
    assert found.level.name.lower() == level
    wanted = ("limits", "partial", "full")
    assert tuple(cli("rlm", "isolation", "--least", name).code for name in wanted) == codes
    assert f"isolation {level}: " in cli("rlm", "isolation").out


def test_a_machine_that_starts_no_worker_is_said_in_one_sentence(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "examined", lambda: "no code of models can be run here: no such program")
    done = cli("rlm", "isolation")
    assert (done.code, done.out) == (2, "")
    assert "no code of models can be run here: no such program" in done.err
