"""Processes of the browser tests: the console, an engine, and Debian's Chromium under Playwright."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.console.stored import TOKEN
from tests.node import node_modules

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30_000
"""Milliseconds that a condition may take on a busy machine."""
CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


_PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "callbacks", "guards"))


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    # Not above: Playwright takes a tenth of a second, in each process that collects the tests.
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM))
        try:
            yield browser
        finally:
            browser.close()


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread: the main thread runs the loop of Playwright."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@dataclass(slots=True)
class Processes:
    """The processes of one test, which end with it."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start Python with a module."""
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": _PATHS, "LOGNAME": "mara", "CONSOLE_TOKEN": TOKEN},
        )
        self.started.append(process)
        return process

    def console(self, *options: str, shared: bool = False, module: str = "orchestrator") -> str:
        """Serve the journal; return an address that signs in: one person once, or any number of them."""
        given = (*options, *(("--token-env", "CONSOLE_TOKEN") if shared else ()))
        process = self.start(module, "console", "--journal", self.journal.name, "--port", "0", *given)
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found is not None, said + process.stdout.read()
        return f"{found[0]}sign-in#{TOKEN}" if shared else found[0]

    def host(self, *run: str) -> subprocess.Popen[str]:
        """Start an engine, and the run of this id."""
        return self.start("tests.console.host", str(self.journal), str(self.folder), *run)

    def open(self, gate: int) -> None:
        """Let the model give its answer of this number."""
        (self.folder / f"answer-{gate}").touch()

    def stop(self) -> None:
        for process in self.started:
            process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@dataclass(slots=True)
class Person:
    """Somebody at a browser of a certain width, whose console must stay silent."""

    context: BrowserContext
    address: str
    said: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, browser: Browser, address: str, *, width: int = 1280, **more: Any) -> Person:
        """Open a browser of this width."""
        context = browser.new_context(viewport={"width": width, "height": 900}, **more)
        context.set_default_timeout(SECONDS)
        person = cls(context, address)

        def hear(message: ConsoleMessage) -> None:
            if not message.text.startswith("Autofocus processing was blocked"):  # somebody typed before that
                person.said.append(f"{message.type}: {message.text}")

        context.on("console", hear)
        context.on("weberror", lambda error: person.said.append(f"error: {error.error}"))
        base = person.base  # a bound method of an object with slots is no handler
        context.on("request", lambda one: None if one.url.startswith(base) else person.said.append(one.url))
        return person

    def sign_in_without_script(self) -> None:
        """Type the token into the form."""
        page = self.context.new_page()
        page.goto(self.base + "/sign-in")
        page.get_by_label("Token").fill(self.address.partition("#")[2])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Runs").wait_for()

    @property
    def base(self) -> str:
        return self.address.partition("/sign-in")[0].rstrip("/")

    def page(self, path: str = "/") -> Page:
        """Open a page, after the sign-in, and wait until it is live."""
        page = self.context.pages[0] if self.context.pages else self.context.new_page()
        if page.url == "about:blank":
            page.goto(self.address)
            page.get_by_role("heading", name="Runs").wait_for()
        page.goto(self.base + path)
        if self.context.browser is not None and page.locator("#live").count():
            page.locator("#live:has-text('Live')").wait_for(state="attached")
        return page


@dataclass(slots=True)
class Task:
    """What a person does on a page for one purpose, with clicks and keys counted."""

    page: Page
    clicks: int = 0
    keys: int = 0

    def click(self, what: Locator) -> None:
        """Click on an element that the person sees."""
        what.click()
        self.clicks += 1

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.page.keyboard.type(text)
        self.keys += len(text)

    def press(self, key: str) -> None:
        """Press a key, with its modifiers."""
        self.page.keyboard.press(key)
        self.keys += 1

    @property
    def effort(self) -> tuple[int, int]:
        """Clicks and keys so far."""
        return self.clicks, self.keys


COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
"""Rules of axe-core about colours, in which alone a dark page differs: `test_dark_differs_in_colours_alone`."""


def violations(page: Page) -> list[str]:
    """Return the faults that axe-core finds on a page, light and dark."""
    program = node_modules(Path(__file__).parent / "accessibility") / "axe-core" / "axe.min.js"
    page.evaluate(program.read_text(encoding="utf-8"))
    # The size of a target is a rule of WCAG 2.2 that axe-core leaves out by default.
    found = _audit(page, {"rules": {"target-size": {"enabled": True}}})
    page.emulate_media(color_scheme="dark")
    found += _audit(page, COLOURS)
    page.emulate_media(color_scheme="light")
    return found


def _audit(page: Page, options: dict[str, Any]) -> list[str]:
    # axe-core takes a control that is half below the sticky header for too small, although a person scrolls: so it
    # looks at the page from its top.
    found = page.evaluate(
        "async options => { const y = scrollY; scrollTo(0, 0);"
        " const found = await axe.run(options); scrollTo(0, y); return found.violations }",
        options,
    )
    return [_fault(one["id"], node) for one in found for node in one["nodes"]]


def _fault(name: str, node: dict[str, Any]) -> str:
    """Return a fault with its element and the elements that it has to do with."""
    checks = [check for kind in ("any", "all", "none") for check in node[kind]]
    others = [other["html"][:200] for check in checks for other in check["relatedNodes"]]
    return "; ".join([f"{name}: {node['html'][:200]}", *others])


def overflow(page: Page) -> list[str]:
    """Return the elements that make a page wider than its window."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
        [...document.querySelectorAll('body *')]
        .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll, .counts, svg'))
        .slice(0, 5).map(one => one.tagName + '.' + one.className)"""
    )
