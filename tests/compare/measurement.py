"""Measures the tests of a revision, in a worktree with an environment of its own, and keeps what was measured."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Command = tuple[str, ...]

PYTHON = ".venv/bin/python"
STDERR = 2
COLLECT = ("--collect-only", "-q", "-n", "0")
COVERAGE = "coverage.json"
LISTS = {"test": "test.txt", "campaign": "campaign.txt", "all": "all.txt"}
"""Which tests -> the file with their ids."""


def mutants_file(arguments: Sequence[str]) -> str:
    return f"mutants{'-'.join(arguments).replace('--', '-')}.txt"


def commands(parts: Sequence[str], mutants: Sequence[str]) -> dict[str, list[Command]]:
    """Return the files of the measurements, each with its commands, the last of which prints it.

    Args:
        parts: Which of `coverage`, `tests` and `mutants`.
        mutants: The arguments of `make mutants`.
    """
    # A failed test, too little coverage or too few mutants are no reason to measure for another hour.
    make = ("make", "--silent", "--ignore-errors")
    collect = f"ARGS={' '.join(COLLECT)}"
    files: dict[str, dict[str, list[Command]]] = {
        "coverage": {
            # Tests also measure copies of the packages, which are gone afterwards.
            COVERAGE: [
                (*make, "coverage"),
                (PYTHON, "-m", "coverage", "json", "--quiet", "--ignore-errors", "-o", "-"),
            ]
        },
        "tests": {
            LISTS["test"]: [("make", "--silent", "test", collect)],
            LISTS["campaign"]: [("make", "--silent", "campaign", collect)],
            LISTS["all"]: [(PYTHON, "-m", "pytest", *COLLECT)],
        },
        "mutants": {mutants_file(mutants): [(*make, "mutants", f"ARGS={' '.join(mutants)}")]},
    }
    return {file: steps for part in parts for file, steps in files[part].items()}


def commit_of(repository: Path, revision: str) -> str:
    """Return the hash of a revision. Raises SystemExit if there is no such revision."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(
            f"compare: no revision {revision!r} in {repository}: name a commit, a branch or a tag"
        )
    return found.stdout.strip()


def measure(repository: Path, commit: str, folder: Path, wanted: Mapping[str, Sequence[Command]]) -> None:
    """Write the measurements that the folder does not have. Raises SystemExit if a command fails."""
    missing = {file: steps for file, steps in wanted.items() if not (folder / file).exists()}
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _worktree(repository, commit) as tree:
        _run(tree, ("make", "setup"))
        for file, steps in missing.items():
            *earlier, last = steps
            for step in earlier:
                _run(tree, step)
            unfinished = folder / f"{file}.part"
            unfinished.write_text(_run(tree, last, subprocess.PIPE))
            unfinished.replace(folder / file)


@contextlib.contextmanager
def _worktree(repository: Path, commit: str) -> Iterator[Path]:
    # Beside the repository, because some tests look for recorded conversations there.
    tree = Path(tempfile.mkdtemp(prefix=f"{repository.name}-", dir=repository.parent))
    git = ["git", "-C", str(repository), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", tree, commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", tree], check=True)


def _run(tree: Path, command: Command, stdout: int = STDERR) -> str:
    print(f"{tree.name}: {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=tree, stdout=stdout, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout or "")
        raise SystemExit(f"compare: `{' '.join(command)}` failed with exit code {done.returncode}")
    return done.stdout


def sources(repository: Path, commit: str) -> dict[str, str]:
    """Return the text of each Python file of a commit, by path."""
    archive = subprocess.run(
        ["git", "archive", commit], cwd=repository, stdout=subprocess.PIPE, check=True
    ).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                texts[member.name] = content.read().decode()
    return texts
