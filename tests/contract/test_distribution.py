"""What ships: one wheel of three packages, the same from the sdist, quiet on import, usable in a host."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import orchestrator
from orchestrator.cli.docs import GUIDES
from tests.contract.test_guide_pages import FENCE
from tests.release import summary

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "orchestrator": ROOT / "orchestrator",
    "orchestrator_callbacks": ROOT / "callbacks" / "orchestrator_callbacks",
    "orchestrator_guards": ROOT / "guards" / "orchestrator_guards",
}


def build(kind: str, source: Path, out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    packed = build("sdist", ROOT, folder / "packed")
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(folder)  # noqa: S202 - built by this test
    return folder / packed.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, and nothing else, is installed."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, folder, wheel], check=True)
    return folder


def run_python(*args: str | Path, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run with the wheel and the libraries on the path; -S keeps the editable install of this tree out."""
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *libraries])}
    done = subprocess.run(
        [sys.executable, "-S", *args], cwd=cwd, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_wheel_owns_exactly_three_packages(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in files(wheel)}
    (metadata,) = tops - PACKAGES.keys()
    assert tops - {metadata} == PACKAGES.keys()
    assert metadata.startswith("fsm_orchestrator-")
    assert metadata.endswith(".dist-info")


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    on_disk = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file()
        and not {"__pycache__", "pictures"} & {*path.parts}
        and not path.name.startswith(".")
    }
    assert on_disk - files(wheel) == set()


def test_each_package_says_that_it_is_typed(wheel: Path) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= files(wheel)


def test_the_wheel_carries_its_licence_script_and_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        text = archive.read(name).decode()
    assert "orchestrator = orchestrator.cli:main" in text
    assert "orchestrator = orchestrator.testing.plugin" in text
    assert any(name.endswith("/licenses/LICENSE") for name in files(wheel))


def test_the_wheel_has_every_guide(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for guide in GUIDES:
            assert archive.read(guide.in_wheel) == (ROOT / guide.path).read_bytes()


def test_the_page_of_a_package_index_has_no_link_to_a_file_that_is_not_there(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        page = archive.read(metadata).decode().partition("\n\n")[2]
    assert page.startswith("# fsm-orchestrator\n")
    found = re.findall(r"\]\(([^)]+)\)", FENCE.sub("", page))
    assert found
    assert all(link.startswith("https://") for link in found)
    assert "Durability and recovery" in page


def test_the_summary_of_a_release_has_the_files_with_their_digests_and_what_is_missing(wheel: Path) -> None:
    lines = summary(wheel, [wheel])
    assert lines[0].split() == ["fsm-orchestrator", f"{orchestrator.__version__},", "Python", ">=3.11"]
    assert wheel.name in lines[1]
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in lines[1]
    assert any(line.startswith("nothing was uploaded") for line in lines)
    assert lines[-1].startswith("before that: set `repository`") == (
        not any("https://" in line for line in lines)
    )


@pytest.mark.campaign
def test_the_sdist_is_the_whole_repository(sdist: Path) -> None:
    wanted = ["Makefile", "LICENSE", "README.md", "requirements.lock", ".ci/run", "tests/conftest.py"]
    wanted += [folder for folder in ("dashboards",) if (ROOT / folder).exists()]
    assert [path for path in wanted if not (sdist / path).exists()] == []


@pytest.mark.campaign
def test_a_wheel_built_from_the_sdist_has_the_same_files(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    assert files(build("wheel", sdist, tmp_path / "again")) == files(wheel)


def test_a_host_with_callbacks_and_guards_of_its_own_embeds_the_wheel(site: Path, host: Path) -> None:
    said = json.loads(run_python(host, site=site, cwd=host.parent).stdout)
    assert said["outcome"] == "completed"
    assert said["output"] == "Two moons."
    assert said["roles"] == ["user", "assistant", "tool", "assistant"]
    assert Path(said["file"]).is_relative_to(site)
    assert Path(said["hooks"]).is_relative_to(site)


QUIET = """
import json, logging, sys, threading
import prometheus_client

sockets = []
sys.addaudithook(lambda event, args: sockets.append(event) if event.startswith("socket.") else None)
registered = set(prometheus_client.REGISTRY._collector_to_names)
handlers = list(logging.root.handlers)

import orchestrator
eager = sorted(name for name in sys.modules if name.startswith("orchestrator."))
for name in orchestrator.__all__:
    getattr(orchestrator, name)

json.dump({
    "eager": eager,
    "threads": [thread.name for thread in threading.enumerate()],
    "sockets": sockets,
    "handlers": [str(handler) for handler in logging.root.handlers if handler not in handlers],
    "metrics": [str(c) for c in prometheus_client.REGISTRY._collector_to_names if c not in registered],
}, sys.stdout)
"""


def test_importing_every_public_name_starts_nothing(site: Path, tmp_path: Path) -> None:
    said = json.loads(run_python("-c", QUIET, site=site, cwd=tmp_path).stdout)
    assert said == {"eager": [], "threads": ["MainThread"], "sockets": [], "handlers": [], "metrics": []}
