from __future__ import annotations

import datetime as dt
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing.purity import GuardImpure, check_guard


def swallows(_: object) -> bool:
    try:
        Path(__file__).read_text(encoding="utf-8")
    except Exception:  # noqa: BLE001 - that is what it does
        return False
    return True


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        (lambda _: open(os.devnull), "reached outside: open"),  # noqa: PTH123, SIM115 - a guard's sin
        (swallows, "reached outside: open"),
        (lambda _: os.listdir(), "reached outside: os.listdir"),  # noqa: PTH208 - a guard's sin
        (lambda _: socket.socket(), "reached outside: socket.__new__"),
        (lambda _: subprocess.run([sys.executable], check=False), "reached outside: "),
        (lambda _: Path("x").exists(), r"called \w+.stat"),
        (lambda _: time.time() > 0, "called time.time"),
        (lambda _: time.monotonic() > 0, "called time.monotonic"),
        (lambda _: time.sleep(0), "called time.sleep"),
        (lambda _: dt.datetime.now(dt.UTC), "read a clock: datetime.now"),
        (lambda _: random.random() < 2, "used random numbers: Random.random"),
        (lambda _: random.choice([1]), "used random numbers: "),
        (lambda _: os.urandom(1) != b"", r"called \w+.urandom"),
        (lambda _: print("hello"), "called builtins.print"),  # noqa: T201 - a guard's sin
        (lambda _: threading.Thread(target=int).start(), "called _thread.start_"),
        (lambda _: logging.getLogger("guard").error("no"), "called time.time"),
    ],
)
def test_a_guard_that_reaches_outside_fails(guard: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(GuardImpure, match=why):
        check_guard(guard, 1)


def test_a_file_is_not_even_opened(tmp_path: Path) -> None:
    target = tmp_path / "written"
    with pytest.raises(GuardImpure, match="open"):
        check_guard(lambda _: target.write_text("x"), 1)
    assert not target.exists()


def test_a_generator_of_its_own_seeded_from_the_context_is_fine() -> None:
    assert check_guard(lambda seed: random.Random(seed).random() < 1, 7)


def test_an_import_is_not_held_against_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def guard(ctx: int) -> bool:
        import colorsys  # the system's own, and nobody has it loaded

        return colorsys.rgb_to_hsv(0, 0, ctx) is not None

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert check_guard(guard, 1)


def test_an_error_of_the_guard_itself_reaches_the_caller() -> None:
    with pytest.raises(KeyError):
        check_guard(lambda c: c["absent"], {})


def test_an_error_after_reaching_outside_is_impure_first() -> None:
    def guard(_: object) -> bool:
        raise ValueError(time.time())

    with pytest.raises(GuardImpure, match=r"time\.time") as caught:
        check_guard(guard, 1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_nothing_is_watched_outside_a_guard(tmp_path: Path) -> None:
    profiler = sys.getprofile()
    with pytest.raises(GuardImpure):
        check_guard(lambda _: time.time(), 1)
    assert sys.getprofile() is profiler
    (tmp_path / "x").write_text("fine")
    assert time.time() > 0


def test_another_thread_may_do_what_it_likes_meanwhile(tmp_path: Path) -> None:
    asked, written = threading.Event(), threading.Event()

    def writes() -> None:
        asked.wait(60)
        (tmp_path / "x").write_text("fine")
        written.set()

    thread = threading.Thread(target=writes)
    thread.start()

    def guard(_: object) -> bool:
        asked.set()
        return written.wait(60)

    assert check_guard(guard, 1)
    thread.join()
