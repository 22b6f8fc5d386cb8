"""The errors of a first try: each says what is wrong, with the whole address, and what to set where it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError
from orchestrator.errors import LLMError
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers import Anthropic, OpenAI
from orchestrator.providers.connection import MissingKey
from tests.providers.endpoint import closed_port

Cli = Callable[..., Any]
GUIDE = "see `orchestrator docs providers`"
ENV = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")


@pytest.fixture(autouse=True)
def _first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "weather.py").write_text(
        "def weather(city: str) -> str:\n    'Look up the weather.'\n    return f'{city}: sunny'\n"
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            None,
            "no model: give --model or set ORCHESTRATOR_MODEL; --model demo needs no key; known: openai:NAME, ",
        ),
        (
            "openai:gpt-5-mini",
            f"there is no API key for OpenAI: set OPENAI_API_KEY; --model demo shows the agent without one; {GUIDE}",
        ),
        (
            "anthropic:claude-opus-4",
            (
                "there is no API key for Anthropic: set ANTHROPIC_API_KEY; --model demo shows the agent without one; "
                f"{GUIDE}"
            ),
        ),
    ],
)
def test_without_a_model_or_a_key_the_command_names_what_to_set_and_a_model_that_needs_none(
    cli: Cli, model: str | None, sentence: str
) -> None:
    done = cli("run", "Weather in Oslo?", *(() if model is None else ("--model", model)))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"orchestrator: {sentence}")
    assert "api_key" not in done.err


def test_in_python_a_missing_key_names_the_argument_too() -> None:
    with pytest.raises(MissingKey) as refused:
        Agent("openai:gpt-5-mini")
    assert str(refused.value) == (
        "there is no API key for OpenAI: set OPENAI_API_KEY, give api_key=…, or take a model that needs none, "
        f'Agent("demo"); {GUIDE}'
    )
    assert isinstance(refused.value, ConfigError)


def test_the_demonstration_model_runs_the_tools_and_answers(cli: Cli) -> None:
    done = cli("run", "Weather in Oslo?", "--model", "demo", "--tool", "weather:weather")
    assert (done.code, done.err) == (0, "")
    assert "I called weather." in done.out
    assert "outcome: completed" in done.out


@pytest.mark.parametrize(
    ("model", "variable", "path", "route"),
    [
        ("openai:gpt-5-mini", "OPENAI", "/v1", "/v1/chat/completions"),
        ("openai-responses:gpt-5-mini", "OPENAI", "/v1", "/v1/responses"),
        ("anthropic:claude-opus-4", "ANTHROPIC", "", "/v1/messages"),
    ],
)
def test_a_refused_connection_ends_with_its_kind_the_whole_address_and_what_to_set(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, model: str, variable: str, path: str, route: str
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_RETRY__ATTEMPTS", "1")
    monkeypatch.setenv(f"{variable}_API_KEY", "sk-first-try")
    with closed_port() as port:
        monkeypatch.setenv(f"{variable}_BASE_URL", f"http://127.0.0.1:{port}{path}")
        done = cli("run", "Weather in Oslo?", "--model", model)
    assert done.code == 1
    assert "failed in await_llm: LLMError, connection" in done.out
    assert "callback_error" not in done.out + done.err
    assert done.err == (
        "orchestrator: the run ended as failed (llm_error, connection): the connection to the provider failed at "
        f"http://127.0.0.1:{port}{route} (ConnectError: All connection attempts failed); --base-url or "
        f"{variable}_BASE_URL names another server\n"
    )


@pytest.mark.parametrize(
    ("kind", "variable"), [(OpenAI, "OPENAI"), (Anthropic, "ANTHROPIC")], ids=["OpenAI", "Anthropic"]
)
def test_in_python_it_names_the_argument_of_the_model(kind: Any, variable: str) -> None:
    with closed_port() as port:
        llm = kind("some-model", base_url=f"http://127.0.0.1:{port}", api_key="sk-first-try")
        result = Agent(llm, retry=RetryPolicy(attempts=1), observers=()).run_sync("Hi.")
        asyncio.run(llm.aclose())
    assert isinstance(result.error, LLMError)
    assert f"failed at http://127.0.0.1:{port}/" in str(result.error)
    assert str(result.error).endswith(f"; base_url=… or {variable}_BASE_URL names another server")
