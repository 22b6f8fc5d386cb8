"""`orchestrator trust`: record, list and revoke consents to configuration files and to the tools of MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.exit import Exit
from orchestrator.cli.launch import NamedServer, ServerOptions, servers_of
from orchestrator.cli.option import Json, McpEnv
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import many, moment
from orchestrator.cli.spread import spread_options
from orchestrator.cli.trust.consent import (
    DEFAULT_FILE,
    ProjectFile,
    TrustConsent,
    consents,
    location,
    uses_of_file,
)
from orchestrator.cli.trust.tool_pin import ToolPins, all_pins
from orchestrator.errors import ConfigError

DEFAULTS = (Path(DEFAULT_FILE), Path("ralph.toml"))
"""Files that commands read although the command line does not name them."""


@dataclass(frozen=True, slots=True)
class TrustEntry:
    """One file or server with its trust."""

    state: str
    """`trusted`, `revoked` or `not trusted`."""
    file: str | None = None
    server: str | None = None
    folder: str | None = None
    digest: str | None = None
    at: float | None = None
    """Seconds since the epoch."""
    details: tuple[str, ...] = ()
    """The uses of a file; the tools of a server, or their changes."""

    def plain(self) -> dict[str, Any]:
        """Return it as data, without empty members."""
        members = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in members.items() if value is not None}

    def lines(self) -> Iterator[str]:
        """Yield it as lines for a person."""
        what = (
            f"MCP server {shown(self.server, 300)}" if self.server is not None else shown(str(self.file), 300)
        )
        where = "" if self.folder is None else f", in {shown(self.folder, 300)}"
        digest = "" if self.digest is None else f", sha256 {self.digest[:12]}"
        at = "" if self.at is None else f", {moment(self.at)}"
        yield f"{self.state}: {what}{where}{digest}{at}"
        yield from (f"    {shown(detail, 300)}" for detail in self.details)


@dataclass(frozen=True, kw_only=True)
class TrustOptions:
    """The command line of `trust`."""

    files: Annotated[
        tuple[Path, ...],
        typer.Argument(
            metavar="FILE",
            help="Configuration files. Default: orchestrator.toml and ralph.toml of this folder.",
            show_default=False,
        ),
    ] = ()
    mcp: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp",
            metavar="[NAME=]COMMAND",
            help="An MCP server, as for `run --mcp`; the name does not count. Repeatable.",
        ),
    ] = ()
    mcp_env: McpEnv = ()
    listed: Annotated[bool, typer.Option("--list", help="List everything that is trusted.")] = False
    revoked: Annotated[
        bool, typer.Option("--revoke", help="Trust the named files and servers no longer.")
    ] = False
    json: Json = False


@spread_options
def change_trust(options: TrustOptions) -> int:
    """Trust the present content of configuration files in this folder.

    The command shows what the files would use. A file that another person wrote may send keys to any address and
    start any program, so each content of it is used only after this command, or with --trust. A file that was changed
    is refused again. With --mcp: trust the tools of an MCP server as they are now; tools that change afterwards are
    disabled.
    """
    if options.listed and (options.revoked or options.files or options.mcp):
        raise ConfigError("--list takes no file, no --mcp and no --revoke")
    entries = _listed() if options.listed else _revoked(options) if options.revoked else _recorded(options)
    empty = True
    for entry in entries:
        empty = False
        if options.json:
            say_json(entry.plain())
        else:
            say("\n".join(entry.lines()))
    if empty and not options.json:
        say("nothing is trusted yet: `orchestrator trust FILE` trusts the present content of a file")
    return Exit.COMPLETED


def _recorded(options: TrustOptions) -> Iterator[TrustEntry]:
    files = options.files or tuple(file for file in DEFAULTS if file.is_file() and not options.mcp)
    if not files and not options.mcp:
        known = " nor ".join(map(str, DEFAULTS))
        raise ConfigError(f"there is neither {known} here: name a file, or an MCP server with --mcp")
    for file in files:
        found = ProjectFile.read(file)
        consent = TrustConsent.to(found)
        consent.record()
        yield TrustEntry(
            "trusted", consent.file, None, consent.folder, consent.digest, details=tuple(uses_of_file(found))
        )
    given = ServerOptions(options.mcp_env)
    for server in servers_of(options.mcp, given):
        pins = ToolPins.of(server.where)

        async def digests_of(server: NamedServer = server) -> Mapping[str, str]:
            # A server may offer some tools only to a client that it may sample; nothing is called here.
            async with server.described(given, sampling="ask") as connected:
                return connected.digests

        digests = asyncio.run(digests_of())
        pins.record(digests)
        yield TrustEntry(
            "trusted", None, pins.server, pins.folder, details=tuple(_changes(pins.tools, digests))
        )


def _changes(before: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[str]:
    """Yield the differences from the recorded tools; without a record, the current tools."""
    if before is None:
        yield f"{many(len(now), 'tool')}: {', '.join(sorted(now))}"
        return
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{'removed' if name not in now else 'new' if name not in before else 'changed'}: {name}"


def _revoked(options: TrustOptions) -> Iterator[TrustEntry]:
    files = options.files or (() if options.mcp else DEFAULTS)
    for place in [str(location(file)) for file in files]:
        found = [one for one in consents() if one.file == place]
        for one in found:
            one.revoke()
        yield TrustEntry("revoked" if found else "not trusted", place)
    for server in servers_of(options.mcp, ServerOptions()):
        pins = ToolPins.of(server.where)
        yield TrustEntry("revoked" if pins.revoke() else "not trusted", None, pins.server, pins.folder)


def _listed() -> Iterator[TrustEntry]:
    for one in consents():
        yield TrustEntry("trusted", one.file, None, one.folder, one.digest, one.at)
    for pins in all_pins():
        tools = f"{many(len(pins.tools or {}), 'tool')}: {', '.join(sorted(pins.tools or {}))}"
        yield TrustEntry("trusted", None, pins.server, pins.folder, None, pins.at, (tools,))
