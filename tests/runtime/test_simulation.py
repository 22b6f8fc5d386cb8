"""T20: worlds made from seeds, in virtual time: three agents over one journal, and whatever may go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.simulation import digest_of, simulated

ROOT = Path(__file__).resolve().parents[2]
REPLAY = "from tests.crash.simulation import *; print(digest_of(simulated({seed})))"


@pytest.mark.parametrize("worlds", [10, pytest.param(120, marks=pytest.mark.campaign)])
def test_in_every_world_each_run_ends_and_nothing_is_lost_or_done_twice(
    seed: int, worlds: int, campaign: Callable[[int, int], int]
) -> None:
    most, seconds, began = campaign(worlds, 2_000), campaign(20, 3_600), time.perf_counter()
    rounds = 0
    struck: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for number in range(seed, seed + most):
        if time.perf_counter() - began > seconds:
            break
        rounds += 1
        try:
            world = simulated(number)
        except Exception as error:
            raise AssertionError(f"ORCHESTRATOR_SEED={number} fails; it does so each time") from error
        struck += world.struck + world.refusals
        seen += world.seen
    rate = rounds / (time.perf_counter() - began)
    print(f"{rounds} worlds, {rate:.0f} a second; struck: {dict(struck)}; seen: {dict(seen)}")  # noqa: T201
    if rounds < 100:  # in `make test`, and on a busy machine
        return
    # Else it shows less than it seems to.
    wanted = {"crash", "cancel", "jump", "pause", "resume", "answer", "store down", "Held", "RunExists"}
    assert wanted <= set(struck)
    assert {"rolled_back", "unknown_effect", "approval", "parked", "resumed", "control"} <= set(seen)


@pytest.mark.campaign
def test_a_seed_is_the_same_world_each_time_in_any_process(seed: int) -> None:
    for number in range(seed, seed + 6):
        assert digest_of(simulated(number)) == digest_of(simulated(number)), number
    assert digest_of(simulated(seed)) != digest_of(simulated(seed + 1))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "7"}
    script = REPLAY.format(seed=seed)
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == digest_of(simulated(seed))


@pytest.mark.parametrize("number", [0, 97, 128, 2_000_181, 2_001_671])
def test_worlds_that_once_failed(number: int) -> None:
    simulated(number)
