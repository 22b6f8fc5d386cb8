"""Each kind of drawing in a browser, light and dark: nothing is cut off or covered, and every text can be read.

`DRAWING_PICTURES=1` writes the pictures of the guide anew, into orchestrator/drawing/pictures.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.console.browsing import ROOT, chromium
from tests.drawing.pictures import NAMES, drawings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = ROOT / "orchestrator" / "drawing" / "pictures"
GUIDE = ROOT / "orchestrator" / "machines" / "README.md"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LARGEST = 40_000
"""Bytes of a picture."""
WIDE, HIGH = 1_200, 900
"""The part of a large drawing that its picture shows."""

FAULTS = """() => {
  const faults = [];
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const colour = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const behind = (svg, x, y) => document.elementsFromPoint(x, y).reverse()
    .filter(one => one.tagName === 'rect' && svg.contains(one))
    .reduce((below, one) => {
      const style = getComputedStyle(one), over = colour(style.fill);
      const opacity = (over[3] ?? 1) * Number(style.fillOpacity);
      return below.map((value, at) => value * (1 - opacity) + over[at] * opacity);
    }, [255, 255, 255]);
  for (const svg of document.querySelectorAll('svg.fsm-drawing')) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].filter(one => one.textContent.trim());
    const boxes = texts.map(one => one.getBoundingClientRect());
    texts.forEach((one, at) => {
      const box = boxes[at], name = one.textContent;
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        faults.push(`${name}: outside of the drawing`);
      for (let other = 0; other < at; other++) {
        const that = boxes[other];
        if (Math.min(box.right, that.right) - Math.max(box.left, that.left) > 1 &&
            Math.min(box.bottom, that.bottom) - Math.max(box.top, that.top) > 4)
          faults.push(`${name}: covers ${texts[other].textContent}`);
      }
      one.scrollIntoView({block: 'center', inline: 'center'});
      const now = one.getBoundingClientRect();
      const text = luminance(colour(getComputedStyle(one).fill));
      const page = luminance(behind(svg, (now.left + now.right) / 2, (now.top + now.bottom) / 2));
      const contrast = (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
      if (contrast < 4.5) faults.push(`${name}: contrast ${contrast.toFixed(2)}`);
    });
  }
  return faults;
}"""


@pytest.mark.campaign
@pytest.mark.system("chromium")
def test_nothing_is_cut_off_or_covered_and_every_text_can_be_read(tmp_path: Path) -> None:
    files = list(drawings(tmp_path))  # before the browser, whose event loop runs in this thread
    with chromium() as browser:
        found = [fault for scheme in SCHEMES for fault in _faults(browser, files, scheme)]
    assert "\n".join(found) == ""


def _faults(
    browser: Browser, files: Sequence[tuple[str, Path]], scheme: Literal["light", "dark"]
) -> Iterator[str]:
    context = browser.new_context(color_scheme=scheme, viewport={"width": WIDE, "height": HIGH})
    page = context.new_page()
    for name, file in files:
        page.goto(file.as_uri())
        assert page.locator("svg.fsm-drawing").count(), f"{name} has no drawing"
        yield from (f"{name}, {scheme}: {one}" for one in page.evaluate(FAULTS))
        if os.environ.get("DRAWING_PICTURES"):
            _take_picture(page, PICTURES / f"{name}-{scheme}.webp")


def _take_picture(page: Page, file: Path) -> None:
    """Write the picture of a page, or of the upper left of a large one."""
    size = page.evaluate(
        """() => { scrollTo(0, 0); const drawings = [...document.querySelectorAll('svg.fsm-drawing')];
        const boxes = drawings.map(one => one.getBoundingClientRect());
        return [Math.max(...boxes.map(one => one.right)), Math.max(...boxes.map(one => one.bottom))] }"""
    )
    width, height = min(WIDE, size[0]), min(HIGH, size[1])
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    client = page.context.new_cdp_session(page)
    form = {"format": "webp", "quality": 85, "clip": clip, "captureBeyondViewport": True}
    file.write_bytes(base64.b64decode(client.send("Page.captureScreenshot", form)["data"]))


@pytest.mark.parametrize("name", NAMES)
def test_the_guide_shows_each_picture_light_and_dark(name: str) -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for scheme in SCHEMES:
        file = PICTURES / f"{name}-{scheme}.webp"
        assert f"](../drawing/pictures/{file.name})" in guide
        content = file.read_bytes()
        assert (content[:4], content[8:12]) == (b"RIFF", b"WEBP")
        assert len(content) <= LARGEST
    assert {one.stem.rpartition("-")[0] for one in PICTURES.iterdir()} == {*NAMES}
