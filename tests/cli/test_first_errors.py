"""The errors of a first try: each says what is wrong, with the whole address, and what to set where it is read.

The faults are real: a closed port, a server that answers 401, an environment without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, SqliteJournal
from orchestrator.errors import LLMError
from orchestrator.examples.service.agent import support
from orchestrator.llm.retry import RetryPolicy
from tests.providers.endpoint import closed_port
from tests.providers.loopback import Asked, Reply, in_a_thread, json_reply

Cli = Callable[..., Any]
Place = Callable[[Cli, Path, str], str]
"""Makes a first try with a model, and returns the text in which its reader finds the error."""

GUIDE = "see `orchestrator docs providers`"
ENV = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
GPT, CLAUDE = "openai:gpt-5-mini", "anthropic:claude-opus-4"


@pytest.fixture(autouse=True)
def _first_try(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORCHESTRATOR_RETRY__ATTEMPTS", "1")
    (folder / "weather.py").write_text(
        "def weather(city: str) -> str:\n    'Look up the weather.'\n    return f'{city}: sunny'\n"
    )


# ---- faults ----


@contextmanager
def no_key(_: pytest.MonkeyPatch) -> Iterator[str]:
    yield ""


@contextmanager
def refused(patch: pytest.MonkeyPatch) -> Iterator[str]:
    with closed_port() as port, at(patch, f"http://127.0.0.1:{port}") as address:
        yield address


@contextmanager
def unauthorized(patch: pytest.MonkeyPatch) -> Iterator[str]:
    def reply(_: Asked) -> Reply:
        return json_reply({"error": {"message": "Incorrect API key.", "code": "invalid_api_key"}}, 401)

    with in_a_thread(reply, strict=False) as server, at(patch, server.url) as address:
        yield address


@contextmanager
def at(patch: pytest.MonkeyPatch, address: str) -> Iterator[str]:
    """Point both vendors at an address, with a key."""
    for vendor, path in (("OPENAI", "/v1"), ("ANTHROPIC", "")):
        patch.setenv(f"{vendor}_API_KEY", "sk-first-try")
        patch.setenv(f"{vendor}_BASE_URL", f"{address}{path}")
    yield address


# ---- places ----


def library(_: Cli, folder: Path, model: str) -> str:
    try:
        result = Agent(model, retry=RetryPolicy(attempts=1), observers=()).run_sync("Hi.")
    except ConfigError as error:
        return str(error)
    assert isinstance(result.error, LLMError)
    return str(result.error)


def service(_: Cli, folder: Path, model: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHESTRATOR_MODEL", model)
        try:
            agent = support(SqliteJournal(folder / "service.db"), [])
        except ConfigError as error:
            return str(error)
        return str(agent.replace(retry=RetryPolicy(attempts=1)).run_sync("Refund order 7.").error)


def command(*line: str) -> Place:
    """Return the place of a command: what it prints on standard error."""

    def run(cli: Cli, _: Path, model: str) -> str:
        done = cli(*(part.format(model=model) for part in line))
        assert done.code in {1, 2}
        assert "callback_error" not in done.out + done.err
        return str(done.err).removeprefix("orchestrator: ").rstrip("\n")

    return run


def pipeline(cli: Cli, folder: Path, model: str) -> str:
    stages = "".join(
        f'[stages.{name}]\npython = "weather:weather"\n' for name in ("validator", "implementer", "judge")
    )
    (folder / "pipeline.toml").write_text(
        f'spec = "A haiku."\n[stages.planner]\nprompt = "Plan it."\nmodel = "{model}"\n{stages}'
    )
    return command("pipeline", "run", "pipeline.toml")(cli, folder, model)


def ralph(cli: Cli, folder: Path, model: str) -> str:
    agents = "".join(f'[agents.{name}]\nmodel = "{model}"\n' for name in ("planner", "executor", "reviewer"))
    (folder / "ralph.toml").write_text(agents)
    return command("ralph", "run", "Work.")(cli, folder, model)


def approval(cli: Cli, folder: Path, model: str) -> str:
    done = cli("approval", "submit", "Work.", "--model", model)
    return f"{done.out}{done.err}"


def shown_run(cli: Cli, folder: Path, model: str) -> str:
    cli("run", "Hi.", "--model", model, "--run-id", "r1")
    found: str = cli("runs", "show", "r1").out
    return found


run = command("run", "Weather in Oslo?", "--model", "{model}")
chat = command("chat", "--model", "{model}", "--prompt", "Hi.")
rlm = command("rlm", "run", "weather.py", "--prompt", "How long?", "--model", "{model}")

# ---- texts ----

NO_KEY = "there is no API key for"
IN_PYTHON = f'give api_key=…, or take a model that needs none, Agent("demo"); {GUIDE}'
IN_A_SHELL = f"--model demo shows the agent without one; {GUIDE}"
SCRIPT = "without ORCHESTRATOR_MODEL the service answers from a script"
FAILED = (
    "the connection to the provider failed at {at}/v1/{route} (ConnectError: All connection attempts failed)"
)
KEY = "the provider answered with an error (HTTP 401, invalid_api_key): Incorrect API key."
CHAT = "chat/completions"
OUR_SERVER = "{}_BASE_URL or the argument base_url names another server"
OUR_KEY = "{}_API_KEY or the argument api_key is the key"
SERVER, API_KEY = "{}_BASE_URL or --base-url names another server", "{}_API_KEY is the key"

TEXTS: list[tuple[Any, str, Place, str, str]] = [
    (no_key, GPT, library, "", f"{NO_KEY} OpenAI: set OPENAI_API_KEY, {IN_PYTHON}"),
    (no_key, CLAUDE, library, "", f"{NO_KEY} Anthropic: set ANTHROPIC_API_KEY, {IN_PYTHON}"),
    (no_key, GPT, run, "", f"{NO_KEY} OpenAI: set OPENAI_API_KEY; {IN_A_SHELL}"),
    (no_key, CLAUDE, run, "", f"{NO_KEY} Anthropic: set ANTHROPIC_API_KEY; {IN_A_SHELL}"),
    (no_key, GPT, rlm, "", f"{NO_KEY} OpenAI: set OPENAI_API_KEY; {IN_A_SHELL}"),
    (no_key, GPT, approval, "", f"{NO_KEY} OpenAI: set OPENAI_API_KEY; {IN_A_SHELL}"),
    (no_key, GPT, pipeline, "", f"{NO_KEY} OpenAI: set OPENAI_API_KEY; {IN_A_SHELL}"),
    (no_key, GPT, ralph, "", f"{NO_KEY} OpenAI: set OPENAI_API_KEY; {IN_A_SHELL}"),
    (
        no_key,
        GPT,
        service,
        "",
        f"ORCHESTRATOR_MODEL is '{GPT}', and {NO_KEY} OpenAI: set OPENAI_API_KEY; {SCRIPT}",
    ),
    (refused, GPT, library, CHAT, f"{FAILED}; {OUR_SERVER.format('OPENAI')}"),
    (refused, CLAUDE, library, "messages", f"{FAILED}; {OUR_SERVER.format('ANTHROPIC')}"),
    (refused, GPT, service, CHAT, f"{FAILED}; {OUR_SERVER.format('OPENAI')}"),
    (refused, GPT, run, CHAT, f"(llm_error, connection): {FAILED}; {SERVER.format('OPENAI')}"),
    (refused, f"openai-responses:{GPT[7:]}", run, "responses", f"{FAILED}; {SERVER.format('OPENAI')}"),
    (refused, CLAUDE, run, "messages", f"{FAILED}; {SERVER.format('ANTHROPIC')}"),
    (refused, GPT, rlm, CHAT, f"(llm_error, connection): {FAILED}; {SERVER.format('OPENAI')}"),
    (refused, GPT, pipeline, CHAT, f"{FAILED}; {SERVER.format('OPENAI')}"),
    (refused, GPT, ralph, CHAT, f"{FAILED}; {SERVER.format('OPENAI')}"),
    (refused, GPT, approval, CHAT, f"LLMError: {FAILED}; {SERVER.format('OPENAI')}"),
    (
        refused,
        GPT,
        shown_run,
        CHAT,
        f"): {FAILED}; {SERVER.format('OPENAI')}",
    ),
    (unauthorized, GPT, library, "", f"{KEY}; {OUR_KEY.format('OPENAI')}"),
    (unauthorized, CLAUDE, library, "", f"{KEY}; {OUR_KEY.format('ANTHROPIC')}"),
    (unauthorized, GPT, service, "", f"{KEY}; {OUR_KEY.format('OPENAI')}"),
    (unauthorized, GPT, run, "", f"(llm_error, auth): {KEY}; {API_KEY.format('OPENAI')}"),
    (unauthorized, CLAUDE, run, "", f"(llm_error, auth): {KEY}; {API_KEY.format('ANTHROPIC')}"),
    (unauthorized, GPT, rlm, "", f"(llm_error, auth): {KEY}; {API_KEY.format('OPENAI')}"),
    (unauthorized, GPT, pipeline, "", f"{KEY}; {API_KEY.format('OPENAI')}"),
    (unauthorized, GPT, shown_run, "", f"{KEY}; {API_KEY.format('OPENAI')}"),
    (unauthorized, GPT, approval, "", "AI-001 the model did not answer: auth (status 401)"),
]
"""Fault, model, place, route of the request, and the text."""


def test_the_demonstration_model_runs_the_tools_and_answers(cli: Cli) -> None:
    done = cli("run", "Weather in Oslo?", "--model", "demo", "--tool", "weather:weather")
    assert (done.code, done.err) == (0, "")
    assert "I called weather." in done.out
    assert "outcome: completed" in done.out


def test_without_a_model_the_command_names_what_to_set_and_a_model_that_needs_no_key(cli: Cli) -> None:
    done = cli("run", "Weather in Oslo?")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "orchestrator: no model: give --model or set ORCHESTRATOR_MODEL; --model demo needs no key; known: openai:"
    )


def _name(case: object) -> str | None:
    return getattr(case, "__name__", None) if callable(case) else None


@pytest.mark.parametrize(("fault", "model", "place", "route", "text"), TEXTS, ids=_name)
def test_a_first_error_says_what_is_wrong_where_and_what_to_set(
    cli: Cli,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    model: str,
    place: Place,
    route: str,
    text: str,
) -> None:
    with fault(monkeypatch) as address:
        told = " ".join(place(cli, folder, model).split())
    assert text.format(at=address, route=route) in told
