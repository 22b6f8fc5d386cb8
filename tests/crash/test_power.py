"""T3 and T4: power loss at any call, torn sectors and garbage; and stores that the model must find to fail."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.testing.journal_contract import BODY
from tests.crash.invariants import Log, check
from tests.crash.power import Call, Disk, Image, calls, lay_out, record
from tests.crash.stores import MODES, numbers

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.system("strace")


def recorded(folder: Path, environment: dict[str, str], *command: str) -> list[Call]:
    """Run a module's work on `folder/store`, and return its calls, the client log's among them."""
    (folder / "store").mkdir(exist_ok=True)
    done = [part.format(store=folder / "store", log=folder / "client.log") for part in command]
    record([sys.executable, "-m", *done], folder / "trace", environment, ROOT)
    return list(calls(folder / "trace", folder))


def is_log(call: Call) -> bool:
    return call.path == "client.log"


@pytest.mark.canary("json in place-False", "sqlite wal/full-True")
@pytest.mark.parametrize(("mode", "keeps"), MODES.items())
def test_the_model_knows_which_stores_lose_what_they_acknowledged(
    mode: str,
    keeps: bool,
    quick: Path,
    environment: dict[str, str],
    seed: int,
    campaign: Callable[[int, int], int],
) -> None:
    disk, chance, acknowledged, bad, seen = Disk(), random.Random(seed), -1, 0, 0
    disk.names["store"] = disk.durable_names["store"] = None
    for call in recorded(quick, environment, "tests.crash.stores", mode, "{store}", "{log}"):
        if is_log(call):
            acknowledged += call.data.startswith(b"ACK")
            continue
        disk.apply(call)
        for _, image in disk.images(chance, campaign(1, 20)):
            seen += 1
            bad += not holds(mode, image, acknowledged, quick / "image")
    assert acknowledged == 11
    assert seen > 100
    assert (bad == 0) is keeps, f"{bad} of {seen} images"


def holds(mode: str, image: Image, acknowledged: int, folder: Path) -> bool:
    lay_out(image, folder)
    try:
        found = numbers(mode, folder / "store")
        return found == list(range(len(found))) and len(found) > acknowledged
    except (ValueError, apsw.Error):
        return False
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", ["once", "killed", "both"])
def test_the_journal_keeps_all_it_acknowledged_through_any_power_loss_and_is_never_called_corrupt(
    quick: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int], how: str
) -> None:
    work = ("tests.crash.worker", how, "{store}/deep/journal.db", "{log}", "7", "6")
    disk, chance, lines, seen = Disk(), random.Random(seed), "", 0
    disk.names["store"] = disk.durable_names["store"] = None
    stride, syncs = campaign(50, 5), campaign(3, 1)
    traced = recorded(quick, environment, *work)
    assert sum(call.path.endswith("-mark") and call.name == "write" for call in traced) > 6
    for number, (call, following) in enumerate(pairwise(traced)):
        if is_log(call):
            lines += call.data.decode()
            continue
        disk.apply(call)
        # What differs is how much waits for a sync: so before each third of them, and at some calls between.
        if (number + seed) % (syncs if following.name == "sync" else stride):
            continue
        for what, image in disk.images(chance, campaign(1, 4)):
            seen += 1
            asyncio.run(proved(image, lines, quick / "image", f"{what} at call {number}"))
    assert "ACK append" in lines
    assert seen > 40
    print(f"{seen} images")  # noqa: T201  captured, for the report


async def proved(image: Image, lines: str, folder: Path, where: str) -> None:
    lay_out(image, folder)
    journal = SqliteJournal(folder / "store" / "deep" / "journal.db")
    try:
        log = Log.read(lines.splitlines())
        await check(journal, log)
        if "mixed" in where:
            assert (await journal.check()).ok
            await journal.create("later", "me", BODY)  # and it is used on, with the mark that is left
            await journal.reopen()
            await check(journal, log)
            assert (await journal.head("later")).seq == 0
    except Exception as error:
        error.add_note(where)
        raise
    finally:
        await journal.close()
        shutil.rmtree(folder)
