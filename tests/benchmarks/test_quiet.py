"""Results are written from a quiet machine only."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks import quiet
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.quiet import MOST_BEFORE, MOST_MEANWHILE, Moment, QuietMachine


def machine(*moments: Moment) -> QuietMachine:
    """A machine with these counters, one look after the other."""
    looks = iter(moments)
    return QuietMachine(lambda: next(looks), lambda _: None)


def test_a_busy_machine_is_refused_before_the_first_figure() -> None:
    busy = machine(Moment(0, 100, 1), Moment(2, 103, 1))
    with pytest.raises(
        SystemExit, match=r"other processes use 1.5 of \d+ cores, and at most 0.1 are allowed"
    ):
        busy.require()


def test_the_load_of_the_benchmark_itself_is_none_of_others() -> None:
    quiet_one = machine(Moment(0, 100, 1), Moment(2, 102, 3), Moment(2, 102, 3), Moment(100, 202, 103))
    quiet_one.require()
    assert quiet_one.refusal() == ""


@pytest.mark.parametrize(
    ("others", "said"), [(MOST_MEANWHILE * 100, ""), (40.0, "used 0.4 cores while the figures")]
)
def test_load_that_comes_meanwhile_keeps_the_figures_from_being_written(others: float, said: str) -> None:
    later = machine(Moment(0, 0, 0), Moment(2, 0, 0), Moment(2, 0, 0), Moment(102, 50 + others, 50))
    later.require()
    refusal = later.refusal()
    assert said in refusal
    assert bool(refusal) == bool(said)


def test_at_the_bound_the_machine_is_quiet() -> None:
    machine(Moment(0, 0, 0), Moment(2, 2 * MOST_BEFORE, 0), Moment(2, 0, 0)).require()


def test_a_system_without_the_counters_is_taken_as_quiet() -> None:
    def missing() -> Moment:
        raise FileNotFoundError(quiet.STAT)

    nothing = QuietMachine(missing, lambda _: None)
    nothing.require()
    assert nothing.refusal() == ""


@pytest.mark.skipif(not quiet.STAT.exists(), reason="the system has no /proc/stat")
def test_another_process_that_works_is_seen_and_an_ended_child_is_our_own() -> None:
    work = "import time\nends = time.process_time() + 0.2\nwhile time.process_time() < ends: pass"
    more = "while True: pass"
    before = quiet.now()
    subprocess.run([sys.executable, "-c", work], check=True)
    after = quiet.now()
    assert after.own - before.own >= 0.2, "an ended child counts as the benchmark itself"
    with subprocess.Popen([sys.executable, "-c", more]) as other:
        before = quiet.now()
        ends = time.monotonic() + 60
        while quiet.now().all - before.all < 0.2 and time.monotonic() < ends:
            time.sleep(0.05)
        meanwhile = quiet.now()
        other.kill()
    assert meanwhile.all - before.all >= 0.2
    assert meanwhile.own - before.own < 0.2


def test_bench_peers_writes_nothing_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: QuietMachine) -> None:
        raise SystemExit("other processes use 1.9 of 2 cores")

    monkeypatch.setattr(QuietMachine, "require", busy)
    monkeypatch.setattr(peers, "measure", lambda *_, **__: pytest.fail("measured on a busy machine"))
    with pytest.raises(SystemExit, match=r"1\.9 of 2"):
        peers.main(["--results", str(tmp_path), "--environments", str(tmp_path), "--only", "no tools"])
    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_machine_that_became_busy_are_printed_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(QuietMachine, "require", lambda _: None)
    monkeypatch.setattr(QuietMachine, "refusal", lambda _: "not written: other processes used 0.9 cores")
    monkeypatch.setattr(peers, "measure", lambda *_, **__: {})
    monkeypatch.setattr("tests.benchmarks.aims.lines", lambda *_: ["the figures"])
    with pytest.raises(SystemExit, match=r"not written: other processes used 0\.9 cores"):
        peers.main(["--results", str(tmp_path), "--environments", str(tmp_path), "--only", "no tools"])
    assert "the figures" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
