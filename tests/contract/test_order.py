"""The files that the suite begins with are there: a name that is gone would silently be dealt out last."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]


def test_each_file_that_goes_first_is_there_and_named_once(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    assert conftest is not None
    first = conftest.LONGEST_FIRST
    assert [name for name in first if not (HERE / name).is_file()] == []
    assert len(set(first)) == len(first)


def test_the_tests_of_those_files_come_before_all_others(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    assert conftest is not None
    places = {HERE / name: place for place, name in enumerate(conftest.LONGEST_FIRST)}
    order = [places.get(item.path, len(places)) for item in request.session.items]
    assert order == sorted(order)
