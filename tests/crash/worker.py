"""Work on a journal, told to a client log as it happens: what a fault interrupts.

As a script it is a nursery: it imports everything once, then forks a child for each line of its input, which arms
the shim and works. `python -m tests.crash.worker HOW PATH LOG SEED APPENDS` works without a shim: `once`, `killed` (a
first process ends without closing the journal, a second one resumes) or `both` (two processes at once).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

from orchestrator.errors import RunUnknown, StoreDown
from orchestrator.journal.sqlite import SqliteJournal, writer
from orchestrator.journal.sqlite.high_water import COPY, SECTOR, HighWater, HighWaterMark, mark_of
from orchestrator.kernel.journal import Draft, Lease, Posted
from tests.crash.invariants import BIG, blob, drafts

MODES = {
    "off": 0,
    "kill_before": 1,
    "kill_after": 2,
    "fail_sync": 3,
    "slow_sync": 4,
    "count": 5,
    "full_write": 6,
}


class Noted(Lease):
    """A lease that knows which commit moved it last, whenever whoever waits for that is woken."""

    __slots__ = ("_commits", "landed")

    def __init__(self, lease: Lease, commits: Callable[[], int]) -> None:
        super().__init__(lease.run_id, lease.owner, lease.epoch, lease.seq, lease.head)
        self._commits = commits
        self.landed = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "seq" and hasattr(self, "landed"):  # the writer sets it right before it counts the commit
            self.landed = self._commits() + 1
        object.__setattr__(self, name, value)


class Worker:
    """Creates runs or goes on with those it finds, appends to all of them at once, and logs."""

    def __init__(
        self, journal: SqliteJournal, log: int, *, seed: int, appends: int, runs: int = 3, plain: bool = False
    ) -> None:
        self.journal = journal
        self.log = log
        self.chance = random.Random(seed)
        self.appends = appends
        self.runs = runs
        self.plain = plain
        """Appends alone: no blobs, requests or removal."""
        self.name = f"{seed:x}"
        self.most_waited = 0

    def say(self, *words: object) -> None:
        os.write(self.log, (" ".join(map(str, words)) + "\n").encode())

    async def work(self) -> None:
        found = [head async for head in self.journal.runs(status="open") if head.owner is None]
        leases = [await self.journal.claim(head.run_id, "worker") for head in found]
        for number in range(self.runs - len(leases)):
            run = f"{self.name}-{number}"
            lease = await self.journal.create(run, "worker", {"graph": "g", "fingerprint": "f", "at": 1.0})
            self.say("ACK", "create", run)
            leases.append(lease)
        before = self.commits()
        await asyncio.gather(*(self.one(Noted(lease, self.commits)) for lease in leases))
        if self.plain:
            self.say("COUNT", "append_commits", self.commits() - before)
            self.say("COUNT", "most_commits_waited", self.most_waited)
        else:
            await self.remove(leases[0])

    def commits(self) -> int:
        return 0 if self.journal._handle is None else self.journal._handle.writer.commits

    async def one(self, lease: Noted) -> None:
        run = lease.run_id
        for number in range(self.appends):
            batch, count = f"{self.name}.{number}", self.chance.choice((1, 1, 2, 3))
            size = 0 if self.plain else {3: 500, 5: BIG}.get(number % 7, 0)
            content = blob(run, batch, size) if size else b""
            blobs = {hashlib.sha256(content).hexdigest(): content} if size else None
            self.say("TRY", "append", run, batch, count, size)
            waiting = self.journal.append(lease, drafts(run, batch, count), blobs)
            assert waiting is not None
            before = self.commits()
            await waiting
            self.most_waited = max(self.most_waited, lease.landed - before)
            self.say("ACK", "append", run, batch)
            if number % 5 == 2 and not self.plain:
                await self.journal.post(run, Posted(batch, "pause"))
                self.say("ACK", "post", run, batch)
        if not self.plain:
            await self.journal.release(lease)

    async def remove(self, lease: Lease) -> None:
        again = await self.journal.claim(lease.run_id, "worker")
        waiting = self.journal.append(again, [Draft("ended", {})])
        assert waiting is not None
        await waiting
        await self.journal.release(again)
        self.say("TRY", "erase", lease.run_id)
        await self.journal.erase(lease.run_id)


def show_marks() -> None:
    """Repeat each store through the mapping of a mark as a system call, for `strace` sees no other."""
    real = HighWaterMark.advance

    def advance(self: HighWaterMark, high_water: HighWater) -> None:
        real(self, high_water)
        start = self._start + SECTOR * (self._number & 1)
        assert self._map is not None
        file = os.open(mark_of(self._path), os.O_RDWR)
        os.pwrite(file, self._map[start : start + COPY], start)
        os.close(file)

    HighWaterMark.advance = advance  # type: ignore[method-assign]


async def continued(worker: Worker) -> None:
    """Work on other runs as soon as the journal has room again."""
    while True:
        with contextlib.suppress(StoreDown):
            await worker.journal.news(0)
            break
        await asyncio.sleep(0.01)
    worker.say("UP")
    worker.name += "+"
    await worker.work()


async def run(path: str, log: int, shim: Any = None, *, closes: bool = True, **how: Any) -> None:
    journal = SqliteJournal(path)
    worker = Worker(journal, log, **how)
    try:
        await worker.work()
    except StoreDown as error:
        worker.say("DOWN")
        if error.kind == "full":
            await continued(worker)
            await journal.close()
            return
        for again in (journal.head("x"), journal.post("x", Posted("x", "x")), journal.create("x", "x", {})):
            try:
                await again
            except StoreDown:
                worker.say("STILL DOWN")
            except RunUnknown:  # it failed while opening, so this opened it anew
                worker.say("UP")
    if not closes:
        os._exit(0)
    await journal.close()
    if shim is not None:
        worker.say("COUNT", "calls", shim.shim_count())
        worker.say("COUNT", "syncs", shim.shim_syncs())
        worker.say("COUNT", "syncs_after_failure", shim.shim_syncs_after_failure())


def child(order: dict[str, Any], shim: Any) -> None:
    log = os.open(order["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(log, 2)
    shim.shim_arm(MODES[order["mode"]], order["at"], order.get("delay", 0), order["folder"].encode())
    if order["mode"] == "full_write":
        writer._AGAIN = 0.01
    how = {name: order[name] for name in ("seed", "appends", "runs", "plain") if name in order}
    asyncio.run(run(order["path"], log, shim, **how))


def forked(work: Callable[[], None]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(started(work), 0)[1])


def started(work: Callable[[], None]) -> int:
    process = os.fork()
    if not process:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001  a forked child must never come back
            traceback.print_exc()
        finally:
            os._exit(status)
    return process


def nursery() -> None:
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for name in ("shim_count", "shim_syncs", "shim_syncs_after_failure"):
        getattr(shim, name).restype = ctypes.c_long
    shim.shim_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_char_p]
    for line in sys.stdin:
        order = json.loads(line)
        print(forked(lambda order=order: child(order, shim)), flush=True)  # type: ignore[misc]  # noqa: T201


def alone(how: str, path: str, log: str, seed: int, appends: int) -> None:
    """Work without a shim, in one process or in two."""
    show_marks()
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def life(number: int, **options: Any) -> None:
        asyncio.run(run(path, file, seed=seed + number, appends=appends, **options))

    if how == "killed":
        assert forked(lambda: life(1, closes=False)) == 0
    if how == "both":
        processes = [started(lambda number=number: life(number, plain=True)) for number in (1, 2)]  # type: ignore[misc]
        assert [os.waitpid(process, 0)[1] for process in processes] == [0, 0]
    else:
        life(0)


if __name__ == "__main__":
    if sys.argv[1:]:
        alone(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        nursery()
