"""`make release`: build the distribution, check it, and print the files of an upload. Nothing is uploaded.

    python -m tests.release TOOLS UV    # the folder of twine and cyclonedx-py, and the program uv

The files are in `dist/`: the sdist, the wheel that is built from it, and the SBOM (CycloneDX) of an installation with
all extras at the locked versions. The wheel is installed twice, with the locked and with the lowest supported versions
of its dependencies; each installation must be consistent and run the recorded conversations.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from email import message_from_bytes
from pathlib import Path

from orchestrator.version import __version__

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LOCK = ROOT / "requirements.lock"


class ReleaseError(Exception):
    """A check of the release failed."""


def main(tools: Path, uv: Path) -> None:
    """Build, check and print. Raises ReleaseError."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        _say("build the sdist, the wheel from it, and the wheel from this tree")
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
        _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", scratch / "tree", ROOT)
        (wheel,), (other,) = DIST.glob("*.whl"), (scratch / "tree").glob("*.whl")
        if found := differences(contents(wheel), contents(other)):
            raise ReleaseError(f"the sdist lacks files of the tree, or has other ones: {', '.join(found)}")
        _say("twine check")
        _run(tools / "twine", "check", "--strict", *DIST.iterdir())
        locked = _installed(uv, wheel, scratch / "locked", "--constraint", _constraints(scratch))
        _installed(uv, wheel, scratch / "lowest", "--resolution", "lowest-direct")
        _say("SBOM of the installation with the locked versions")
        sbom = DIST / f"{wheel.name.rsplit('-', 3)[0]}.cdx.json"
        _sbom(tools, locked, sbom)
        missing = undocumented(
            sbom, _run(uv, "pip", "list", "--quiet", "--format", "json", "--python", locked)
        )
        if missing:
            raise ReleaseError(f"{sbom.name} lacks {', '.join(missing)}")
    for line in summary(wheel, sorted(DIST.iterdir())):
        print(line)


def contents(wheel: Path) -> dict[str, str]:
    """Return the digest of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the files that differ between two wheels, or are in one of them only."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def undocumented(sbom: Path, installed: str) -> list[str]:
    """Return the installed packages that are not in the SBOM, as name and version."""
    said = json.loads(sbom.read_text(encoding="utf-8"))
    components = [*said.get("components", ()), said["metadata"]["component"]]
    known = {(one["name"].lower().replace("_", "-"), one.get("version")) for one in components}
    packages = [(one["name"].lower().replace("_", "-"), one["version"]) for one in json.loads(installed)]
    return [f"{name} {version}" for name, version in packages if (name, version) not in known]


def summary(wheel: Path, files: Iterable[Path]) -> list[str]:
    """Return what an upload would send, and what stands in its way."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    lines = [f"\n{metadata['Name']} {metadata['Version']}, Python {metadata['Requires-Python']}"]
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines.append(f"  {file.name}  {file.stat().st_size:,} bytes  sha256 {digest}")
    urls = metadata.get_all("Project-URL") or ()
    lines += [f"  {url}" for url in urls]
    lines.append("nothing was uploaded: `twine upload dist/*.whl dist/*.tar.gz` would do it")
    if not urls:
        lines.append("before that: set `repository` in pyproject.toml; without it the project has no URLs")
    return lines


def _installed(uv: Path, wheel: Path, folder: Path, *options: str | Path) -> Path:
    """Install the wheel with all extras, check the installation, and return its interpreter."""
    _say(f"install with {folder.name} versions, and use it")
    python = folder / "bin" / "python"
    _run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    _run(
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        *options,
        f"fsm-orchestrator[all] @ {wheel.as_uri()}",
    )
    _run(sys.executable, "-m", "pip", "--python", python, "check")
    _run(python, "-I", "-m", "orchestrator", "replay", "--bundled")
    return python


def _sbom(tools: Path, python: Path, file: Path) -> None:
    project = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library")
    output = ("--output-reproducible", "--validate", "--output-format", "JSON", "--output-file", file)
    _run(tools / "cyclonedx-py", "environment", *project, *output, python)
    said = json.loads(
        file.read_text(encoding="utf-8")
    )  # the tool does not know a version that the build computes
    name = said["metadata"]["component"]["name"]
    said["metadata"]["component"] |= {"version": __version__, "purl": f"pkg:pypi/{name}@{__version__}"}
    file.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _constraints(scratch: Path) -> Path:
    """Return the locked versions without their hashes, which are not allowed in constraints."""
    file = scratch / "constraints.txt"
    pins = [
        line.rstrip(" \\") for line in LOCK.read_text(encoding="utf-8").splitlines() if line[:1].isalnum()
    ]
    file.write_text("\n".join(pins), encoding="utf-8")
    return file


def _run(*command: str | Path) -> str:
    """Run a program and return its output. Raises ReleaseError with all that it said."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _say(step: str) -> None:
    print(f"release: {step}", flush=True)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:3]))
    except ReleaseError as error:
        sys.exit(f"release: {error}")
