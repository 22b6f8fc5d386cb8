"""The default actor of records."""

from __future__ import annotations

import getpass
from typing import NoReturn

import pytest

from orchestrator.runtime.service import answer


@pytest.mark.parametrize("error", [OSError, KeyError, ImportError])
def test_a_process_without_a_login_is_unknown(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails() -> NoReturn:
        raise error("no login")

    monkeypatch.setattr(getpass, "getuser", fails)
    assert (answer.login(), answer.default_actor()) == ("", "unknown")


def test_the_actor_is_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    assert (answer.login(), answer.default_actor()) == ("ann", "ann")
