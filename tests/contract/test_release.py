"""The checks of `make release`, on what is wrong; test_distribution.py has the summary of the wheel of this tree."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.release import ReleaseError, _run, contents, differences, undocumented


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
