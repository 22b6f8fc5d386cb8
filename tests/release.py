"""`make release`: build the distribution, check it, and print the files of an upload. Nothing is uploaded.

    python -m tests.release TOOLS UV    # the folder of twine and cyclonedx-py, and the program uv

The files are in `dist/`: the sdist, the wheel that is built from it, the SBOM (CycloneDX) of an installation with all
extras at the locked versions, and SHA256SUMS, their hashes. A second build, in another time zone, locale and umask and
with another order of sets, must give the same bytes. The wheel is installed three times: with the locked and with the
lowest supported versions of its dependencies, and with the locked ones on the newest Python of this machine. Each
installation must be consistent, run the recorded conversations, and run the durable quickstart of its own guide twice.

SIGNING_KEY=FILE signs SHA256SUMS with an SSH key (`ssh-keygen -Y`, which every developer has; gpg keeps keys in an
agent of the user, and minisign has to be installed). Without a key the hashes are not signed, and the summary says so.
"""

from __future__ import annotations

import hashlib
import json
import os
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
        _say("build both again, in another environment")
        _run(
            *("sh", "-c", 'umask 077 && exec "$0" "$@"', sys.executable),
            *("-m", "build", "--no-isolation", "--outdir", scratch / "again", ROOT),
            environment={"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
        )
        if unlike := different_files(DIST, scratch / "again"):
            raise ReleaseError(f"two builds of the same files differ: {', '.join(unlike)}")
        _say("twine check")
        _run(tools / "twine", "check", "--strict", *DIST.iterdir())
        locked = _installed(uv, wheel, scratch / "locked", "--constraint", _constraints(scratch))
        _installed(uv, wheel, scratch / "lowest", "--resolution", "lowest-direct")
        newest = newest_python()
        _say(f"the newest Python here is {newest}")
        _installed(uv, wheel, scratch / "newest", "--constraint", _constraints(scratch), python=newest)
        _say("SBOM of the installation with the locked versions")
        sbom = DIST / f"{wheel.name.rsplit('-', 3)[0]}.cdx.json"
        _sbom(tools, locked, sbom)
        missing = undocumented(
            sbom, _run(uv, "pip", "list", "--quiet", "--format", "json", "--python", locked)
        )
        if missing:
            raise ReleaseError(f"{sbom.name} lacks {', '.join(missing)}")
    files = sorted(DIST.iterdir())
    hashes = write_hashes(DIST)
    if key := os.environ.get("SIGNING_KEY"):
        verify(hashes, sign(hashes, Path(key)), public_key(Path(key)))
    for line in summary(wheel, files):
        print(line)
    print(f"{hashes.name} is {'signed' if key else 'not signed: SIGNING_KEY=FILE names an SSH key'}")


def different_files(folder: Path, other: Path) -> list[str]:
    """Return the names of the files that differ in a byte, or are in one of two folders only."""
    digests = [{file.name: _digest(file) for file in place.iterdir()} for place in (folder, other)]
    return differences(*digests)


def newest_python() -> Path:
    """Return the newest supported interpreter of this machine, at least this one. Raises ReleaseError if none is."""
    for version in ("3.15", "3.14", "3.13", "3.12", "3.11"):
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            return Path(sys.executable)
        command = ["bash", "-c", f"source .ci/interpreter && interpreter {version}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0 and (python := shutil.which(done.stdout.strip())):
            return Path(python)
    raise ReleaseError("no Python from 3.11 to 3.15 is installed")


def write_hashes(folder: Path) -> Path:
    """Write SHA256SUMS with the files of a folder, in the format that `sha256sum --check` reads, and return it."""
    file = folder / "SHA256SUMS"
    listed = sorted(one for one in folder.iterdir() if one.name not in {file.name, f"{file.name}.sig"})
    file.write_text("".join(f"{_digest(one)}  {one.name}\n" for one in listed), encoding="utf-8")
    return file


def public_key(key: Path) -> str:
    """Return the public part of an SSH key: its type and its value."""
    return " ".join(_run("ssh-keygen", "-y", "-f", key).split()[:2])


def sign(file: Path, key: Path) -> Path:
    """Sign a file with an SSH key and return the signature, the same name with `.sig`."""
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)  # ssh-keygen would ask
    _run("ssh-keygen", "-Y", "sign", "-q", "-n", "file", "-f", key, file)
    return signature


def verify(file: Path, signature: Path, public: str) -> None:
    """Raise ReleaseError unless the signature is that of the file, by this public key."""
    with tempfile.NamedTemporaryFile("w", suffix=".signers") as signers:
        signers.write(f'release namespaces="file" {public}\n')
        signers.flush()
        options = ("-Y", "verify", "-n", "file", "-I", "release", "-f", signers.name, "-s", signature)
        _run("ssh-keygen", *options, text=file.read_text(encoding="utf-8"))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


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
    lines += [f"  {file.name}  {file.stat().st_size:,} bytes  sha256 {_digest(file)}" for file in files]
    urls = metadata.get_all("Project-URL") or ()
    lines += [f"  {url}" for url in urls]
    lines.append(
        "nothing was uploaded: `twine upload dist/*.whl dist/*.tar.gz` would do it, and SHA256SUMS goes beside them"
    )
    if not urls:
        lines.append("before that: set `repository` in pyproject.toml; without it the project has no URLs")
    return lines


def _installed(
    uv: Path, wheel: Path, folder: Path, *options: str | Path, python: str | Path = sys.executable
) -> Path:
    """Install the wheel with all extras, check the installation, and return its interpreter."""
    _say(f"install with {folder.name} versions, and use it")
    installed = folder / "bin" / "python"
    _run(uv, "venv", "--quiet", "--python", python, folder)
    package = f"fsm-orchestrator[all] @ {wheel.as_uri()}"
    _run(uv, "pip", "install", "--quiet", "--python", installed, *options, package)
    _run(sys.executable, "-m", "pip", "--python", installed, "check")
    _run(installed, "-I", "-m", "orchestrator", "replay", "--bundled")
    _run_quickstart(installed, folder)
    return installed


def _run_quickstart(python: Path, folder: Path) -> None:
    """Run the durable quickstart of the installed guide twice: the second run returns what the first has stored."""
    guide = _run(python, "-I", "-m", "orchestrator", "docs", "start")
    section = guide.partition("## A durable run with an approval\n")[2].partition("\n## ")[0]
    program = folder / "durable.py"
    program.write_text(section.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    first, second = (_run(python, "-I", program, folder=folder).splitlines() for _ in range(2))
    if len(first) != 2 or second != first[1:]:
        raise ReleaseError(f"the durable quickstart printed {first}, and {second} when it was run again")


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


def _run(
    *command: str | Path, folder: Path = ROOT, text: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Run a program and return its output. Raises ReleaseError with all that it said."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
    )
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
