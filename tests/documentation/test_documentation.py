"""`make docs`: every guide and public name has a page, and a browser needs nothing but the files.

`make test` tries the checks of the pages, the campaign builds the site and looks at it: a minute.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.docs import GUIDES
from tests.console.browsing import SECONDS, chromium
from tests.documentation.__main__ import NAMESPACES, main, problems_of, public_names, with_links
from tests.environment import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_a_broken_link_a_missing_anchor_and_a_file_of_another_host_are_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h2 id="there">', encoding="utf-8")
    (tmp_path / "a.css").write_text("p { background: url(https://e.org/a.png) }", encoding="utf-8")
    (tmp_path / "a.html").write_text(
        """<a href="b/#there"><a href="b/index.html#there"><a href="#here" id="here"><a href="https://e.org">
        <a href="b/#gone"><a href="c.html"><img src="c.png"><script src="https://e.org/a.js"></script>
        <link rel="stylesheet" href="//e.org/a.css">""",
        encoding="utf-8",
    )
    assert sorted(problems_of(tmp_path)) == [
        "a.css: loads https://e.org/a.png",
        "a.html: loads //e.org/a.css",
        "a.html: loads https://e.org/a.js",
        "a.html: no anchor b/#gone",
        "a.html: no page or file c.html",
        "a.html: no page or file c.png",
    ]


def test_a_link_to_a_source_file_leads_to_its_page_and_code_stays_as_it_is() -> None:
    linked: set[Path] = set()
    text = "[a](tests/tiers.py) [b](README.md#x) [c](https://e.org)\n```md\n[a](tests/tiers.py)\n```\n[d](gone.py)"
    assert with_links(text, "CONTRIBUTING.md", {"README.md"}, linked) == text.replace(
        "tests/tiers.py)", "tests/tiers.py.md)", 1
    )
    assert linked == {ROOT / "tests/tiers.py"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    main(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site on a server, below a path."""
    handler = partial(_Quiet, directory=str(site.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/docs"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.mark.campaign
def test_every_guide_and_every_public_name_has_its_place(site: Path) -> None:
    pages = [guide.path.replace("README.md", "index.html").replace(".md", ".html") for guide in GUIDES]
    assert [page for page in pages if not (site / page).is_file()] == []
    for namespace in NAMESPACES:
        text = (site / "api" / f"{namespace}.html").read_text(encoding="utf-8")
        anchors = set(re.findall(r'id="([^"]+)"', text))
        names = public_names(import_module(namespace))
        assert {name for name in names if not {name, f"{namespace}.{name}"} & anchors} == set()
        assert "self._" not in re.sub("<[^>]+>", "", text), (
            "the value of an attribute names something internal"
        )
    agent = (site / "api" / "orchestrator.html").read_text(encoding="utf-8")
    assert "&gt;&gt;&gt; " in agent  # examples are code


@pytest.mark.campaign
@pytest.mark.system("chromium")
@pytest.mark.parametrize(
    ("way", "scheme", "width"), [("file", "light", 390), ("file", "dark", 1280), ("server", "light", 1280)]
)
def test_a_browser_draws_and_searches_with_the_files_alone(
    browser: Browser, site: Path, served: str, way: str, scheme: str, width: int
) -> None:
    root = site.as_uri() if way == "file" else served
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(SECONDS)
    page = context.new_page()
    requests, complaints = watch(page)

    page.goto(f"{root}/index.html")
    page.wait_for_selector("div.mermaid")
    page.wait_for_function("document.querySelector('div.mermaid').getBoundingClientRect().height > 200")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.fonts.check('16px Inter')")
    assert (
        page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    )

    page.locator("body").press("/")
    page.keyboard.type("synchronous_commit")
    page.get_by_text("Workers on many machines").last.wait_for()

    for file in ("api/orchestrator.html", "orchestrator/machines/llm_loop/index.html"):
        page.goto(f"{root}/{file}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(BROKEN_NAMES) == []
    context.close()
    allowed = (root, "blob:", "data:")
    assert [address for address in requests if not address.startswith(allowed)] == []
    assert complaints == []


BROKEN_NAMES = """
[...document.querySelectorAll("td code")]
  .filter(code => /^[\\w.]+$/.test(code.textContent) && code.getClientRects().length > 1)
  .map(code => code.textContent)
"""
"""Names in tables that go on in a second line."""


def watch(page: Page) -> tuple[list[str], list[str]]:
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return requests, complaints
