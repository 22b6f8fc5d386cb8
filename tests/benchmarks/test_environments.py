from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.benchmarks import environments
from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.peers.roster import DBOS, ROSTER


@pytest.mark.campaign
def test_pins_that_cannot_be_had_are_told_without_the_place_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "for_installers", lambda: os.environ | {"PIP_NO_INDEX": "1"})
    pins = tmp_path / "peers.txt"
    pins.write_text("fsm-orchestrator-no-such-peer==1.0\n")

    with pytest.raises(
        NotMeasured, match=r"could not be installed: .*fsm-orchestrator-no-such-peer==1.0"
    ) as told:
        environments.environment(tmp_path / "peers", pins)
    assert not environments._PLACES.search(str(told.value))
    assert environments.there(tmp_path / "peers") is None


@pytest.mark.campaign
def test_an_environment_is_made_once_for_all_who_want_it_at_once_and_again_when_its_pins_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, pins = tmp_path / "peers", tmp_path / "pins.txt"
    pins.write_text("# nothing\n")

    with ThreadPoolExecutor(3) as pool:
        (interpreter,) = set(pool.map(lambda _: environments.environment(folder, pins), range(3)))
    assert capsys.readouterr().err.count("set-up") == 1
    left = folder / "left"
    left.touch()
    assert environments.environment(folder, pins) == interpreter
    assert left.exists()

    pins.write_text("# nothing, said otherwise\n")
    environments.environment(folder, pins)
    assert not left.exists()
    assert environments.there(folder) == interpreter


def test_every_peer_is_pinned_exactly_and_no_place_is_named() -> None:
    files = {file.stem: file for file in environments.PINS.iterdir()}
    assert set(files) == {entry.environment for entry in (*ROSTER, DBOS) if entry.environment}
    for file in files.values():
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", line)] == []
        assert lines


def test_what_our_wheel_needs_is_the_core_without_extras_and_tools() -> None:
    needed = set(environments._closure(environments.OURS))
    assert {"transitions", "pydantic", "apsw"} <= needed
    assert needed.isdisjoint({"typer", "pytest", "mypy", environments.OURS})


def test_a_peer_without_its_environment_is_not_measured_and_a_bundled_one_runs_in_ours(
    tmp_path: Path,
) -> None:
    for entry in ROSTER:
        if entry.bundled:
            assert entry.interpreter(tmp_path, install=False) == Path(sys.executable)
        else:
            with pytest.raises(NotMeasured, match="nothing was to be installed"):
                entry.interpreter(tmp_path, install=False)
