"""The wheel with its core dependencies, and nothing else, runs an embedding on each Python we promise.

Where one of these Pythons is nowhere on the machine, what can be known without it is asserted: the locked core can
be had for it, and our source is in its language.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.environment import for_installers, of_user

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPENDENCIES: list[str] = PROJECT["dependencies"]
RUNNING = "{}.{}".format(*sys.version_info)
VERSIONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
WITHOUT_WHEEL = {"3.15": ("orjson",)}
"""Version -> packages of the core that publish no wheel for it yet: pip builds them there."""
OURS = ("orchestrator", "callbacks", "guards")


def places(version: str) -> Iterator[Path]:
    """Where a Python of that version may lie: PATH, beside the one that runs us, and where managers put them."""
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    home = Path(of_user("HOME") or Path.home())
    managers = [Path(folder).parent / "versions" for folder in os.get_exec_path() if folder.endswith("shims")]
    managers += [
        Path(of_user("PYENV_ROOT") or home / ".pyenv") / "versions",
        Path(sys.base_prefix).parent,
    ]
    managers += [home / ".local/share/uv/python", Path("/opt/hostedtoolcache/Python"), Path("/opt/python")]
    for folder in managers:
        for pattern in (f"{version}.*", f"{version}.*/x64", f"cpython-{version}.*"):
            yield from sorted(folder.glob(f"{pattern}/bin/python{version}"))
    yield from (
        Path(folder) / f"python{version}" for folder in ("/usr/local/bin", "/usr/bin", "/opt/homebrew/bin")
    )


def interpreter(version: str) -> Path | None:
    """The first that runs: a name may exist and not run (a version manager's shim), so each is asked."""
    if version == RUNNING:
        return Path(sys.executable)
    for candidate in places(version):
        with suppress(OSError):
            asked = subprocess.run([candidate, "--version"], check=False, capture_output=True, text=True)
            if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
                return candidate
    return None


def pip(python: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """This environment's pip, working for another interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *args],
        check=False,
        capture_output=True,
        text=True,
        env=for_installers(),
    )


def constraints(scratch: Path) -> Path:
    """The lock's versions without their hashes, which pip does not take in constraints."""
    file = scratch / "constraints.txt"
    pins = re.findall(r"^([^\s#].*?) *\\?$", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    file.write_text("\n".join(pins), encoding="utf-8")
    return file


def core_dependencies(python: Path, folder: Path, scratch: Path) -> str:
    """Install the locked core into a folder; returns what went wrong, or nothing."""
    staged = folder.with_name(f"{folder.name}.{os.getpid()}")
    done = pip(python, "--target", staged, "--constraint", constraints(scratch), *DEPENDENCIES)
    if done.returncode:
        return done.stderr
    staged.replace(folder)  # whole or not at all
    return ""


def cached_core(
    version: str,
    python: Path,
    config: pytest.Config,
    scratch: Path,
    absent: Callable[[str], NoReturn],
) -> Path:
    """Return the folder with the locked core for another Python, kept from one session to the next."""
    digest = hashlib.sha256(LOCK.read_bytes() + repr(DEPENDENCIES).encode()).hexdigest()[:16]
    core = config.cache.mkdir("core") / f"{version}-{digest}"
    if not core.exists() and (problem := core_dependencies(python, core, scratch)):
        absent(f"pip cannot install the core for Python {version}: {problem.strip()[-300:]}")
    return core


def installed_core() -> Iterator[Distribution]:
    """Yield the core as it is installed here, from the lock by `make setup`: what we depend on, and so on down."""
    seen, wanted = set(), [Requirement(one) for one in DEPENDENCIES]
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name in seen or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        found = distribution(name)
        wanted += [Requirement(text) for text in found.requires or ()]
        yield found


def laid_out(core: Iterable[Distribution], folder: Path) -> None:
    """Link the files of distributions into a folder, and no others."""
    for file in (file for one in core for file in one.files or ()):
        if ".." in file.parts or "__pycache__" in file.parts:  # scripts, and what is compiled anew
            continue
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(Path(str(file.locate())))


def without_interpreter(version: str, scratch: Path) -> str:
    """What keeps us from running on a Python that is not here, as far as it can be known; or nothing."""
    minor = int(version.partition(".")[2])
    if minor < sys.version_info.minor:  # each Python has the language of those before it
        for file in (path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py"))):
            ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, minor))
    other = ("--python-version", version, "--only-binary", ":all:", "--target", scratch / "core", "--dry-run")
    built = WITHOUT_WHEEL.get(version, ())
    core = [one for one in DEPENDENCIES if Requirement(one).name not in built]
    done = pip(Path(sys.executable), *other, "--constraint", constraints(scratch), *core)
    return done.stderr if done.returncode else ""


def test_the_versions_are_those_that_the_package_promises() -> None:
    said = re.findall(r"Python :: (\d+\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert said == VERSIONS
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_runs_an_embedding(
    version: str,
    wheel: Path,
    host: Path,
    tmp_path: Path,
    absent: Callable[[str], NoReturn],
    pytestconfig: pytest.Config,
) -> None:
    python = interpreter(version)
    if python is None:
        print(f"no Python {version} on this machine: its language and its wheels are checked")  # noqa: T201
        if problem := without_interpreter(version, tmp_path):
            absent(f"pip cannot have the core for Python {version}: {problem.strip()[-300:]}")
        return
    core = tmp_path / "core"
    if version == RUNNING:
        laid_out(installed_core(), core)
    else:
        core = cached_core(version, python, pytestconfig, tmp_path, absent)
    ours = tmp_path / "ours"
    assert pip(python, "--no-deps", "--no-index", "--target", ours, wheel).returncode == 0
    done = subprocess.run(
        [python, "-S", host],  # -S: no site-packages, so what is not core is not there
        cwd=host.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ours), str(core)])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["python"] == [int(part) for part in version.split(".")]
    assert said["outcome"] == "completed"
    assert Path(said["file"]).is_relative_to(ours)
