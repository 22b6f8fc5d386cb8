"""`run --model` with models of vendors, against a server on this machine that speaks their protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.loopback import Asked, Loopback, Reply, in_a_thread, json_reply
from tests.providers.talker import ANSWER, talker

Cli = Callable[..., Any]
KEY = "sk-not-to-be-seen-anywhere"
WEATHER = '''
from orchestrator import tool


@tool(effect="pure")
def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"
'''


@pytest.fixture
def server(folder: Path) -> Iterator[Loopback]:
    (folder / "tools.py").write_text(WEATHER)
    with in_a_thread(talker) as running:
        yield running


def asked(server: Loopback, model: str, *more: str) -> tuple[str, ...]:
    path = "" if model.startswith("anthropic") else "/v1"
    return ("run", "Weather in Oslo?", "--model", model, "--base-url", f"{server.url}{path}", *more)


@pytest.mark.parametrize("streamed", [(), ("--stream",)], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["openai:talker-1", "anthropic:talker-1"])
def test_a_model_of_a_vendor_runs_a_tool_and_answers(
    cli: Cli,
    server: Loopback,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    streamed: tuple[str],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    done = cli(*asked(server, model, "--tool", "tools:weather", *streamed))
    assert (done.code, done.err) == (0, "")
    assert done.out.count(ANSWER) == 1
    assert "    tool weather: ok" in done.out
    assert "40 tokens in, 12 out" in done.out
    assert [bool(one.json.get("stream")) for one in server.asked] == [bool(streamed)] * 2
    assert {KEY in str(dict(one.headers)) for one in server.asked} == {True}
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert KEY.encode() not in kept
    assert KEY not in done.out


def test_the_responses_api_is_another_provider_word(cli: Cli, server: Loopback) -> None:
    done = cli(*asked(server, "openai-responses:talker-1", "--tool", "tools:weather", "--json"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["output"] == ANSWER
    assert {one.path for one in server.asked} == {"/v1/responses"}


def test_parameters_and_the_schema_reach_the_provider(cli: Cli, server: Loopback, folder: Path) -> None:
    (folder / "schema.json").write_text('{"type": "object", "properties": {"sunny": {"type": "boolean"}}}')
    more = ("--param", "temperature=0.5", "--param", "seed=7", "--output-schema", "schema.json")
    done = cli(*asked(server, "openai:talker-1", *more, "--limit", "completion_retries=0"))
    assert done.code == 1
    assert "the answer contains no JSON" in done.err
    (only,) = server.asked
    assert (only.json["temperature"], only.json["seed"]) == (0.5, 7)
    assert only.json["response_format"]["json_schema"]["schema"]["properties"] == {
        "sunny": {"type": "boolean"}
    }


def test_a_server_without_a_mode_for_schemas_has_it_in_the_prompt(
    cli: Cli, server: Loopback, folder: Path
) -> None:
    (folder / "schema.json").write_text('{"type": "object", "properties": {"sunny": {"type": "boolean"}}}')
    more = ("--output-schema", "schema.json", "--structured", "prompt", "--limit", "completion_retries=0")
    assert cli(*asked(server, "openai:talker-1", *more)).code == 1
    (only,) = server.asked
    assert "response_format" not in only.json
    assert '"sunny"' in str(only.json["messages"])


@pytest.mark.parametrize("by", ["option", "variable"])
def test_reasoning_goes_back_under_the_name_that_the_command_line_gives(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    def thinking(request: Asked) -> Reply:
        body = json.loads(talker(request).chunks[0])
        body["choices"][0]["message"]["reasoning"] = "Hm."
        return json_reply(body)

    (folder / "tools.py").write_text(WEATHER)
    option = ("--reasoning-field", "thoughts") if by == "option" else ()
    if by == "variable":
        monkeypatch.setenv("ORCHESTRATOR_REASONING_FIELD", "thoughts")
    with in_a_thread(thinking) as server:
        done = cli(*asked(server, "openai:talker-1", "--tool", "tools:weather", *option))
    assert done.code == 0, done.err
    assert server.asked[1].json["messages"][1]["thoughts"] == "Hm."


def test_a_cost_limit_that_cannot_hold_is_refused_before_anything_is_asked(
    cli: Cli, server: Loopback, one_sentence: Callable[[Any], str]
) -> None:
    limited = ("--tool", "tools:weather", "--limit", "max_cost=0.01")
    done = cli(*asked(server, "openai:talker-1", *limited))
    assert done.code == 2
    said = one_sentence(done)
    assert "max_cost is 0.01, but the price of model 'talker-1' is unknown" in said
    assert "[prices]" in said
    assert server.asked == []
    assert cli(*asked(server, "openai:talker-1", *limited, "--limit", "on_unknown_cost=ignore")).code == 0
    assert cli(*asked(server, "openai:talker-1")).err == ""


def test_the_key_can_be_a_setting_and_is_never_shown(
    cli: Cli, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_OPENAI_API_KEY", KEY)
    assert cli(*asked(server, "openai:talker-1")).code == 0
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    shown = json.loads(cli("config", "show", "--json").out)["openai_api_key"]
    assert shown == {"value": "[redacted]", "source": "ORCHESTRATOR_OPENAI_API_KEY"}


@pytest.mark.parametrize(("model", "variable"), [("openai:x", "OPENAI"), ("anthropic:x", "ANTHROPIC")])
@pytest.mark.usefixtures("server")
def test_without_a_key_one_sentence_says_where_it_goes(
    cli: Cli, one_sentence: Callable[[Any], str], model: str, variable: str
) -> None:
    done = cli("run", "hi", "--model", model)
    assert done.code == 2
    assert f"{variable}_API_KEY" in one_sentence(done)


def test_a_server_that_refuses_is_one_sentence_with_its_status(cli: Cli, folder: Path) -> None:
    with in_a_thread(lambda _: Reply(403)) as refusing:
        done = cli("run", "hi", "--model", "openai:x", "--base-url", f"{refusing.url}/v1")
    assert done.code == 1
    assert "403" in done.err
    assert "Traceback" not in done.err
    assert len(refusing.asked) == 1


def test_a_run_is_resumed_at_another_address(
    start: Callable[..., Any], cli: Cli, server: Loopback, folder: Path
) -> None:
    (folder / "pays.py").write_text("def pay(city: str) -> str:\n    'Pay.'\n    return 'paid'\n")
    waits = start(*asked(server, "openai:talker-1", "--tool", "pays:pay", "--approve", "--run-id", "one"))
    while "runs respond" not in (line := waits.stdout.readline()):
        assert line, waits.stderr.read()
    waits.kill()
    waits.communicate()
    assert cli("runs", "approve", "one", "--by", "ann").code == 0
    with in_a_thread(talker) as moved:
        done = cli("runs", "resume", "one", "--base-url", f"{moved.url}/v1", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["output"] == ANSWER
        assert (len(server.asked), len(moved.asked)) == (1, 1)


def test_tokens_cost_what_the_settings_say_and_requests_keep_to_their_limits(
    cli: Cli, server: Loopback, folder: Path
) -> None:
    (folder / "orchestrator.toml").write_text(
        '[prices]\n"talker-1" = [1000.0, 10000.0]\n[rate_limit]\nconcurrency = 1\n[params]\ntop_p = 0.9\n'
    )
    done = cli(*asked(server, "openai:talker-1", "--json"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["usage"]["cost"] == pytest.approx(20 * 0.001 + 6 * 0.01)
    assert server.asked[0].json["top_p"] == 0.9
    (folder / "orchestrator.toml").write_text('[prices]\ncurrency = "EUR"\n"talker-1" = [0.25, 0.5]\n')
    assert cli(*asked(server, "openai:talker-1", "--json")).code == 0
    listed = cli("runs", "list", "--sort", "cost").out
    assert " 0.08 USD" in listed
    assert " 0.000008 EUR" in listed
    [newest] = [json.loads(line) for line in cli("runs", "list", "--limit", "1", "--json").out.splitlines()]
    assert newest["currency"] == "EUR"
    assert ", cost 0.000008 EUR, " in cli("runs", "show", newest["run_id"]).out
    (folder / "orchestrator.toml").write_text("[rate_limit]\nspeed = 1\n")
    done = cli(*asked(server, "openai:talker-1"))
    assert done.code == 2
    assert "unknown setting rate_limit.speed" in done.err
