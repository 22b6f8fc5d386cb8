"""The tools of MCP servers as the user allowed them: one small file for each server.

A user who names a server consents to it and to the tools that it lists then: their digests are recorded at the first
connection. Afterwards a tool that has changed, or is new, is disabled until `orchestrator trust --mcp SERVER` records
the tools again; `--trust` allows them as they are now, for one command.

A server is identified by its URL without user name and password, or by the words of its command line together with the
working directory, because a command such as `python server.py` is another program in another folder.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.cli.output import complain, shown
from orchestrator.cli.redaction import bare
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.trust.consent import is_everything_allowed, unwritable
from orchestrator.cli.trust.state import read_all_state, read_state, remove_state, write_state
from orchestrator.errors import ConfigError

_PREFIX = "mcp-"


@dataclass(frozen=True, slots=True)
class ToolPins:
    """The digests of the tools of one server; None if it was never connected."""

    server: str
    """URL or command line."""
    folder: str | None
    """Working directory of a command."""
    tools: Mapping[str, str] | None = None
    at: float = 0.0
    """When they were recorded, in seconds since the epoch."""

    @classmethod
    def of(cls, where: str) -> ToolPins:
        """Return the recorded pins of the server that a URL or a command line names."""
        return cls.named(where)._read()  # noqa: SLF001 - of this class

    @classmethod
    def named(cls, where: str) -> ToolPins:
        """Return the pins of that server without any digest."""
        if is_address(where):
            return cls(bare(where), None)
        with suppress(ValueError):  # the client reports errors in it
            where = shlex.join(shlex.split(where))
        return cls(where, str(Path.cwd()))

    def _read(self) -> ToolPins:
        for data in read_state(self.name):
            with suppress(ValueError, TypeError, KeyError):
                return replace(self, tools=dict(json.loads(data)["tools"]))
        return self

    @property
    def name(self) -> str:
        """Name of the file."""
        key = json.dumps([self.server, self.folder])
        return f"{_PREFIX}{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}.json"

    def options(self) -> dict[str, Any]:
        """Return the options of the client that compare the server's tools with its pins."""
        if self.tools is None or is_everything_allowed():
            return {"on_disabled": self._report}
        return {"pins": self._present, "on_disabled": self._report}

    def _present(self) -> Mapping[str, str]:
        """Return the digests as recorded now: the user may consent while a run is active."""
        return self._read().tools or {}

    def keep(self, digests: Mapping[str, str]) -> None:
        """Record the tools of a server at its first connection; an existing record remains."""
        if self.tools is None:
            try:
                self.record(digests)
            except ConfigError as error:  # the run does not depend on it
                complain(f"{error}; changes of its tools are noticed only while this command runs")

    def record(self, digests: Mapping[str, str]) -> None:
        """Record the tools and replace those recorded before. Raises ConfigError if no place can be written."""
        body = {"server": self.server, "folder": self.folder, "tools": dict(digests), "at": time.time()}
        if write_state(self.name, json.dumps(body).encode()) is None:
            raise ConfigError(f"the tools of MCP server {shown(self.server, 300)!r} {unwritable()}")

    def revoke(self) -> bool:
        """Forget the server; return whether it was known. Raises OSError."""
        return remove_state(self.name)

    def _report(self, sentence: str) -> None:
        command = words("trust", "--mcp", self.server)
        where = "" if self.folder is None else f" in {shown(self.folder, 300)}"
        complain(f"{shown(sentence)}: `{command}`{where} allows it as it is now, --trust for one command")


def is_address(where: str) -> bool:
    """Return whether a server is named by its URL; otherwise it is named by its command line."""
    return where.startswith(("http://", "https://"))


def all_pins() -> Iterator[ToolPins]:
    """Yield every server with recorded tools."""
    for _, data in read_all_state(_PREFIX):
        try:
            yield ToolPins(**json.loads(data))
        except (ValueError, TypeError):  # a later version wrote it
            continue
