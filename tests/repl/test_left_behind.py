"""What workers leave behind, also where their program is killed: no folder, no open file, no process, no question."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from orchestrator.repl import Sandbox, WorkerRepl
from orchestrator.repl.process import _SWEPT
from tests.repl.conftest import Opener
from tests.runtime.stage import until

KILLED = """
import asyncio, os, signal
from orchestrator.repl import Sandbox, WorkerRepl

async def main():
    repl = WorkerRepl(sandbox=Sandbox(locks=frozenset({"limits", "dies_with_program"})))
    await repl.run("with open('left', 'w') as file: file.write('x')")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


BUSY = """
import asyncio
from orchestrator.repl import WorkerRepl

async def main():
    repl = WorkerRepl()
    await repl.run("1")
    print(repl._worker._pid, flush=True)
    await repl.run("while True: pass")

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_a_worker_that_is_busy_ends_with_the_program_that_started_it() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BUSY, env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert killed.stdout is not None
    worker = Path("/proc", (await killed.stdout.readline()).decode().strip())
    assert worker.exists()
    killed.kill()
    await killed.wait()
    await until(lambda: not worker.exists() or ") Z" in (worker / "stat").read_text())


async def test_folders_of_programs_that_were_killed_are_taken_away_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, env=environment)
    assert await killed.wait() == -signal.SIGKILL
    (dead,) = tmp_path.iterdir()
    assert (dead / "left").read_text() == "x"
    for name in ("orchestrator-repl-young", "somebody-else"):
        (tmp_path / name).mkdir()
    (tmp_path / "orchestrator-repl-link").symlink_to(tmp_path / "somebody-else")
    unlocked = Sandbox(locks=frozenset({"limits"}))
    async with WorkerRepl(sandbox=unlocked) as alive, WorkerRepl(sandbox=unlocked) as other:
        await alive.run("with open('kept', 'w') as file: file.write('x')")
        assert dead.exists(), "it may have been made just now"
        assert alive._worker is not None
        folder = Path(alive._worker._folder)
        for one in (dead, folder, tmp_path / "somebody-else"):
            os.utime(one, (0, 0))
        _SWEPT.remove(str(tmp_path))
        await other.run("1")
        assert not dead.exists()
        assert (folder / "kept").exists(), "its program lives"
    left = {"orchestrator-repl-young", "orchestrator-repl-link", "somebody-else"}
    assert {one.name for one in tmp_path.iterdir()} == left


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux shows what is open")
async def test_workers_leave_no_file_open_and_no_process(opened: Opener) -> None:
    def open_files() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    async with opened() as repl:
        await repl.run("1")
    before, gone = open_files(), []
    for code in ("1", "import time\ntime.sleep(99)", "print('x' * 10**5)"):
        async with opened() as repl:
            await repl.isolation()
            assert repl._worker is not None
            gone.append(repl._worker._process.pid)
            await repl.run(code, seconds=0.1)
    assert open_files() == before
    assert not [pid for pid in gone if Path(f"/proc/{pid}").exists()], "a zombie would stand there, too"


@pytest.mark.parametrize("how", ["closed", "killed by the system"])
async def test_a_worker_that_is_gone_waits_for_no_answer(how: str) -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def broker(_prompts: tuple[str, ...]) -> list[str]:
        asked.set()
        try:
            await asyncio.Event().wait()
            return []
        finally:
            cancelled.set()

    async with asyncio.timeout(100), WorkerRepl(broker=broker) as repl:
        running = asyncio.create_task(repl.run("llm_query('for ever')"))
        await asked.wait()
        if how == "closed":
            await repl.close()
        else:
            assert repl._worker is not None
            os.kill(repl._worker._pid, signal.SIGKILL)
        found = await running
    assert found.lost == "exit" if how == "closed" else found.lost
    assert cancelled.is_set(), "nobody pays for an answer that nobody reads"
