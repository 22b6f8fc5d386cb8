"""Real MCP servers, as commands and as addresses. Nobody here wrote them but `asker`, a program of the official SDK."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.node import NODE, node_modules
from tests.ports import free_port
from tests.providers.mcp_place import ASKER

_FOLDER = Path(__file__).with_name("mcp_servers")
_PYTHON_HTTP = """
import sys
import uvicorn
if sys.argv[1] == "git":
    from pathlib import Path
    from mcp_server_git.server import create_server
    server = create_server(Path(sys.argv[3]))
else:
    from mcp_server_time.server import create_server
    server = create_server("Europe/Oslo")
uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""
_ATTEMPTS = 5


@dataclass(frozen=True)
class Official:
    """One server with a folder of its own."""

    name: str
    folder: Path

    @property
    def command(self) -> tuple[str, ...]:
        """The command of the server over standard input and output."""
        if self.name in ("git", "time"):
            arguments = (
                ("--repository", str(repository(self.folder)))
                if self.name == "git"
                else ("--local-timezone", "Europe/Oslo")
            )
            return (sys.executable, "-m", f"mcp_server_{self.name}", *arguments)
        if self.name == "asker":
            return (sys.executable, str(ASKER), str(self.folder), "stdio")
        more = (str(self.folder),) if self.name == "filesystem" else ()
        return (*self._program(), *more)

    @property
    def environment(self) -> dict[str, str]:
        return {"MEMORY_FILE_PATH": str(self.folder / "memory.jsonl")} if self.name == "memory" else {}

    @contextmanager
    def over_http(self) -> Iterator[str]:
        """Run the server on a free port of this machine; yield its address."""
        for _ in range(_ATTEMPTS):
            port = free_port()
            process = self._serve(port)
            try:
                if _listens(process, port):
                    yield f"http://127.0.0.1:{port}/mcp"
                    return
            finally:
                process.kill()
                process.wait()
        raise AssertionError(f"the server {self.name} does not listen")

    def _program(self) -> tuple[str, str]:
        package = node_modules(_FOLDER) / "@modelcontextprotocol" / f"server-{self.name}"
        return str(NODE), str(package / "dist" / "index.js")

    def _serve(self, port: int) -> subprocess.Popen[bytes]:
        if self.name == "everything":
            command, more = [*self._program(), "streamableHttp"], {"PORT": str(port)}
        elif self.name == "asker":
            command, more = [sys.executable, str(ASKER), str(self.folder), "http", str(port)], {}
        else:
            where = [str(repository(self.folder))] if self.name == "git" else []
            command, more = [sys.executable, "-c", _PYTHON_HTTP, self.name, str(port), *where], {}
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, env=os.environ | more, stdout=quiet, stderr=quiet)


def repository(folder: Path) -> Path:
    """Return a repository with one commit in a folder."""
    place = folder / "repository"
    if not (place / ".git").exists():
        git = shutil.which("git")
        assert git is not None
        me = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
        place.mkdir()
        (place / "notes.txt").write_text("first\n")
        for words in (["init", "-q", "-b", "main"], ["add", "."], [*me, "commit", "-q", "-m", "Add notes"]):
            subprocess.run([git, *words], cwd=place, check=True)
    return place


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a process accepts connections; False if it ended before."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        else:
            return True
    return False
