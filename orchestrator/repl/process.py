"""Start, address, watch and kill one worker process. A `WorkerRepl` has one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.errors import RunError
from orchestrator.repl.inside.channel import CPU_EXIT, HEADER, MEMORY_EXIT, packed, unpacked
from orchestrator.repl.isolation import FIRST_USER, USERS, Isolation, ReplLimits, Sandbox, SandboxLock


class ReplError(RunError):
    """A worker could not be started, or its isolation is below the required level."""


class WorkerLost(RunError):
    """The worker ended or was killed; `why` is short, the message is for the model."""

    def __init__(self, why: str, message: str) -> None:
        self.why = why
        super().__init__(message)


# ---- the folder of a worker ----
#
# A program that is killed cannot remove its folder. So the program that creates a folder holds a lock on it; the kernel
# releases the lock when the program ends in any way. The first worker of a program removes all unlocked folders. A
# process number in the name would not work: it has no meaning if containers share a folder for temporary files.


PREFIX = "orchestrator-repl-"
YOUNG = 60.0
"""Seconds in which an unlocked folder is kept, because it may be new."""
_SWEPT: set[str] = set()
"""Places that this program has already swept."""


class ScratchFolder:
    """A new folder. Raises OSError if none can be created."""

    def __init__(self) -> None:
        self.path = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
        self._descriptor: int | None = None
        # On a file system without locks, no later program removes the folder.
        with contextlib.suppress(OSError):
            self._descriptor = _descriptor(self.path)

    def remove(self) -> None:
        """Remove the folder and its content; a second call has no effect."""
        removed(self.path)
        held, self._descriptor = self._descriptor, None
        if held is not None:
            os.close(held)


def sweep() -> None:
    """Remove folders of programs that have ended; once for each place with such folders."""
    place = tempfile.gettempdir()
    if place in _SWEPT:
        return
    _SWEPT.add(place)
    user = os.geteuid()
    workers = range(FIRST_USER, FIRST_USER + USERS) if user == 0 else ()
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for entry in found:
            if not entry.name.startswith(PREFIX):
                continue
            with contextlib.suppress(OSError):
                status = os.lstat(entry.path)
                ours = stat.S_ISDIR(status.st_mode) and (status.st_uid == user or status.st_uid in workers)
                if not ours or time.time() - status.st_mtime <= YOUNG:
                    continue
                held = _descriptor(entry.path)
                try:
                    removed(entry.path)
                finally:
                    os.close(held)


def _descriptor(path: str) -> int:
    """Open and lock a folder. Raises OSError if another process holds the lock, or it is not a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def removed(path: str) -> None:
    """Remove a folder of any depth: up to Python 3.12 rmtree recurses for each level."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:
        with contextlib.suppress(OSError):  # move every folder of the tree to its top
            below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
            while below:
                for entry in list(os.scandir(below.pop())):
                    if entry.is_dir(follow_symlinks=False):
                        below.append(f"{path}/{secrets.token_hex(16)}")
                        Path(entry.path).rename(below[-1])
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


# ---- the process ----


# The packages are created without their __init__ files: the worker loads only the modules of `inside`.
_BOOT = """
import sys, types
for name, path in (("orchestrator", sys.argv[1]), ("orchestrator.repl", sys.argv[1] + "/repl")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from orchestrator.repl.inside.main import main
main()
"""
_PACKAGE = Path(__file__).resolve().parent.parent
_EXIT = 5.0
"""Seconds for a worker to exit after it closed its end. On a busy machine its memory is not freed at once."""
_GRACE = 1.0
"""Seconds for the end of its outputs, which another process may hold open."""
_SMALL = 1_000_000
"""Maximum bytes of a frame that holds no text of the code."""


class ReplProcess:
    """A running, locked worker process; `start` creates one."""

    def __init__(
        self, process: asyncio.subprocess.Process, folder: ScratchFolder, limits: ReplLimits
    ) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ReplError("the REPL's worker was started without pipes")
        self._process = process
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        self._scratch, self._folder = folder, folder.path
        self._limits = limits
        self._pid = process.pid
        self.isolation = Isolation(())
        self._killed_for: WorkerLost | None = None

    @classmethod
    async def start(cls, context: Any, limits: ReplLimits, sandbox: Sandbox, **names: Any) -> ReplProcess:
        """Start a worker and send its context. Raises ReplError if that fails, or if too few locks hold."""
        await asyncio.to_thread(sweep)
        folder = ScratchFolder()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT, str(_PACKAGE)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={},
                cwd=folder.path,
                start_new_session=True,
            )
        except BaseException:
            folder.remove()
            raise
        worker = cls(process, folder, limits)
        try:
            async with asyncio.timeout(limits.start_seconds):
                await worker._set_up(context, sandbox, names)
        except BaseException as error:
            lost = isinstance(error, TimeoutError | WorkerLost | OSError)
            said = await worker._last_words() if lost else ""
            worker._strike()
            folder.remove()  # before the next await, which may be cancelled
            await worker.end()
            if lost:
                raise ReplError(
                    f"the REPL's worker did not start: {said or str(error) or 'no answer in time'}"
                ) from error
            raise
        return worker

    async def _set_up(self, context: Any, sandbox: Sandbox, names: dict[str, Any]) -> None:
        config = {
            "limits": asdict(self._limits),
            "locks": sorted(sandbox.locks),
            "imports": sandbox.imports,
            "folder": self._folder,
            "user": FIRST_USER + self._process.pid % USERS,
            **names,
        }
        await self.send(config)
        hello: dict[str, Any] = {}
        while "locks" not in hello:
            hello = await self.receive(_SMALL)
            self._pid = hello.get("pid", self._pid)
        self.isolation = Isolation(tuple(SandboxLock(name, *found) for name, found in hello["locks"].items()))
        if self.isolation.has("pid_namespace") and self._pid == self._process.pid:
            self._pid = (await self.receive(_SMALL))["pid"]
        if self.isolation.level < sandbox.least:
            lacks = ", ".join(name for name, stopped in self.isolation.stops.items() if not stopped)
            raise ReplError(
                f"the code would run at isolation level {self.isolation.level.name.lower()} here, "
                f"{sandbox.least.name.lower()} is required; still reachable: {lacks}. "
                "`orchestrator doctor` lists the locks and why some do not hold"
            )
        if self.isolation.has("file_tree"):
            # It was the mount point; the worker has its own now, and a killed program leaves nothing behind.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(Path(self._folder).rmdir)
        await self.send({"context": context})
        await self.receive(_SMALL)

    async def _last_words(self) -> str:
        """Return the last line of a worker that failed to start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._process.wait()
                said = (await self._err.read(20_000)).decode(errors="replace").strip()
                if self._process.returncode == MEMORY_EXIT or said.endswith("MemoryError"):
                    return f"its context does not fit into {self._limits.memory_bytes:,} bytes of memory"
                return said.rpartition("\n")[2]
        return ""

    # ---- frames ----

    async def send(self, frame: dict[str, Any]) -> None:
        """Write a frame. Raises WorkerLost."""
        try:
            self._in.write(packed(frame))
            await self._in.drain()
        except (ConnectionError, BrokenPipeError) as error:
            raise await self._gone() from error

    async def receive(self, most: int) -> dict[str, Any]:
        """Read a frame of at most `most` bytes. Raises WorkerLost if there is none, or it is not a valid frame."""
        try:
            size = int.from_bytes(await self._out.readexactly(HEADER), "big")
            if size > most:
                raise self.kill("protocol", f"it sent {size:,} bytes at once")
            frame = unpacked(await self._out.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._gone() from error
        except (ValueError, RecursionError) as error:
            raise self.kill("protocol", "it violated the protocol") from error
        if not isinstance(frame, dict):
            raise self.kill("protocol", "it violated the protocol")
        return frame

    async def over(self) -> WorkerLost:
        """Wait for the end of the process and return the reason."""
        await self._process.wait()
        return await self._gone()

    async def _gone(self) -> WorkerLost:
        """Return the reason why the worker has ended."""
        try:
            async with asyncio.timeout(_EXIT):
                await self._process.wait()
        except TimeoutError:
            self.kill("exit", "it closed its end of the channel")
        code = await self._process.wait()
        limits = self._limits
        if self._killed_for is not None:
            return self._killed_for
        if code == MEMORY_EXIT:
            return WorkerLost("memory", f"it used up its {limits.memory_bytes >> 20} MB of memory")
        if code in (CPU_EXIT, 128 + signal.SIGXCPU, -signal.SIGXCPU):
            return WorkerLost("CPU time", f"it used up its {limits.session_cpu_seconds:,} s of CPU time")
        if code in (128 + signal.SIGKILL, -signal.SIGKILL):
            return WorkerLost("memory", "the system killed it, usually because the host has no memory left")
        return WorkerLost("exit", f"it exited unexpectedly ({_status(code)})")

    # ---- end ----

    def kill(self, why: str, message: str) -> WorkerLost:
        """Kill the process and all its children, and return the error with the reason; the first reason counts."""
        if self._killed_for is None:
            self._killed_for = WorkerLost(why, message)
        self._strike()
        return self._killed_for

    def _strike(self) -> None:
        if self._process.returncode is None:
            # It leads its group and was not waited for yet, so no other process has the number.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the remaining processes and remove the folder."""
        self._strike()
        self._in.close()
        await self._process.wait()
        # Read both outputs to their end, which closes them: a reader with a full buffer would keep its pipe open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                for output in (self._out, self._err):
                    while await output.read(1 << 16):
                        pass
        await asyncio.to_thread(self._scratch.remove)

    # ---- resource usage ----

    def cpu_seconds(self) -> float | None:
        """Return the used CPU time; None if the system does not report it."""
        try:
            found = Path(f"/proc/{self._pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        ticks = found.rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def fills_disk(self) -> bool:
        """Return whether its folder has too many or too large files, or folders that cannot be read."""
        size = count = 0
        folders = [self._folder]
        while folders:
            try:
                with os.scandir(folders.pop()) as found:
                    for entry in found:
                        count += 1
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        else:
                            with contextlib.suppress(OSError):
                                size += entry.stat(follow_symlinks=False).st_size
                        if size > self._limits.disk_bytes or count > self._limits.files:
                            return True
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed meanwhile
            except OSError:
                return True
        return False


def _status(code: int) -> str:
    number = -code if code < 0 else code - 128
    if code < 0 or number > 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(number).name}"
    return f"exit status {code}"
