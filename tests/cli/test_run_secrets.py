"""Secrets of a run's servers: given anew each time the run goes on, never in what is kept with it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.launch import Launch, kept
from orchestrator.cli.redaction import bare
from tests.providers.loopback import Asked, Loopback, Reply, in_a_thread
from tests.providers.mcp_place import PROGRAM, noted
from tests.providers.talker import ANSWER, talker

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
SHOP = Path(__file__).with_name("mcp_shop.py")
SECRET = "hunter2-not-to-be-kept"  # noqa: S105  no real one
BASIC = "Basic " + b64encode(f"ann:{SECRET}".encode()).decode()

PAYING = '''
from orchestrator import Response, ToolCall, tool


async def pays(request):
    if request.messages[-1].role == "tool":
        return Response("Paid 5.")
    return Response(None, (ToolCall("1", "pay", '{"amount": 5}'),))


@tool(effect="irreversible")
def weather(city: str) -> str:
    """Look up the weather, for money."""
    return f"{city}: sunny"
'''
NOTING = f"""
import os, sys

with open("given", "a") as given:
    given.write(os.environ.get("SHOP_TOKEN", "nothing") + "\\n")
os.execv(sys.executable, [sys.executable, {str(SHOP)!r}, "."])
"""
GUARDED = f"""
import socket, sys

import uvicorn

sys.path.insert(0, {str(PROGRAM.parent)!r})
import mcp_program as shop

inner = shop.server.streamable_http_app()


async def guarded(scope, receive, send):
    headers = dict(scope.get("headers", ()))
    if scope["type"] == "http":
        shop.written("shop", headers.get(b"x-shop-id", b"none").decode())
        if headers.get(b"authorization", b"").decode() not in ({BASIC!r}, "Bearer {SECRET}"):
            await send({{"type": "http.response.start", "status": 401, "headers": []}})
            await send({{"type": "http.response.body", "body": b""}})
            return
    await inner(scope, receive, send)


listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(guarded, log_level="error")).run(sockets=[listening])
"""


@pytest.fixture(autouse=True)
def paying(folder: Path) -> None:
    (folder / "paying.py").write_text(PAYING)


@pytest.fixture
def guarded(folder: Path) -> Iterator[str]:
    """The host, port and path of an MCP server that answers 401 to whoever does not know the secret."""
    (folder / "guarded.py").write_text(GUARDED)
    process = subprocess.Popen(
        [sys.executable, "guarded.py", "."], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "it ended"
        yield f"127.0.0.1:{port}/mcp"
        process.kill()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A vendor's model that answers 401 to whoever does not know the secret."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")

    def reply(asked: Asked) -> Reply:
        return talker(asked) if asked.headers["authorization"] == BASIC else Reply(401)

    with in_a_thread(reply) as running:
        yield running


def kept_in(folder: Path) -> bytes:
    """Every byte of the journal and of its log."""
    files = [file for file in (folder / ".orchestrator").rglob("*") if file.is_file()]
    assert "journal.db" in [file.name for file in files]
    return b"".join(file.read_bytes() for file in files)


def left_waiting(start: Start, folder: Path, *arguments: str) -> None:
    """Start a run that asks for approval, kill its process, and approve: it goes on whenever somebody resumes it."""
    waits = start(*arguments, "--run-id", "one", "--approve")
    assert waits.stdout is not None
    while "runs respond" not in (line := waits.stdout.readline()):
        assert line, waits.stderr and waits.stderr.read()
    assert (folder / ".orchestrator" / "journal.db-wal").exists()
    assert SECRET.encode() not in kept_in(folder)
    waits.kill()
    waits.communicate()


# ---- variables, for servers that are commands ----


def test_a_variable_is_given_to_the_server_and_again_when_the_run_goes_on(
    start: Start,
    cli: Cli,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_sentence: Callable[[Any], str],
) -> None:
    (folder / "noting.py").write_text(NOTING)
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    server = shlex.join([sys.executable, "noting.py"])
    asked = ("run", "shop", "--model", "python:paying:pays", "--mcp", server, "--mcp-env", "SHOP_TOKEN")
    left_waiting(start, folder, *asked)
    assert cli("runs", "approve", "one", "--by", "ann").code == 0
    monkeypatch.delenv("SHOP_TOKEN")
    done = cli("runs", "resume", "one")
    assert done.code == 2
    assert "--mcp-env SHOP_TOKEN: no such environment variable is set" in one_sentence(done)
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    done = cli("runs", "resume", "one", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["output"] == "Paid 5."
    assert noted(folder, "given") == [SECRET, SECRET]
    assert b"SHOP_TOKEN" in kept_in(folder)
    assert SECRET.encode() not in kept_in(folder)


def test_a_server_is_given_no_variable_that_was_not_named(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "noting.py").write_text(NOTING)
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    server = shlex.join([sys.executable, "noting.py"])
    assert cli("run", "shop", "--model", "python:paying:pays", "--mcp", server).code == 0
    assert noted(folder, "given") == ["nothing"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("NO_SUCH", "--mcp-env NO_SUCH: no such environment variable is set; set it and start again"),
        (f"TOKEN={SECRET}", "--mcp-env TOKEN=…: give the name alone; the value is read from the environment"),
    ],
)
def test_a_variable_that_is_not_there_is_one_sentence_and_nothing_is_started(
    cli: Cli, folder: Path, one_sentence: Callable[[Any], str], given: str, sentence: str
) -> None:
    (folder / "noting.py").write_text(NOTING)
    server = shlex.join([sys.executable, "noting.py"])
    done = cli("run", "hi", "--model", "python:models:answers", "--mcp", server, "--mcp-env", given)
    assert done.code == 2
    assert one_sentence(done) == f"orchestrator: {sentence}"
    assert noted(folder, "given") == []
    assert not (folder / ".orchestrator").exists()


def test_a_variable_without_a_server_is_for_nobody(cli: Cli, one_sentence: Callable[[Any], str]) -> None:
    done = cli("run", "hi", "--model", "python:models:answers", "--mcp-env", "PATH")
    assert done.code == 2
    assert "--mcp-env is about MCP servers: name one with --mcp" in one_sentence(done)


# ---- headers and addresses, for servers over HTTP ----


@pytest.mark.campaign
def test_headers_of_the_settings_are_given_to_a_server_over_http(
    cli: Cli, folder: Path, guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("run", "shop", "--model", "python:paying:pays", "--mcp", f"http://{guarded}")
    refused = cli(*asked)
    assert (refused.code, "refuses us (HTTP 401)" in refused.err) == (2, True)
    monkeypatch.setenv("ORCHESTRATOR_MCP_HEADERS__AUTHORIZATION", f"Bearer {SECRET}")
    monkeypatch.setenv("ORCHESTRATOR_MCP_HEADERS__X_SHOP_ID", "17")
    done = cli(*asked, "--json")
    assert done.code == 0, done.err
    assert noted(folder, "pay") == ["5.0"]
    assert set(noted(folder, "shop")) == {"none", "17"}
    assert SECRET.encode() not in kept_in(folder)


def test_the_user_of_an_mcp_address_is_not_kept_and_can_be_given_again(
    start: Start, cli: Cli, process: Cli, folder: Path, guarded: str, one_sentence: Callable[[Any], str]
) -> None:
    whole = f"shop=http://ann:{SECRET}@{guarded}?key={SECRET}"
    (folder / "paying.py").write_text(PAYING.replace('"pay"', '"shop_pay"'))
    left_waiting(start, folder, "run", "shop", "--model", "python:paying:pays", "--mcp", whole)
    assert cli("runs", "approve", "one", "--by", "ann").code == 0
    done = cli("runs", "resume", "one")
    assert done.code == 2
    said = one_sentence(done)
    assert "refuses us (HTTP 401)" in said
    assert (
        "the user name, password and query of its address are not stored with the run: --mcp URL gives"
        in said
    )
    done = process("runs", "resume", "one", "--mcp", whole, "--json")
    assert done.code == 0, done.err
    assert noted(folder, "pay") == ["5.0"]
    assert SECRET.encode() not in kept_in(folder)


@pytest.mark.parametrize("again", ["option", "setting"])
def test_the_user_of_a_models_address_is_not_kept_and_can_be_given_again(
    start: Start,
    cli: Cli,
    process: Cli,
    folder: Path,
    server: Loopback,
    monkeypatch: pytest.MonkeyPatch,
    one_sentence: Callable[[Any], str],
    again: str,
) -> None:
    address = f"http://127.0.0.1:{server.port}/v1"
    whole = address.replace("127", f"ann:{SECRET}@127")
    model = ("--model", "openai:talker-1", "--tool", "paying:weather", "--base-url", whole)
    left_waiting(start, folder, "run", "Weather in Oslo?", *model)
    assert cli("runs", "approve", "one", "--by", "ann").code == 0
    done = cli("runs", "resume", "one")
    assert done.code == 2
    assert f"in the address {address}, which is not stored: give the whole address again with --base-url" in (
        one_sentence(done)
    )
    if again == "setting":
        monkeypatch.setenv("ORCHESTRATOR_BASE_URL", whole)
    given = ("--base-url", whole) if again == "option" else ()
    done = process("runs", "resume", "one", *given, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["output"] == ANSWER
    assert SECRET.encode() not in kept_in(folder)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://ann:p%40ss@models.test:8080/v1?a=b@c", "https://models.test:8080/v1"),
        ("https://ann@models.test", "https://models.test"),
        ("https://a@b:c@models.test/", "https://models.test/"),
        (" http://ann:p@[::1]:80/v1", "http://[::1]:80/v1"),
        ("https://models.test/v1?key=abc#d", "https://models.test/v1"),
        ("https://models.test/v1", "https://models.test/v1"),
        ("http://ann:p@[/v1", "http://ann:p@[/v1"),
    ],
)
def test_an_address_without_its_secrets_is_the_same_place(address: str, expected: str) -> None:
    assert bare(address) == expected


def test_what_is_kept_of_a_launch_says_which_addresses_were_cut() -> None:
    launch = Launch(
        base_url="http://ann:p@models.test/v1",
        mcp=("git=https://ann:p@a.test/mcp?key=k", "http://b.test/mcp", "serve --to ann@c.test"),
        without=("http://old.test",),
    )
    assert launch.plain() == {
        "base_url": "http://models.test/v1",
        "mcp": ("git=https://a.test/mcp", "http://b.test/mcp", "serve --to ann@c.test"),
        "without": ("http://old.test", "http://models.test/v1", "git=https://a.test/mcp"),
    }
    assert kept("ann@here") == "ann@here"
    assert Launch.of({"launch": json.loads(json.dumps(launch.plain()))}).plain() == launch.plain()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TO KEN", "x", "setting mcp_headers: 'to ken' is no name of a header"),
        ("TOKEN", f"{SECRET}\n", "setting mcp_headers.token: possible: printable ASCII on one line"),
    ],
)
def test_a_header_that_cannot_be_sent_is_one_sentence_without_its_value(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    one_sentence: Callable[[Any], str],
    name: str,
    value: str,
    sentence: str,
) -> None:
    monkeypatch.setenv(f"ORCHESTRATOR_MCP_HEADERS__{name}", value)
    done = cli("run", "hi", "--model", "python:models:answers", "--mcp", "http://127.0.0.1:9/mcp")
    assert (done.code, one_sentence(done)) == (2, f"orchestrator: {sentence}")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_headers_are_not_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    monkeypatch.setenv("ORCHESTRATOR_MCP_HEADERS__AUTHORIZATION", f"Bearer {SECRET}")
    done = cli("config", "show", *options)
    assert (done.code, SECRET in done.out) == (0, False)
    assert "mcp_headers.authorization" in done.out
    assert "[redacted]" in done.out
    assert "ORCHESTRATOR_MCP_HEADERS__AUTHORIZATION" in done.out
