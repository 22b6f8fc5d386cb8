"""Code that wants out of its worker. The kernel's locks stop it; where they are not offered, the test says so."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.repl import Level, Sandbox, WorkerRepl
from orchestrator.repl.inside.lock import MACHINE
from orchestrator.repl.isolation import LOCKS
from tests.repl.conftest import SMALL, Opener
from tests.repl.escapes import (
    EMPTY,
    FILES,
    NETWORK,
    PRELUDE,
    PROCESSES,
    PROGRAMS,
    RIGHTS,
    SINGLE,
    WORKS_UNLOCKED,
)
from tests.repl.floods import FLOODS
from tests.runtime.stage import until

SECRET = "the host's secret"  # noqa: S105  a word
KINDS = {
    "files": FILES,
    "network": NETWORK,
    "processes": PROCESSES,
    "programs": PROGRAMS,
    "rights": RIGHTS,
}
CODE = {name: code for table in KINDS.values() for name, code in table.items()}
TIGHT = {
    "CPU time": replace(SMALL, seconds=60.0, cpu_seconds=0.4),
    "wall time": replace(SMALL, seconds=0.8, cpu_seconds=60.0),
}
"""Limits of which only one can be met, however busy the machine is."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What an attempt can aim at: a file, sockets that listen, this process."""
    (tmp_path / "secret.txt").write_text(SECRET)
    with ExitStack() as stack:
        tcp, unix, abstract = (
            stack.enter_context(socket.socket(family))
            for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX)
        )
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "s"))
        abstract.bind(f"\0orchestrator-test-{os.getpid()}")
        for one in (tcp, unix, abstract):
            one.listen()
        yield {
            "secret": str(tmp_path / "secret.txt"),
            "port": tcp.getsockname()[1],
            "unix": str(tmp_path / "s"),
            "abstract": f"\0orchestrator-test-{os.getpid()}",
            "parent": os.getpid(),
            "group": os.getpgrp(),
            "package": str(Path(orchestrator.__file__).parent),
        }


async def attempt(repl: WorkerRepl, code: str, world: dict[str, Any]) -> str:
    """Return what an attempt got, or the class of the error that stopped it."""
    await repl.run(PRELUDE)
    found = await repl.run(
        f"try:\n    print('GOT', repr({code.format(**world)}))\n"
        "except BaseException as error:\n    print('STOPPED', type(error).__name__, error)"
    )
    return found.stdout if found.ok else f"LOST {found.lost}"


def test_there_are_many_attempts() -> None:
    assert len(CODE) + len(EMPTY) + len(FLOODS) >= 110


@pytest.mark.skipif(sys.platform != "linux" or not MACHINE, reason="the locks are those of Linux")
async def test_linux_locks_the_worker_up_fully(opened: Opener) -> None:
    async with opened() as repl:
        found = await repl.isolation()
    assert found.level is Level.FULL, found.to_dict()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_attempt_is_stopped(opened: Opener, world: dict[str, Any], kind: str) -> None:
    async with opened() as repl:
        isolation = await repl.isolation()
        if not isolation.stops.get(kind, isolation.level is Level.FULL):
            pytest.skip(f"no lock of this machine stops it: {isolation.to_dict()['locks']}")
        said = {name: await attempt(repl, code, world) for name, code in KINDS[kind].items()}
    assert {name: found for name, found in said.items() if not found.startswith("STOPPED")} == {}
    assert Path(world["secret"]).read_text() == SECRET
    assert sorted(file.name for file in Path(world["secret"]).parent.iterdir()) == ["s", "secret.txt"]


async def test_the_attempts_would_work_without_locks(opened: Opener, world: dict[str, Any]) -> None:
    said = {}
    async with opened(sandbox=Sandbox(locks=frozenset({"limits", "dies_with_program"}))) as repl:
        assert (await repl.isolation()).level is Level.LIMITS
        for name in WORKS_UNLOCKED:
            Path(world["secret"]).write_text(SECRET)
            said[name] = await attempt(repl, CODE[name], world)
    assert {name: found for name, found in said.items() if not found.startswith("GOT")} == {}


@pytest.mark.parametrize(
    ("column", "locks"),
    [
        (0, (*(lock for lock in LOCKS if lock.endswith("_namespace")), "file_tree", "no_capabilities")),
        (1, ("landlock",)),
        (2, ("seccomp",)),
    ],
    ids=["namespaces", "landlock", "seccomp"],
)
async def test_what_one_lock_stops_alone(
    opened: Opener, world: dict[str, Any], column: int, locks: tuple[str, ...]
) -> None:
    async with opened(sandbox=Sandbox(locks=frozenset(locks))) as repl:
        isolation = await repl.isolation()
        if not all(isolation.has(lock) for lock in locks):
            pytest.skip(f"not offered here: {isolation.to_dict()['locks']}")
        (detail,) = (lock.detail for lock in isolation.locks if lock.name == "landlock")
        if locks == ("landlock",) and int(detail.removeprefix("version ")) < 6:
            pytest.skip("this landlock knows no signals and no abstract sockets yet")
        said = {name: await attempt(repl, CODE[name], world) for name in SINGLE}
    assert {name: found[0] for name, found in said.items()} == {
        name: row.split()[column] for name, row in SINGLE.items()
    }


@pytest.mark.parametrize("name", EMPTY)
async def test_an_attempt_finds_nothing(
    opened: Opener, world: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-host")
    async with opened() as repl:
        said = await attempt(repl, EMPTY[name], world)
    assert said in ("GOT {}\n", "GOT []\n"), said


async def test_what_the_worker_was_started_with_holds_no_secret(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-host")
    async with opened() as repl:
        await repl.isolation()
        assert repl._worker is not None
        for pid in (repl._worker._process.pid, repl._worker._pid):
            assert Path(f"/proc/{pid}/environ").read_bytes() == b""


# ---- too much of everything ----


@pytest.mark.canary("an endless loop", "a list that grows", "a crash", "a frame that is no object", "leaving")
@pytest.mark.campaign
@pytest.mark.parametrize("name", FLOODS)
async def test_too_much_is_stopped_and_the_next_block_runs(opened: Opener, name: str) -> None:
    code, said = FLOODS[name]
    async with opened("the context", limits=TIGHT.get(said, SMALL)) as repl:
        found = await repl.run(code)
        assert not found.ok
        assert said in f"{found.lost} {found.error}"
        assert found.lost is None or "every variable, function and file is gone" in found.text_for_model()
        after = await repl.run("context")
        if after.lost:  # it did harm that shows only now
            after = await repl.run("context")
    assert after.stdout == "'the context'\n"


@pytest.mark.campaign
async def test_a_fork_bomb_makes_no_process(opened: Opener) -> None:
    """The real thing, run only where a lock that this machine has says that it stops it; root is not bound by NPROC."""
    bomb = (
        PRELUDE
        + "made = 0\nwhile True:\n    try:\n        made += bool(os.fork())\n    except OSError:\n        pass"
    )
    roomy = replace(TIGHT["CPU time"], cpu_seconds=1.5)  # the first one has to get through on a busy machine
    async with opened(limits=roomy) as repl:
        isolation = await repl.isolation()
        if not isolation.stops["processes"]:
            pytest.skip("no lock of this machine stops it")
        # First once, by hand: it must be refused before the loop may run.
        once = await repl.run(
            PRELUDE + "try:\n    os.fork() or os._exit(0)\nexcept OSError as e:\n    print('no')"
        )
        assert once.stdout == "no\n"
        assert repl._worker is not None
        group = repl._worker._process.pid
        found = await repl.run(bomb)
    assert found.lost == "CPU time"
    await until(lambda: not _of_group(group))  # what was killed is not gone at once


def _of_group(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("code", "kept", "dropped"),
    [
        ("while True: print('x' * 1000)", 0, 0),
        ("print('x' * 10**8)", SMALL.output_chars, 10**8 + 1 - SMALL.output_chars),
        ("for i in range(10**5): print(i, end=',' * 10)", SMALL.output_chars, 1_478_890),
        ("'x' * 10**7", SMALL.output_chars, 10**7 + 3 - SMALL.output_chars),
        ("raise ValueError('x' * 10**7)", 0, 0),
    ],
)
async def test_a_flood_of_output_is_cut_and_counted(
    opened: Opener, code: str, kept: int, dropped: int
) -> None:
    async with opened(limits=TIGHT["CPU time"] if code.startswith("while") else SMALL) as repl:
        found = await repl.run(code)
    assert (len(found.stdout), found.dropped) == (kept, dropped)
    assert found.lost == ("CPU time" if code.startswith("while") else None)
    assert found.ok == (kept > 0)
    assert len(found.error or "") <= 8_100
    assert ("ValueError" in (found.error or "")) == code.startswith("raise")
    assert len(found.text_for_model()) <= 20_200


FILES_FLOODS = [
    "for i in range(100):\n    with open(f'f{i}', 'w') as f: f.write('x' * 10**6)",
    "for i in range(10**5):\n    open(f'f{i}', 'w').close()",
    "with open('f', 'w') as f:\n    for _ in range(100): f.write('x' * 10**6)",
]


@pytest.mark.parametrize("code", FILES_FLOODS)
async def test_a_flood_of_files_is_stopped(opened: Opener, code: str) -> None:
    async with opened() as repl:
        if not (await repl.isolation()).has("file_tree"):
            pytest.skip("no file tree of its own here")
        found = await repl.run(code)
        assert "OSError" in (found.error or "")
        assert found.lost is None
        assert (await repl.run("1")).ok


@pytest.mark.parametrize("code", FILES_FLOODS)
async def test_a_flood_of_files_is_noticed_where_the_kernel_does_not_bound_it(
    opened: Opener, code: str
) -> None:
    """Files are made until somebody looks: then the worker is killed, and its folder is gone."""
    async with opened(sandbox=Sandbox(locks=frozenset({"limits", "landlock", "seccomp"}))) as repl:
        found = await repl.run(code + "\nwhile True: pass")
        assert found.lost == "disk" or "OSError" in (found.error or "")
        assert (await repl.run("1")).ok


@pytest.mark.campaign
@pytest.mark.parametrize("deep", [990, 2_500])
async def test_folders_in_folders_do_not_end_the_watch_and_are_taken_away(opened: Opener, deep: int) -> None:
    """As deep as Python calls itself, and deeper: what looks after the limits must not fall over it."""
    code = f"for _ in range({deep}):\n    os.mkdir('d')\n    os.chdir('d')\nwhile True: pass"
    limits = replace(SMALL, seconds=2.0, files=100_000)
    async with opened(
        limits=limits, sandbox=Sandbox(locks=frozenset({"limits", "landlock", "seccomp"}))
    ) as repl:
        await repl.isolation()
        assert repl._worker is not None
        folder = repl._worker._folder
        found = await repl.run(PRELUDE + code)
        assert found.lost in {"wall time", "disk"}
        assert not Path(folder).exists()


async def test_a_worker_that_cannot_be_watched_is_killed(opened: Opener) -> None:
    async with opened() as repl:
        await repl.isolation()
        assert repl._worker is not None

        def broken() -> float:
            raise RuntimeError("nothing to be seen")

        repl._worker.cpu_seconds = broken  # type: ignore[method-assign]
        found = await repl.run("while True: pass")
        assert "it could not be watched: RuntimeError" in found.text_for_model()
        assert (await repl.run("1")).ok
