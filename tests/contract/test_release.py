"""The checks of `make release`, on what is wrong; test_distribution.py has the summary of the wheel of this tree."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.release import (
    ReleaseError,
    _run,
    contents,
    differences,
    different_files,
    newest_python,
    public_key,
    sign,
    undocumented,
    verify,
    write_hashes,
)


def packed(file: Path, **files: str) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file


def test_each_file_that_differs_between_two_wheels_is_named(tmp_path: Path) -> None:
    one = contents(packed(tmp_path / "one.whl", a="1", b="2", c="3"))
    other = contents(packed(tmp_path / "other.whl", a="1", b="changed", d="4"))
    assert differences(one, other) == ["b", "c", "d"]
    assert differences(one, dict(reversed(one.items()))) == []


def test_a_package_that_the_sbom_lacks_is_named(tmp_path: Path) -> None:
    sbom = tmp_path / "x.cdx.json"
    main = {"name": "fsm-orchestrator", "version": "1"}
    components = [{"name": "SQL_Alchemy", "version": "2"}, {"name": "rich", "version": "3"}]
    sbom.write_text(json.dumps({"metadata": {"component": main}, "components": components}))
    installed = [main, {"name": "sql-alchemy", "version": "2"}, {"name": "rich", "version": "4"}]
    assert undocumented(sbom, json.dumps(installed)) == ["rich 4"]


def test_a_program_that_fails_is_reported_with_its_output() -> None:
    with pytest.raises(ReleaseError, match="option"):
        _run("python3", "--no-such-option")


def test_two_builds_differ_by_a_byte_or_a_file(tmp_path: Path) -> None:
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "same").write_bytes(b"1")
        (tmp_path / place / "changed").write_bytes(place.encode())
    (tmp_path / "other" / "more").touch()
    assert different_files(tmp_path / "one", tmp_path / "other") == ["changed", "more"]
    assert different_files(tmp_path / "one", tmp_path / "one") == []


def test_the_newest_python_is_a_supported_one_and_at_least_this_one() -> None:
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([newest_python(), "-c", code], capture_output=True, text=True, check=True)
    assert sys.version_info[:2] <= tuple(map(int, done.stdout.split())) <= (3, 15)


@pytest.mark.system("ssh-keygen")
def test_the_hashes_are_signed_and_a_changed_file_list_or_key_is_refused(tmp_path: Path) -> None:
    key, other = (throw_away_key(tmp_path / name) for name in ("key", "other"))
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "a.whl").write_bytes(b"a")
    hashes = write_hashes(dist)
    digest = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert hashes.read_text(encoding="utf-8") == f"{digest}  a.whl\n"

    signature = sign(hashes, key)
    verify(hashes, signature, public_key(key))
    assert write_hashes(dist).read_text(encoding="utf-8") == f"{digest}  a.whl\n"  # not of itself
    verify(hashes, sign(hashes, key), public_key(key))  # and again, over the last one

    with pytest.raises(ReleaseError, match="ssh-keygen"):
        verify(hashes, signature, public_key(other))
    hashes.write_text(f"{'0' * 64}  a.whl\n", encoding="utf-8")
    with pytest.raises(ReleaseError, match="ssh-keygen"):
        verify(hashes, signature, public_key(key))


def throw_away_key(file: Path) -> Path:
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file)
    return file
