"""Packages of npm for tests: what happens where they cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import node


def test_packages_that_cannot_be_installed_are_tried_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_PLACE", tmp_path / "place")
    (tmp_path / "package.json").write_text('{"dependencies": {"none": "1.0.0"}}')
    (tmp_path / "package-lock.json").write_text('{"lockfileVersion": 3, "packages": {}}')
    answers = (pytest.skip.Exception, pytest.fail.Exception)
    with pytest.raises(answers, match="npm cannot install the packages of") as first:
        node.node_modules(tmp_path)
    monkeypatch.setattr(node, "NODE", Path("/none"))  # a second attempt would start this
    with pytest.raises(answers) as second:
        node.node_modules(tmp_path)
    assert str(second.value) == str(first.value)
