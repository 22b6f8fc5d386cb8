from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.redaction import redacted

Cli = Callable[..., Any]


@pytest.fixture
def shown(cli: Cli) -> Callable[[], dict[str, tuple[Any, str]]]:
    def settings() -> dict[str, tuple[Any, str]]:
        found = json.loads(cli("config", "show", "--json").out)
        return {name: (one["value"], one["source"]) for name, one in found.items()}

    return settings


def test_every_setting_has_its_value_and_where_it_comes_from(
    shown: Callable[[], dict[str, tuple[Any, str]]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {source for _, source in shown().values()} == {"default"}
    (folder / "orchestrator.toml").write_text(
        'model = "python:a:b"\n[limits]\nmax_iterations = 5\nmax_cost = 2\nguidance = 1\n'
    )
    monkeypatch.setenv("ORCHESTRATOR_LIMITS__MAX_ITERATIONS", "7")
    monkeypatch.setenv("ORCHESTRATOR_LIMITS", '{"guidance": 3}')
    monkeypatch.setenv("ORCHESTRATOR_LOG_LEVEL", "debug")
    settings = shown()
    assert settings["model"] == ("python:a:b", "orchestrator.toml")
    assert settings["log_level"] == ("debug", "ORCHESTRATOR_LOG_LEVEL")
    assert settings["limits.max_iterations"] == (7, "ORCHESTRATOR_LIMITS__MAX_ITERATIONS")
    assert settings["limits.guidance"] == (3, "ORCHESTRATOR_LIMITS")
    assert settings["limits.max_cost"] == (2.0, "orchestrator.toml")
    assert settings["retry.attempts"] == (4, "default")


def test_a_cap_on_one_tool_comes_from_its_own_variable(
    shown: Callable[[], dict[str, tuple[Any, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_LIMITS__TOOL_CAPS__SEARCH", "3")
    assert shown()["limits.tool_caps"] == ({"search": 3}, "ORCHESTRATOR_LIMITS__TOOL_CAPS__SEARCH")


def test_a_password_is_not_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", "postgres://me:hunter2@db/runs")
    for options in ((), ("--json",)):
        out = cli("config", "show", *options).out
        assert "hunter2" not in out
        assert "[redacted]@db" in out


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("openai.api_key", "sk-1", "[redacted]"),
        ("auth_token", "x", "[redacted]"),
        ("db.PASSWORD", "x", "[redacted]"),
        ("api_key", None, None),
        ("limits.max_input_tokens", 5, 5),
        ("journal", "a/b.db", "a/b.db"),
        ("base_url", "https://m.test/v1?api_key=x&v=2", "https://m.test/v1?[redacted]"),
    ],
)
def test_what_says_secret_is_not_shown(name: str, value: object, expected: object) -> None:
    assert redacted(name, value) == expected


def test_for_people_there_is_a_line_for_each(cli: Cli) -> None:
    lines = [line.split() for line in cli("config", "show").out.splitlines()]
    assert ["limits.max_iterations", "100", "default"] in lines
