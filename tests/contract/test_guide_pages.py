"""Sizes, contents lists and links of the guides and the three pages at the root."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from hatch_build import files_of, index_page, project_urls
from tests.contract.test_guides import PATHS, ROOT

pytestmark = pytest.mark.check

LARGEST = {
    "README.md": 12_000,
    "dashboards/README.md": 20_000,
    "CHANGELOG.md": 60_000,
    "CONTRIBUTING.md": 15_000,
}
"""Bytes of a page; 20,000 if it is not here."""
PAGES = [*PATHS.values(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[tuple[int, str]]:
    return [(len(one[1]), one[2]) for one in re.finditer(r"^(#+) (.+)$", prose(page), re.MULTILINE)]


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> list[str]:
    return [one[1] for one in re.finditer(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", prose(page))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_a_page_has_at_most_its_number_of_bytes() -> None:
    sizes = {name(page): len(page.read_bytes()) for page in PAGES}
    assert {page: size for page, size in sizes.items() if size > LARGEST.get(page, 20_000)} == {}


@pytest.mark.parametrize("topic", PATHS)
def test_a_guide_has_one_title_and_lists_its_sections_first(topic: str) -> None:
    [title, *rest] = headings(PATHS[topic])
    assert title[0] == 1
    assert all(level > 1 for level, _ in rest)
    sections = [anchor(text) for level, text in rest if level == 2]
    before = prose(PATHS[topic]).split("\n## ")[0]
    listed = [one[1] for one in re.finditer(r"^- \[[^\]]+\]\(#([^)]+)\)$", before, re.MULTILINE)]
    assert listed == sections


@pytest.mark.parametrize("topic", PATHS)
def test_the_first_example_of_a_guide_is_on_its_first_screen(topic: str) -> None:
    before = re.split(
        r"^(?:```|    \S|!\[|<!-- )", PATHS[topic].read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE
    )[0]
    assert sum(math.ceil(len(line) / 110) or 1 for line in before.splitlines()) <= 45


def broken_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of one."""
    broken = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, section = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (section and section not in {anchor(text) for _, text in headings(there)}):
            broken.append(link)
    return broken


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = {name(page): broken_links(page) for page in PAGES}
    assert {page: found for page, found in broken.items() if found} == {}


def test_the_readme_links_to_every_guide() -> None:
    there = {
        (ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md") if link[0] != "#"
    }
    assert set(PATHS.values()) - there == {ROOT / "README.md"}


def test_with_the_address_of_the_repository_the_links_of_that_page_lead_there() -> None:
    text = "- [One](#one)\n- [Two](#two)\n\n## One\n[a](b/README.md#c), [d](https://e.org)\n"
    assert index_page(text, "https://f.org/blob/main") == (
        "## One\n[a](https://f.org/blob/main/b/README.md#c), [d](https://e.org)\n"
    )
    assert index_page(text) == "## One\na, [d](https://e.org)\n"


def test_a_picture_of_that_page_is_loaded_from_the_repository_or_left_out() -> None:
    text = "One\n\n![a run](b/run.png)\n\n![c](https://e.org/c.png)\n"
    assert index_page(text, "https://f.org/blob/main") == (
        "One\n\n![a run](https://f.org/blob/main/b/run.png?raw=true)\n\n![c](https://e.org/c.png)\n"
    )
    assert index_page(text) == "One\n\n\n\n![c](https://e.org/c.png)\n"


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
