"""`python -m tests.repeat`: the tests again and again on a disturbed machine, and those that failed, with their seeds.

    python -m tests.repeat --times 10                           `make test` while all cores are busy
    python -m tests.repeat --tier campaign --times 3 --slow-disk
    python -m tests.repeat --times 20 --stepping-clock -- tests/engines -n 2
    python -m tests.repeat --times 3 --late-threads

What follows `--` is for pytest; without `--tier` it chooses the tests. A slow disk delays each sync, and temporary
folders lie on a disk. A stepping clock shows another time each second, hours before or after, in all processes;
`time.monotonic` is right. The times of files are right too, and so are the clocks of programs that do not ask the C
library (those in Go) and of processes that get an environment of their own: they are like another machine.
Some ten tests of a tier rightly fail then, those of plans that expire and of the order of times: look at each.
Late threads are those of pools and of journals in the processes of pytest (`tests/late.py`); the test that counts the
calls of a turn is left out, because it would count those of the delays.

A failure is noted when it happens, so that the list has those of a run that is killed. The exit code is 1 if a test
failed, and that of pytest if it ended in another way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.preload import preloading
from tests.tiers import SELECTED, selecting

ROOT = Path(__file__).resolve().parent.parent
DISK = Path("/var/tmp")  # noqa: S108  on a disk also where /tmp is memory
COUNTS_CALLS = "tests/benchmarks/test_turn_calls.py"
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
"""What keeps a core busy, as long as the process that started it."""
NOTES = "TEST_FAILURES"
"""Variable with the file in which pytest notes each failure, as a JSON line."""
NOTED_IN = os.environ.get(NOTES)
"""Read at import, as the plugin that this is: `tests.environment` drops the variable."""
_SEED = re.compile(r"ORCHESTRATOR_SEED=\d+")
_SEEDS = re.compile(rf"{_SEED.pattern}|@reproduce_failure\(.*?\)$", re.MULTILINE)


class Failure(NamedTuple):
    """A test that failed in one of the runs."""

    run: int
    test: str
    message: str
    seeds: tuple[str, ...]
    """What repeats it: lines of the fixture `seed` and of hypothesis."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.repeat", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--tier", choices=[*SELECTED], help="default: test, unless arguments choose tests")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="default 10")
    parser.add_argument(
        "--load", action=argparse.BooleanOptionalAction, default=True, help="keep all cores busy"
    )
    parser.add_argument(
        "--slow-disk", action="store_true", help="delay each sync; temporary folders on a disk"
    )
    parser.add_argument("--stepping-clock", action="store_true", help="another time of the wall each second")
    parser.add_argument(
        "--late-threads", action="store_true", help="threads begin their work late, at random"
    )
    parser.add_argument(
        "--seed", type=int, help="of the clock's steps and the threads' delays in the first run"
    )
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    first = random.randrange(1_000_000) if options.seed is None else options.seed
    is_random = options.stepping_clock or options.late_threads
    failures: list[Failure] = []
    code = 0
    try:
        with busy_cores() if options.load else contextlib.nullcontext():
            for number in range(options.times):
                seed = first + number
                started = time.monotonic()
                with tempfile.TemporaryDirectory() as folder:
                    notes = Path(folder) / "failures"
                    with disturbed(
                        seed,
                        slow_disk=options.slow_disk,
                        stepping_clock=options.stepping_clock,
                        late_threads=options.late_threads,
                    ) as environment:
                        ended = run_tests(options.tier, options.arguments, environment | {NOTES: str(notes)})
                    found = list(failures_in(notes, number + 1))
                failures += found
                code = code or (128 - ended if ended < 0 else ended)  # as a shell counts signals
                seeded = f", seed {seed}" if is_random else ""
                print(
                    f"run {number + 1} of {options.times}{seeded}: {len(found)} failed, pytest ended with {ended}, "
                    f"{time.monotonic() - started:.0f} s",
                    flush=True,
                )
    except KeyboardInterrupt:
        code = 130
    print(table(failures, options, first))
    return code


def run_tests(tier: str | None, arguments: Sequence[str], environment: dict[str, str]) -> int:
    """Run pytest and return its exit code. Ctrl-C is pytest's own too: wait until it has cleaned up."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.repeat"]
    if tier or not arguments:
        tier = tier or "test"
        command += selecting(tier)
        environment["TEST_TIER"] = tier
    environment.pop("PYTEST_XDIST_WORKER", None)  # that of a test of this command
    process = subprocess.Popen([*command, *arguments], env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure, in the process of pytest that gets the reports of all workers."""
    if report.failed and NOTED_IN and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = (crash.message if crash else report.longreprtext).partition("\n")[0]
        text = "\n".join([report.longreprtext, *(content for _, content in report.sections)])
        seeds = list(dict.fromkeys(_SEEDS.findall(text)))
        with Path(NOTED_IN).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, message, seeds]) + "\n")


def failures_in(notes: Path, run: int) -> Iterator[Failure]:
    """Yield the failures that pytest noted."""
    if notes.exists():
        for line in notes.read_text(encoding="utf-8").splitlines():
            test, message, seeds = json.loads(line)
            yield Failure(run, test, message, tuple(seeds))


def table(failures: Sequence[Failure], options: argparse.Namespace, first: int) -> str:
    """Return each test that failed with its runs, messages, seeds and the command that repeats it."""
    lines = []
    for test in sorted({failure.test for failure in failures}):
        of_test = [failure for failure in failures if failure.test == test]
        lines.append(f"\n{test}  failed in {len({failure.run for failure in of_test})} of {options.times}")
        for failure in of_test:
            lines.append(f"    run {failure.run}: {failure.message}")
            lines += [f"        {seed}" for seed in failure.seeds]
            lines.append(f"        {repeating(failure, options, first)}")
    return "\n".join(lines or ["no test failed"])


def repeating(failure: Failure, options: argparse.Namespace, first: int) -> str:
    """Return the command that runs a test as it failed."""
    words = ["python", "-m", "tests.repeat", "--times", "1"]
    if not options.load:
        words.append("--no-load")
    if options.slow_disk:
        words.append("--slow-disk")
    words += ["--stepping-clock"] * options.stepping_clock + ["--late-threads"] * options.late_threads
    if options.stepping_clock or options.late_threads:
        words += ["--seed", str(first + failure.run - 1)]
    seeds = [seed for seed in failure.seeds if _SEED.fullmatch(seed)]
    return " ".join([*seeds[:1], shlex.join([*words, "--", failure.test])])


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy as long as the block."""
    command = [sys.executable, "-S", "-E", "-c", BUSY]
    busy = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


@contextlib.contextmanager
def disturbed(
    seed: int = 0, *, slow_disk: bool = False, stepping_clock: bool = False, late_threads: bool = False
) -> Iterator[dict[str, str]]:
    """Yield an environment for processes with these disturbances."""
    environment = dict(os.environ)
    if late_threads:
        options = [environment.get("PYTEST_ADDOPTS", ""), "-p tests.late", f"--deselect={COUNTS_CALLS}"]
        environment |= {"PYTEST_ADDOPTS": " ".join(options), "TEST_LATE": str(seed)}
    definitions = ["-DSLOW_DISK"] * slow_disk
    definitions += [f"-DSTEPPING_CLOCK={seed}"] * stepping_clock
    if not definitions:
        yield environment
        return
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        Path(folder).chmod(0o711)  # a server of PostgreSQL is another user's
        library = Path(folder) / "disturbance.so"
        source = Path(__file__).with_name("disturbance.c")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", *definitions, "-o", library, source], check=True)
        environment |= preloading(library)
        if slow_disk:
            environment["PYTEST_DEBUG_TEMPROOT"] = folder
        yield environment


if __name__ == "__main__":
    sys.exit(main())
