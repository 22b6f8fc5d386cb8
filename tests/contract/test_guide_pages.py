"""Sizes, contents lists and links of the guides and the two pages at the root, and that a wheel has all guides."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import pytest

from hatch_build import files_of, index_page, project_urls
from orchestrator.cli.docs import GUIDES
from tests.contract.test_guides import PATHS, ROOT

LARGEST = {
    "README.md": 12_000,
    "dashboards/README.md": 20_000,
    "CHANGELOG.md": 60_000,
    "CONTRIBUTING.md": 10_000,
}
"""Bytes of a page; 15,000 if it is not here."""
PAGES = [*PATHS.values(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[tuple[int, str]]:
    return [(len(one[1]), one[2]) for one in re.finditer(r"^(#+) (.+)$", prose(page), re.MULTILINE)]


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> list[str]:
    return [one[1] for one in re.finditer(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", prose(page))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_at_most_its_number_of_bytes(page: Path) -> None:
    assert len(page.read_bytes()) <= LARGEST.get(name(page), 20_000)


@pytest.mark.parametrize("topic", PATHS)
def test_a_guide_has_one_title_and_lists_its_sections_first(topic: str) -> None:
    [title, *rest] = headings(PATHS[topic])
    assert title[0] == 1
    assert all(level > 1 for level, _ in rest)
    sections = [anchor(text) for level, text in rest if level == 2]
    before = prose(PATHS[topic]).split("\n## ")[0]
    listed = [one[1] for one in re.finditer(r"^- \[[^\]]+\]\(#([^)]+)\)$", before, re.MULTILINE)]
    assert listed == sections


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, section = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (section and section not in {anchor(text) for _, text in headings(there)}):
            broken.append(link)
    assert broken == []


def test_the_readme_links_to_every_guide() -> None:
    there = {
        (ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md") if link[0] != "#"
    }
    assert set(PATHS.values()) - there == {ROOT / "README.md"}


def test_a_wheel_has_every_guide(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        for guide in GUIDES:
            assert archive.read(guide.in_wheel) == (ROOT / guide.path).read_bytes()


def test_the_page_of_a_package_index_has_no_link_to_a_file_that_is_not_there(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        page = archive.read(metadata).decode().partition("\n\n")[2]
    assert page.startswith("# fsm-orchestrator\n")
    found = re.findall(r"\]\(([^)]+)\)", _FENCE.sub("", page))
    assert found
    assert all(link.startswith("https://") for link in found)
    assert "Durability and recovery" in page


def test_with_the_address_of_the_repository_the_links_of_that_page_lead_there() -> None:
    text = "- [One](#one)\n- [Two](#two)\n\n## One\n[a](b/README.md#c), [d](https://e.org)\n"
    assert index_page(text, "https://f.org/blob/main") == (
        "## One\n[a](https://f.org/blob/main/b/README.md#c), [d](https://e.org)\n"
    )
    assert index_page(text) == "## One\na, [d](https://e.org)\n"


def test_the_address_of_the_repository_makes_the_urls_of_the_project() -> None:
    urls = project_urls("https://f.org/x")
    assert urls == {
        "Homepage": "https://f.org/x",
        "Documentation": "https://f.org/x/blob/main/README.md#guides",
        "Changelog": "https://f.org/x/blob/main/CHANGELOG.md",
        "Issues": "https://f.org/x/issues",
    }
    assert project_urls("") == {}
    assert files_of("") == ""
    for url in (urls["Documentation"], urls["Changelog"]):
        path, _, section = url.removeprefix(files_of("https://f.org/x") + "/").partition("#")
        assert not section or section in {anchor(text) for _, text in headings(ROOT / path)}
