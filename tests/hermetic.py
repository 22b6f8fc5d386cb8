"""`python -m tests.hermetic`: the tests in hostile surroundings, and what they leave behind.

    python -m tests.hermetic                                   `make test`
    python -m tests.hermetic --tier campaign --home read-only
    python -m tests.hermetic --clones 2 -- tests/cli -n 2      twice at the same time, in two clones of the last commit

What follows `--` is for pytest; without `--tier` it chooses the tests. The home has consents, configuration and
credentials; the environment has settings, keys, dead proxies, and another locale and time zone; temporary files have
little memory and a folder with spaces and umlauts in its name. A home can also be read-only.

The tests run as in a container: they see their own `/tmp`, `/var/tmp` and `/dev/shm`, which are empty at first, and no
process but theirs. Files and processes that are there afterwards are listed, and files in the home of the user and in
the folder of the project. The exit code is 1 if there are any, or if a test failed. Linux only, with root or with
user namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.tiers import SELECTED, selecting

ROOT = Path(__file__).resolve().parent.parent
EMPTY = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))  # noqa: S108
"""Folders that the tests see empty."""
PLACE = Path("/tmp/Jürgen Groß")  # noqa: S108
"""Where the home and the temporary folder of the hostile user are."""
OWN = re.compile(r"(.*/)?__pycache__/|\.(venv[\w-]*|hypothesis|pytest_cache|ruff_cache|mypy_cache)/?|build/")
"""Folders of the project that tools write to."""
PATIENCE = 10.0
"""Seconds for a process that ends."""

HOME = {
    ".gitconfig": "[user]\nname = Someone\n[commit]\ngpgsign = true\n[core]\nautocrlf = true\nhooksPath = /none\n"
    "[init]\ndefaultBranch = größe\n",
    ".netrc": "machine 127.0.0.1 login someone password secret\n",
    ".curlrc": "proxy = http://127.0.0.1:9\n",
    ".aws/credentials": "[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n",
    ".aws/config": "[default]\nregion = eu-central-1\n",
    ".pgpass": "127.0.0.1:*:*:*:wrong\n",
    ".psqlrc": "\\set QUIET 1\n",
    ".config/git/ignore": "*\n",
    ".ipython/profile_default/startup/00.py": "raise SystemExit('the startup file of the user')\n",
    "orchestrator.toml": 'journal = "/none/journal.db"\n',
}
"""File -> content."""
ENVIRONMENT = {
    "ALL_PROXY": "http://127.0.0.1:9",
    "ANTHROPIC_API_KEY": "sk-ant-of-the-user",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_REGION": "eu-central-1",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "CLICOLOR_FORCE": "1",
    "COLUMNS": "20",
    "EDITOR": "/bin/false",
    "FORCE_COLOR": "1",
    "GEMINI_API_KEY": "of-the-user",
    "GIT_AUTHOR_DATE": "2001-01-01T00:00:00",
    "GIT_DIR": "/none",
    "GROQ_API_KEY": "of-the-user",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "LANG": "tr_TR.ISO-8859-9",
    "LC_TIME": "tr_TR.ISO-8859-9",
    "MAKEFLAGS": "-j8",
    "NO_COLOR": "1",
    "NO_PROXY": "example.org",
    "OPENAI_API_KEY": "sk-of-the-user",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "ORCHESTRATOR_CHECK_PURITY": "0",
    "ORCHESTRATOR_ON_TOOL_ERROR": "return",
    "ORCHESTRATOR_JOURNAL": "/none/journal.db",
    "ORCHESTRATOR_LIMITS__MAX_ITERATIONS": "1",
    "ORCHESTRATOR_LOG_LEVEL": "error",
    "ORCHESTRATOR_MODEL": "openai:of-the-user",
    "ORCHESTRATOR_NO_REAL_MODELS": "0",
    "ORCHESTRATOR_NONSENSE": "1",
    "ORCHESTRATOR_TRUST": "all",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    "OTEL_SDK_DISABLED": "true",
    "OTEL_SERVICE_NAME": "of-the-user",
    "PGHOST": "127.0.0.1",
    "PGOPTIONS": "-c statement_timeout=1",
    "PGPORT": "9",
    "PGUSER": "someone",
    "PROMETHEUS_MULTIPROC_DIR": str(PLACE / "metrics"),
    "PYTEST_ADDOPTS": "--strict-markers",
    "PYTHONASYNCIODEBUG": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "0",
    "PYTHONWARNINGS": "always",
    "SSL_CERT_FILE": "/none/certificates.pem",
    "TERM": "dumb",
    "TZ": "Pacific/Chatham",
    "WEB_CONCURRENCY": "4",
    "http_proxy": "http://127.0.0.1:9",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hermetic", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--tier", choices=[*SELECTED], help="default: test, unless arguments choose tests")
    parser.add_argument("--home", choices=["hostile", "read-only"], default="hostile")
    parser.add_argument("--clones", type=int, default=0, metavar="N", help="run at the same time in N clones")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    if not options.inside:
        return contained([*sys.argv[1:]])
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    for folder in EMPTY:
        # Little memory: what the tests write is in the temporary folder of the user.
        size = ("-o", "size=512m") if folder == Path("/dev/shm") else ()  # noqa: S108
        subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", folder], check=True)
        folder.chmod(0o1777)
    environment = hostile(options.home)
    folders = clones(options.clones)
    before = files(home)
    codes = run_tests(folders, options, environment)
    left = sorted(files(home) - before - {*folders}) + list(survivors())
    for folder, code in zip(folders, codes, strict=True):
        print(f"{folder}: pytest ended with {code}")
    print("\n".join(map(str, ["left behind:", *left])) if left else "nothing was left behind")
    return int(any(codes) or bool(left))


def contained(arguments: Sequence[str]) -> int:
    """Run this command in namespaces of its own, and return its exit code."""
    if any(ROOT.is_relative_to(folder) for folder in EMPTY):
        raise SystemExit(f"{ROOT} is in a folder that the tests must see empty: move the project")
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps")
    command = ["unshare", *user, "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command += [sys.executable, "-m", "tests.hermetic", "--inside", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


def hostile(home: str) -> dict[str, str]:
    """Make the folders of a hostile user, and return the environment."""
    place, temporary = PLACE / "home", PLACE / "t f"  # short: the path of a socket of Chromium has 107 bytes
    place.mkdir(parents=True)
    temporary.mkdir()
    if home == "read-only":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], check=True)
    else:
        for name, content in HOME.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        consent(place / ".local" / "state" / "orchestrator")
    consent(temporary / f"orchestrator-{os.geteuid()}")
    kept = {name: os.environ[name] for name in ("PATH", "CI", "USER") if name in os.environ}
    return kept | ENVIRONMENT | {"HOME": str(place), "TMPDIR": str(temporary)}


def consent(state: Path) -> None:
    """Write the state of a user who consented once, and whose key for signatures is unreadable."""
    state.mkdir(parents=True, mode=0o700)
    for name, content in {
        "trust-0.json": json.dumps({"file": "/none", "folder": "/", "digest": "0", "at": 1.0}),
        "run-signature.key": "x" * 32,
    }.items():
        (state / name).write_text(content)
        (state / name).chmod(0o600)


def clones(count: int) -> list[Path]:
    """Clone the project that often; without a number, return the project."""
    if not count:
        return [ROOT]
    folders = [PLACE.parent / f"clone-{number}" for number in range(1, count + 1)]
    for folder in folders:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        for environment in filter(Path.is_dir, ROOT.glob(".venv*")):
            (folder / environment.name).symlink_to(environment)
    return folders


def run_tests(
    folders: Sequence[Path], options: argparse.Namespace, environment: Mapping[str, str]
) -> list[int]:
    """Run pytest in each folder at the same time, and return the exit codes."""
    command = [sys.executable, "-m", "pytest", "-q"]
    if options.tier or not options.arguments:
        tier = options.tier or "test"
        command += selecting(tier)
        environment = {**environment, "TEST_TIER": tier}
    command += options.arguments
    running = [
        subprocess.Popen(
            command,
            cwd=folder,
            umask=0o077,
            stdin=subprocess.DEVNULL,
            # For the interpreter: without this it would import the plugin of pytest from the project.
            env={**environment, "PYTHONPATH": str(folder)},
        )
        for folder in folders
    ]
    return [process.wait() for process in running]


def files(home: Path) -> set[Path]:
    """Return what is in the folders that tests must leave as they were."""
    found = {path for folder in EMPTY for path in _tree(folder)}
    found |= {path for path in _tree(home, depth=3) if not path.is_relative_to(ROOT)}
    status = ["git", "status", "--porcelain", "--ignored", "-z"]
    printed = subprocess.run(status, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return found | {ROOT / line[3:] for line in printed.split("\0") if line and not OWN.fullmatch(line[3:])}


def _tree(folder: Path, depth: int = sys.maxsize) -> Iterator[Path]:
    """Yield the files and folders below a folder; not what is in clones, caches of Python, or mounted there.

    pytest keeps its folder of temporary folders: only what is in it counts.
    """
    for path in folder.iterdir():
        if path.name == "__pycache__" or path.name.startswith("clone-"):
            continue
        if not path.name.startswith("pytest-of-"):
            yield path
        if depth > 1 and path.is_dir() and not path.is_symlink() and not path.is_mount():
            yield from _tree(path, depth - 1)


def survivors() -> Iterator[str]:
    """Yield the processes that run on, and their commands."""
    end = time.monotonic() + PATIENCE
    while found := [*_processes()]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    yield from found


def _processes() -> Iterator[str]:
    """Yield the other processes of this namespace; collect those that ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except FileNotFoundError:
                continue
            yield f"process {entry.name}: {command.strip()}"


if __name__ == "__main__":
    sys.exit(main())
