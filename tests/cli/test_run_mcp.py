"""`run --mcp`: tools of a server that is a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.launch import split_server
from tests.ending import rest
from tests.engines.stage import until
from tests.providers.mcp_place import PROGRAM, living
from tests.tiers import SOAK

Cli = Callable[..., Any]
SHOP = Path(__file__).with_name("mcp_shop.py")
MODEL = """
from orchestrator import Response, ToolCall, tool

SCRIPT = (
    Response(None, (ToolCall("1", "add", '{"a": 2, "b": 3}'), ToolCall("2", "look_up", '{"query": "x"}'))),
    Response(None, (ToolCall("3", "pay", '{"amount": 5}'),)),
    Response("Paid 5."),
)


async def shopper(request):
    return SCRIPT[sum(message.role == "assistant" for message in request.messages)]


@tool(effect="pure")
def look_up(query: str) -> str:
    '''Look it up.'''
    return query
"""


@pytest.fixture
def shopping(folder: Path) -> tuple[str, ...]:
    (folder / "shop.py").write_text(MODEL)
    server = shlex.join([sys.executable, "-S", str(SHOP), str(folder)])
    asked = ("run", "shop", "--run-id", "one", "--model", "python:shop:shopper", "--tool", "shop:look_up")
    return (*asked, "--mcp", server)


@pytest.mark.parametrize(
    "server", [SHOP, pytest.param(PROGRAM, marks=pytest.mark.campaign)], ids=["ours", "of the SDK"]
)
def test_the_model_calls_tools_of_a_server_beside_those_of_a_module(
    cli: Cli, folder: Path, shopping: tuple[str, ...], server: Path
) -> None:
    done = cli(*shopping[:-1], shlex.join([sys.executable, str(server), str(folder)]), "--json")
    assert (done.code, done.err) == (0, "")
    said = [message["content"] for message in json.loads(done.out)["messages"] if message["role"] == "tool"]
    assert said[0] == "5"
    assert said[1] == "x"
    assert (folder / "pay").read_text() == "5.0\n"


def test_a_run_that_waits_for_approval_goes_on_elsewhere_with_a_server_of_its_own(
    start: Callable[..., Any], cli: Cli, folder: Path, shopping: tuple[str, ...]
) -> None:
    waits = start(*shopping, "--approve")
    while "runs respond" not in (line := waits.stdout.readline()):
        assert line, waits.stderr.read()
    waits.kill()
    waits.communicate()
    assert not (folder / "pay").exists()
    assert cli("runs", "approve", "one", "--by", "ann").code == 0
    done = cli("runs", "resume", "one", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["output"] == "Paid 5."
    assert (folder / "pay").read_text() == "5.0\n"


def test_a_server_that_cannot_be_started_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    done = cli("run", "hi", "--model", "python:models:answers", "--mcp", "no-such-program --serve")
    assert done.code == 2
    assert "no-such-program" in one_sentence(done)
    assert not (folder / ".orchestrator").exists()


# ---- signals while a server is connected ----

SILENT = """
import os, signal, sys, threading
from pathlib import Path

if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("coming").write_text(str(os.getpid()))
os.rename("coming", "pid")
threading.Event().wait()
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@pytest.fixture
def silent(folder: Path) -> Iterator[tuple[str, ...]]:
    """A run with a server that never answers; the server's process does not outlive its test."""
    (folder / "silent.py").write_text(SILENT)
    yield (
        "run",
        "hi",
        "--model",
        "python:models:answers",
        "--mcp",
        shlex.join([sys.executable, "silent.py"]),
    )
    if (folder / "pid").exists():
        with suppress(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


async def connecting(running: subprocess.Popen[str], folder: Path) -> int:
    """Wait until the server is there; returns its process id."""
    await until(lambda: (folder / "pid").exists() or running.poll() is not None, 60)
    assert running.poll() is None
    return int((folder / "pid").read_text())


@pytest.mark.parametrize("number", SIGNALS if SOAK else SIGNALS[-1:])
async def test_a_signal_while_a_server_is_connected_leaves_no_process_behind(
    start: Callable[..., Any], folder: Path, silent: tuple[str, ...], number: int
) -> None:
    running = start(*silent)
    server = await connecting(running, folder)
    running.send_signal(number)
    out, err = rest(running)
    assert (running.returncode, out, err) == (6, "", "orchestrator: cancelled before anything ran\n")
    assert not living(server)
    assert not (folder / ".orchestrator").exists()


@pytest.mark.parametrize("number", SIGNALS if SOAK else SIGNALS[:1])
async def test_a_second_signal_does_not_wait_for_a_server_that_will_not_end(
    start: Callable[..., Any], folder: Path, silent: tuple[str, ...], number: int
) -> None:
    running = start(*silent[:-1], f"{silent[-1]} stubborn")
    await connecting(running, folder)
    while running.poll() is None:  # when the first was taken is not to be seen from here
        running.send_signal(number)
    _, err = rest(running)
    assert (running.returncode, err) == (-number, "")


# ---- several servers ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git=uvx mcp-server-git", ("git", "uvx mcp-server-git")),
        ("a-b_2=https://tools.example/mcp?x=1", ("a-b_2", "https://tools.example/mcp?x=1")),
        ("https://tools.example/mcp?x=1", (None, "https://tools.example/mcp?x=1")),
        ("python server.py --mode=fast", (None, "python server.py --mode=fast")),
        ("./bin/serve=r", (None, "./bin/serve=r")),
        ("=serve", (None, "=serve")),
        ("serve", (None, "serve")),
        ("serve=", ("serve", "")),
    ],
)
def test_a_name_stands_before_the_first_equals_sign_and_nothing_else_is_one(
    text: str, expected: tuple[str | None, str]
) -> None:
    assert split_server(text) == expected


@pytest.mark.campaign
def test_two_servers_with_the_same_tools_are_told_apart_by_names(
    cli: Cli, folder: Path, shopping: tuple[str, ...]
) -> None:
    (folder / "two.py").write_text(TWO)
    server = shopping[-1]
    asked = (
        "run",
        "shop",
        "--model",
        "python:two:shopper",
        "--mcp",
        f"one={server}",
        "--mcp",
        f"two={server}",
    )
    done = cli(*asked, "--json")
    assert (done.code, done.err) == (0, "")
    said = [message["content"] for message in json.loads(done.out)["messages"] if message["role"] == "tool"]
    assert said == ["5", "7"]


TWO = """
from orchestrator import Response, ToolCall

CALLS = ToolCall("1", "one_add", '{"a": 2, "b": 3}'), ToolCall("2", "two_add", '{"a": 3, "b": 4}')


async def shopper(request):
    return Response("Added.") if request.messages[-1].role == "tool" else Response(None, CALLS)
"""


@pytest.mark.campaign
def test_the_second_of_two_servers_with_one_tool_keeps_its_other_tools_and_a_warning_says_what_helps(
    cli: Cli, folder: Path, shopping: tuple[str, ...]
) -> None:
    (folder / "sums.py").write_text("def erase() -> int:\n    '''Erase.'''\n    return 1\n")
    server = shopping[-1]
    done = cli(*shopping, "--mcp", f"{server} ", "--tool", "sums:erase", "--json")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert lines[0].startswith("orchestrator: tool 'erase' of --mcp ")
    assert "is not offered: --tool has one of that name; --mcp NAME=COMMAND offers" in lines[0]
    again = [line for line in lines if "tool 'add' of --mcp " in line]
    assert len(again) == 1
    assert "--mcp NAME=COMMAND offers the tools of a server as NAME_add" in again[0]
    assert json.loads(done.out)["output"] == "Paid 5."


def test_a_file_names_servers_with_their_options_and_variables(
    cli: Cli, folder: Path, shopping: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_FOLDER", str(folder))
    (folder / "two.py").write_text(TWO)
    one = {"command": sys.executable, "args": [str(SHOP), "${SHOP_FOLDER}"], "include": ["add", "pay"]}
    servers = {"one": one, "two": one | {"args": [str(SHOP), "${env:SHOP_FOLDER}"]}}
    off = {"three": {"command": "no-such-program", "disabled": True}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers | off}))
    asked = ("run", "shop", "--model", "python:two:shopper", "--json", "--mcp", "mcp.json")
    done = cli(*asked)
    assert (done.code, done.err) == (0, "")
    said = [message["content"] for message in json.loads(done.out)["messages"] if message["role"] == "tool"]
    assert said == ["5", "7"]
    done = cli(*asked, "--mcp-option", "two.exclude=add")
    said = [message["content"] for message in json.loads(done.out)["messages"] if message["role"] == "tool"]
    assert said[0] == "5"
    assert "there is no tool 'two_add'" in said[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "mcp.json is not JSON: "),
        ("{}", 'mcp.json has no servers; it must be {"mcpServers": {"NAME": {"command": "…"}}}'),
        ('{"mcpServers": {"a": 1}}', "mcp.json: server 'a' is 1; it must be an object with command or url"),
        ('{"mcpServers": {"a": {"url": "http://x", "command": "y"}}}', "must have a command, or the url"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}', "its type is 'sse'"),
        (
            '{"mcpServers": {"a": {"command": "x", "args": "y"}}}',
            "args of server 'a' must be a list of texts",
        ),
        (
            '{"mcpServers": {"a": {"command": "x", "include": "y"}}}',
            "include of server 'a' is 'y'; possible: a list",
        ),
        ('{"mcpServers": {"a": {"command": "x", "effects": {"b": 1}}}}', "possible: an effect, or an object"),
        (
            '{"mcpServers": {"a": {"command": "x", "max_questions": true}}}',
            "max_questions of server 'a' is True; possible: a whole number, and 0 for no limit",
        ),
        (
            '{"mcpServers": {"a": {"command": "x", "sampling": true}}}',
            "sampling of server 'a' is True; possible: deny, allow, ask",
        ),
        ('{"mcpServers": {"a": {"command": "x", "timeout": "1"}}}', "timeout of server 'a' is '1'"),
        ('{"mcpServers": {"a": {"command": "${UNSET_X}"}}}', "needs the environment variable UNSET_X"),
    ],
)
def test_a_wrong_file_of_servers_is_one_sentence(
    cli: Cli, folder: Path, one_sentence: Callable[[Any], str], text: str, said: str
) -> None:
    (folder / "mcp.json").write_text(text)
    done = cli("run", "hi", "--model", "python:models:answers", "--mcp", "mcp.json")
    assert done.code == 2
    assert said in one_sentence(done)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("git.colour=red", "possible: NAME.include=TOOL,…"),
        ("timeout=3", "possible: NAME.include=TOOL,…"),
        ("git.timeout=soon", "possible: seconds above 0"),
        ("git.timeout=nan", "possible: seconds above 0"),
        ("git.max_questions=-1", "possible: a whole number, and 0 for no limit"),
        ("git.max_questions=many", "possible: a whole number, and 0 for no limit"),
        ("git.sampling=maybe", "possible: deny, allow, ask"),
        ("other.timeout=3", "--mcp-option other: no server has that name; known: git"),
        ("git.effect=compensable", "an effect of an MCP tool is 'compensable'; possible: 'pure'"),
    ],
)
def test_a_wrong_option_of_a_server_is_one_sentence(
    cli: Cli, folder: Path, one_sentence: Callable[[Any], str], option: str, said: str
) -> None:
    asked = ("run", "hi", "--model", "python:models:answers", "--mcp", "git=no-such-program")
    done = cli(*asked, "--mcp-option", option)
    assert done.code == 2
    assert said in one_sentence(done)
    assert not (folder / ".orchestrator").exists()


def test_a_prompt_of_a_server_starts_a_run(
    cli: Cli, folder: Path, one_sentence: Callable[[Any], str], shopping: tuple[str, ...]
) -> None:
    (folder / "echo.py").write_text(ECHO)
    asked = ("run", "--model", "python:echo:echo", "--mcp", f"shop={shopping[-1]}", "--prompt")
    done = cli(*asked, "shop/order", "--prompt-arg", "item=tea", "Hurry.", "--json")
    assert (done.code, json.loads(done.out)["output"]) == (0, "Order 1 of tea. / Hurry.")
    done = cli(*asked, "order")
    assert done.code == 2
    assert "needs the argument 'item'; its arguments: item, amount (optional)" in one_sentence(done)
    done = cli(*asked, "none")
    assert done.code == 2
    assert "--prompt none: no server has it; the prompts are: shop/order" in one_sentence(done)


ECHO = """
from orchestrator import Response


async def echo(request):
    return Response(" / ".join(message.text for message in request.messages))
"""

# ---- tools that change ----


@pytest.mark.campaign
def test_a_tool_that_changed_since_the_first_run_is_disabled_until_the_user_consents_again(
    cli: Cli,
    untrusted: Path,
    shopping: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    (untrusted / "mine.py").write_text(MODEL.replace('"pay", \'{"amount": 5}\'', '"note", \'{"text": "x"}\''))
    server = shopping[-1]

    def again(*more: str) -> Any:
        options = ("--model", "python:mine:shopper", "--tool", "mine:look_up", "--mcp", server)
        return cli("run", "shop", "--json", *options, *more)

    def results(done: Any) -> list[str]:
        return [one["content"] for one in json.loads(done.out)["messages"] if one["role"] == "tool"]

    assert (again().err, again().err) == ("", "")
    (untrusted / "other").touch()
    done = again()
    (line,) = done.err.splitlines()
    assert line.startswith("orchestrator: tool 'note' of MCP server ")
    assert f"`orchestrator trust --mcp {shlex.quote(server)}` in {untrusted} allows it as it is now" in line
    assert "there is no tool 'note'" in results(done)[-1]
    assert (untrusted / "note").read_text() == "x\nx\n"
    done = again("--trust")
    assert (done.err, results(done)[-1]) == ("", "kept")
    assert "is disabled" in again().err  # --trust was for one command
    done = cli("trust", "--mcp", server)
    assert (done.code, done.out) == (0, f"trusted: MCP server {server}, in {untrusted}\n    changed: note\n")
    done = again()
    assert (done.err, results(done)[-1]) == ("", "kept")
    (untrusted / "other").unlink()
    assert "is disabled" in again().err
    assert f"trusted: MCP server {server}, in {untrusted}, 20" in cli("trust", "--list").out
    assert (
        cli("trust", "--revoke", "--mcp", f"shop={server}").out
        == f"revoked: MCP server {server}, in {untrusted}\n"
    )
    assert again().err == ""  # the first connection again


@pytest.mark.campaign
def test_where_the_tools_of_a_server_cannot_be_recorded_a_run_says_so_and_works(
    cli: Cli, untrusted: Path, shopping: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (untrusted / "file").write_text("")
    for name in ("XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(untrusted / "file" / name))
    done = cli(*shopping, "--json")
    assert (done.code, json.loads(done.out)["output"]) == (0, "Paid 5.")
    (line,) = done.err.splitlines()
    assert "cannot be recorded: no folder can be written of " in line
    assert line.endswith("changes of its tools are noticed only while this command runs")


SAMPLER = """
import json
from orchestrator import Response, ToolCall


async def model(request):
    if not request.tools:
        return Response("Foxes.")
    if request.messages[-1].role == "tool":
        return Response("Done.")
    return Response(None, (ToolCall("1", "s_attack", json.dumps({"kind": "once"})),))
"""


def test_a_server_samples_on_the_command_line_and_trust_covers_the_tools_that_it_offers_then(
    cli: Cli, folder: Path
) -> None:
    (folder / "mine.py").write_text(SAMPLER)
    server = shlex.join([sys.executable, str(PROGRAM.with_name("mcp_sampler.py")), str(folder)])
    asked = ("run", "Go.", "--model", "python:mine:model", "--mcp", f"s={server}", "--json")
    allowed = (*asked, "--mcp-option", "s.sampling=allow", "--mcp-option", "s.max_sampling=1")
    done = cli(*asked)
    assert "Sampling not supported" in json.loads(done.out)["messages"][-2]["content"]
    done = cli(*allowed)
    assert "tool 'conditional' of MCP server 's' is new since its tools were allowed" in done.err
    assert cli("trust", "--mcp", server).code == 0
    done = cli(*allowed)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["messages"][-2]["content"] == '["Foxes."]'
