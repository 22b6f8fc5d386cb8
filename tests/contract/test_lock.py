"""requirements.lock: every dependency pinned and hashed, nothing that names a place to fetch it from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINES = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def pins() -> dict[str, Requirement]:
    heads = [Requirement(line.removesuffix("\\")) for line in LINES if not line.startswith((" ", "#"))]
    return {canonicalize_name(head.name): head for head in heads}


def direct() -> list[str]:
    """Every dependency that pyproject.toml names, of whatever kind, but for the project itself."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    lists = [project["dependencies"], PROJECT["build-system"]["requires"]]
    lists += [*project["optional-dependencies"].values(), *groups.values()]
    return sorted({line for lines in lists for line in lines if not line.startswith(project["name"])})


@pytest.mark.parametrize("line", direct())
def test_a_direct_dependency_is_pinned_within_its_range(line: str) -> None:
    wanted = Requirement(line)
    pin = pins()[canonicalize_name(wanted.name)]
    ((operator, version),) = [(part.operator, part.version) for part in pin.specifier]
    assert operator == "=="
    assert version in wanted.specifier


def test_the_project_itself_is_not_in_its_lock() -> None:
    assert PROJECT["project"]["name"] not in pins()


def test_every_line_is_a_pin_or_a_hash_and_names_no_place() -> None:
    strangers = [
        line
        for line in LINES
        if not HASH.fullmatch(line) and not re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; [^\\:/@]+)? \\", line)
    ]
    assert strangers == []


def test_every_pin_has_a_hash() -> None:
    bare = [
        line
        for line, following in zip(LINES, [*LINES[1:], ""], strict=True)
        if "==" in line and not line.startswith(" ") and not HASH.fullmatch(following)
    ]
    assert bare == []


def unmet() -> Iterator[str]:
    """Yield what an installed distribution requires and is not installed in that version, as `pip check` does."""
    installed = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    for name, distribution in installed.items():
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                found = installed.get(canonicalize_name(requirement.name))
                if found is None or not requirement.specifier.contains(found.version, prereleases=True):
                    yield f"{name} requires {requirement}, and {found and found.version} is installed"


def test_the_lock_leaves_out_nothing_that_its_libraries_need() -> None:
    assert len(list(distributions())) > 100
    assert list(unmet()) == []
