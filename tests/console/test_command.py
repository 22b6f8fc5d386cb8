"""The command `console`: its options, the assets that it serves, and the tasks of its guide."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from orchestrator import SqliteJournal
from orchestrator.cli import explained
from orchestrator.cli.console import ConsoleOptions, serve_console
from orchestrator.cli.exit import Exit
from orchestrator.errors import ConfigError
from orchestrator.web.access import is_loopback
from tests.console import tasks
from tests.console.browsing import ROOT
from tests.console.stored import leave_asking
from tests.derived import HINT

NAME = "CONSOLE_TOKEN"
CONSOLE = ROOT / "orchestrator" / "console"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "::1", "[::1]"])
def test_an_address_of_this_machine_alone_needs_no_token(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["::", "10.0.0.1", "console.example", ""])
def test_any_other_address_needs_a_token(host: str) -> None:
    assert not is_loopback(host)


def test_a_missing_journal_an_empty_token_and_a_bad_port_are_one_sentence_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="there is no journal"):
        serve_console(**vars(ConsoleOptions(journal=tmp_path / "none.db")), trust=False)
    journal = tmp_path / "journal.db"
    monkeypatch.setenv(NAME, " ")

    async def create() -> None:
        async with SqliteJournal(journal):
            pass

    asyncio.run(create())
    with pytest.raises(ConfigError, match="CONSOLE_TOKEN is empty"):
        serve_console(**vars(ConsoleOptions(journal=journal, token_env=NAME)), trust=False)
    monkeypatch.setenv(NAME, "short")
    with pytest.raises(ConfigError, match="at least 16"):
        serve_console(**vars(ConsoleOptions(journal=journal, token_env=NAME)), trust=False)
    with pytest.raises(ConfigError, match="it must be from 0 to 65535"):
        serve_console(**vars(ConsoleOptions(journal=journal, port=70_000)), trust=False)
    with pytest.raises(ConfigError, match="give the address of the proxy"):
        serve_console(**vars(ConsoleOptions(journal=journal, proxy_headers=("proxy",))), trust=False)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="choose another address"),
    ):
        serve_console(**vars(ConsoleOptions(journal=journal, port=taken.getsockname()[1])), trust=False)


@pytest.mark.parametrize("operate", [False, True])
@pytest.mark.parametrize("damage", ["page", "schema", "end"])
def test_a_damaged_journal_is_bad_input(tmp_path: Path, damage: str, *, operate: bool) -> None:
    journal = tmp_path / "journal.db"

    async def create() -> None:
        async with SqliteJournal(journal) as opened:
            await leave_asking(opened, "asks")

    asyncio.run(create())
    whole = journal.read_bytes()
    damaged = {
        "page": b"\0" * 100 + whole[100:],
        "schema": whole[:100] + b"\xff" * 3_000 + whole[3_100:],
        "end": whole[: len(whole) // 2],
    }
    journal.write_bytes(damaged[damage])
    with pytest.raises(ConfigError, match=f"journal {journal} is ") as refused:
        serve_console(**vars(ConsoleOptions(journal=journal, port=0, operate=operate)), trust=False)
    assert explained(refused.value)[0] == Exit.USAGE


def test_no_page_or_asset_asks_another_server_and_each_library_has_its_licence() -> None:
    for file in (*(CONSOLE / "templates").iterdir(), *(CONSOLE / "static").glob("*.css")):
        found = set(re.findall(r"https?://[^\s\"']+", file.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, file.name
    libraries = {file.name.removesuffix(".min.js") for file in (CONSOLE / "static").glob("*.min.js")}
    licences = {file.stem for file in (CONSOLE / "static" / "licences").iterdir()}
    assert licences == {"htmx", "htmx-ext-sse", "idiomorph"}
    assert libraries == {"htmx", "htmx-sse", "idiomorph"}


def test_the_guide_has_the_tasks_that_are_counted_in_a_browser() -> None:
    assert f"<!-- tasks -->\n{tasks.table()}<!-- /tasks -->" in (CONSOLE / "README.md").read_text(), HINT
