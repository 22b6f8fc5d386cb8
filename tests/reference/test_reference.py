"""`make docs`: a page for each namespace, every public name on it, a search, and no warning."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.campaign
def test_the_reference_is_written_without_warnings_and_has_every_public_name(tmp_path: Path) -> None:
    from tests.reference.__main__ import NAMESPACES, main  # not above: pdoc is for this one test

    main(tmp_path)

    for namespace in NAMESPACES:
        page = (tmp_path / f"{namespace.replace('.', '/')}.html").read_text(encoding="utf-8")
        anchors = set(re.findall(r'id="([^".]+)"', page))
        assert set(import_module(namespace).__all__) - anchors == set()
    search = (tmp_path / "search.js").read_text(encoding="utf-8")
    assert "SqliteJournal" in search
    assert (tmp_path / "index.html").exists()
