"""`make docs`: the documentation site, into build/docs; it opens as a file and below any path of a server.

    python -m tests.documentation FOLDER

The pages are the guides (the READMEs of the folders, nothing is written twice), the runbooks, and an API reference of
the public names. They keep their paths, so that links between READMEs are links between pages; a source file that a
guide links to becomes a page. Links to what is no page, to a missing anchor, and any file of another host are errors.

Zensical is the successor of Material for MkDocs, by its authors. Both were tried on these pages: both took about the
same time, and both search from a file. Material is no longer developed, and MkDocs hardly is. Zensical is young, so its
version is pinned and the result is checked, in its HTML and in a browser (`test_documentation.py`).

The generator has an environment of its own, so that the lock of the library and its tests stays small. It reads the
sources and imports none of them.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Mapping
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import unquote, urlsplit

from hatch_build import CONTENTS
from orchestrator.cli.docs import GUIDES, SECTIONS
from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.environments import environment
from tests.environment import ROOT
from tests.node import node_modules

NAMESPACES: Final = (
    "orchestrator",
    "orchestrator.approval",
    "orchestrator.backtest",
    "orchestrator.errors",
    "orchestrator.evaluation",
    "orchestrator.events",
    "orchestrator.kernel",
    "orchestrator.notification",
    "orchestrator.pipeline",
    "orchestrator.providers",
    "orchestrator.ralph",
    "orchestrator.rlm",
    "orchestrator.telemetry",
    "orchestrator.testing",
    "orchestrator_guards",
)
"""Each is a page of the reference, with the names of its `__all__`."""

_HERE = Path(__file__).parent
_ENVIRONMENT = ROOT / ".venv-docs"
_MORE = {
    "Operate": ["dashboards/metrics.md", "SECURITY.md"],
    "Internals": ["CONTRIBUTING.md", "CHANGELOG.md"],
}
"""Pages that are no guides, by the section that lists them."""
_ERGONOMICS = "tests/benchmarks/peers/ergonomics/README.md"
_ASSETS = {
    "mermaid.min.js": "mermaid/dist/mermaid.min.js",
    "iframe-worker.js": "iframe-worker/shim/index.js",
    "inter.woff2": "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2",
    "jetbrains-mono.woff2": "@fontsource-variable/jetbrains-mono/files/jetbrains-mono-latin-wght-normal.woff2",
}
"""A file of the site's `assets/npm` -> where npm installs it."""
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

_CONFIGURATION = """
[project]
site_name = "fsm-orchestrator"
site_description = "Run LLM agents as explicit finite state machines in Python."
copyright = "MIT license"
docs_dir = "source"
site_dir = "site"
use_directory_urls = false
extra_css = ["assets/site.css"]
nav = [
{navigation}
]

[project.extra]
generator = false
polyfills = ["assets/npm/iframe-worker.js"]

[project.theme]
font = false
language = "en"
features = [
  "content.code.copy", "content.tooltips", "navigation.footer", "navigation.indexes", "navigation.path",
  "navigation.tabs", "navigation.top", "search.highlight", "toc.follow",
]
icon.logo = "lucide/workflow"

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Use light colours"
[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Use dark colours"
[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Use the colours of the system"

[project.plugins.search]
[project.plugins.offline]
[project.plugins.mkdocstrings.handlers.python]
paths = {paths}
[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
docstring_options.warn_unknown_params = false
docstring_options.warn_missing_types = false
extensions = ["{extension}"]
filters = ["!^_", "!^hosting$"]
heading_level = 2
inherited_members = false
members_order = "source"
merge_init_into_class = true
preload_modules = ["orchestrator_callbacks", "orchestrator_guards"]
separate_signature = true
line_length = 88
show_overloads = false
docstring_section_style = "list"
show_bases = false
show_root_full_path = false
show_root_heading = true
show_source = false
show_symbol_type_heading = true
show_symbol_type_toc = true
signature_crossrefs = true

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
toc.permalink = true
toc.slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
pymdownx.highlight.pygments_lang_class = true
pymdownx.inlinehilite = {{}}
pymdownx.superfences.custom_fences = [
  {{ name = "mermaid", class = "mermaid", format = "pymdownx.superfences.fence_code_format" }},
]
"""


class DocumentationError(Exception):
    """The site cannot be built, or a check of its pages failed."""


def main(folder: Path) -> None:
    """Write the site into the folder. Raises DocumentationError with each broken link and each foreign file."""
    work = ROOT / "build" / "documentation"
    work.parent.mkdir(exist_ok=True)
    with work.with_name("documentation.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make docs` and workers of xdist build in the same folder
        _build(work)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work / "site", folder)


def _build(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    source = work / "source"
    pages = write_guides(source) | write_reference()
    for page, text in pages.items():
        file = source / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    _copy_assets(source / "assets")
    (work / "zensical.toml").write_text(configuration(pages), encoding="utf-8")
    command = [_zensical(), "build", "--strict", "--clean", "--config-file", work / "zensical.toml"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        problems, *_ = f"{done.stdout}{done.stderr}".partition("Traceback (most recent call last)")
        raise DocumentationError(f"zensical refuses the pages in {source}:\n{problems}")
    if broken := problems_of(work / "site"):
        raise DocumentationError("\n".join(broken))


def write_guides(source: Path) -> dict[str, str]:
    """Return the text of each page by its path; copy the pictures that they show into `source`."""
    paths = (
        [guide.path for guide in GUIDES] + [path for more in _MORE.values() for path in more] + [_ERGONOMICS]
    )
    paths += [file.relative_to(ROOT).as_posix() for file in (ROOT / "dashboards" / "runbooks").glob("*.md")]
    pages, linked = {}, set[Path]()
    for path in paths:
        text = CONTENTS.sub("", (ROOT / path).read_text(encoding="utf-8"), count=1)
        pages[path] = with_links(text, path, paths, linked)
        if "```mermaid" in text:
            depth = "../" * path.count("/")
            pages[path] += f'\n<script src="{depth}assets/npm/mermaid.min.js"></script>\n'
    for file in linked:
        name = file.relative_to(ROOT).as_posix()
        if _is_text(file):
            language = "python" if file.suffix == ".py" else "text"
            code = file.read_text(encoding="utf-8")
            pages[f"{name}.md"] = f"# {file.name}\n\n`{name}`\n\n````{language}\n{code}````\n"
        else:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, source / name)
    return pages


def with_links(text: str, page: str, pages: Container[str], linked: set[Path]) -> str:
    """Return the text of a page whose links to source files lead to their pages; add what it links to, and pictures."""

    def replaced(match: re.Match[str]) -> str:
        before, path, after = match.groups()
        file = (ROOT / page).parent.joinpath(path).resolve()
        if urlsplit(path).scheme or not file.is_file() or file.relative_to(ROOT).as_posix() in pages:
            return match[0]  # another host, a page, or a broken link, which the generator refuses
        linked.add(file)
        return f"{before}{path}{'.md' if _is_text(file) else ''}{after}"

    parts = _FENCE.split(text)  # every second one is a block of code
    return "".join(part if index % 2 else _LINK.sub(replaced, part) for index, part in enumerate(parts))


def _is_text(file: Path) -> bool:
    return file.suffix in {".md", ".py", ""}


def write_reference() -> dict[str, str]:
    """Return a page for each public namespace, and one that lists them."""
    rows, pages = [], {}
    for namespace in NAMESPACES:
        module = import_module(namespace)
        (summary, *_) = (module.__doc__ or "").strip().splitlines()
        names = sorted(public_names(module))
        entries = [f'<a id="{name}"></a>\n\n::: {namespace}.{name}\n' for name in names]
        pages[f"api/{namespace}.md"] = f"# {namespace}\n\n{summary}\n\n" + "\n".join(entries)
        rows.append(f"| [`{namespace}`]({namespace}.md) | {len(entries)} | {summary} |")
    table = "\n".join(("| module | names | contents |", "|---|---|---|", *rows))
    pages["api/README.md"] = (
        f"# API reference\n\nThe public names, with what their docstrings say.\n\n{table}\n"
    )
    return pages


def public_names(module: ModuleType) -> list[str]:
    """Return `__all__` of a module, or the public names that it defines."""
    defined = [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return getattr(module, "__all__", [name for name in defined if not name.startswith("_")])


def configuration(pages: Mapping[str, str]) -> str:
    """Return the configuration of the generator, with the navigation."""
    runbooks = sorted(page for page in pages if page.startswith("dashboards/runbooks/"))
    lines = []
    for section in SECTIONS:
        entries = [guide.path for guide in GUIDES if guide.section == section] + _MORE.get(section, [])
        if section == "Operate":
            lines.append(_entry(section, entries, _entry("Runbooks", runbooks)))
        else:
            lines.append(_entry(section, entries))
    lines.append(_entry("API reference", ["api/README.md", *(f"api/{name}.md" for name in NAMESPACES)]))
    paths = [str(ROOT), str(ROOT / "callbacks"), str(ROOT / "guards")]
    return _CONFIGURATION.format(navigation=",\n".join(lines), paths=paths, extension=_HERE / "examples.py")


def problems_of(site: Path) -> list[str]:
    """Return the broken links, missing anchors, and files of other hosts of all pages, one line each."""
    pages = {file: _Page(file) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}
    problems = []
    for file, page in pages.items():
        name = file.relative_to(site).as_posix()
        problems += [f"{name}: loads {address}" for address in page.loaded if urlsplit(address).netloc]
        for address in sorted({*page.links, *page.loaded}):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                problems.append(f"{name}: no page or file {address}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                problems.append(f"{name}: no anchor {address}")
    for file in site.rglob("*.css"):
        found = re.findall(r"url\(['\"]?(https?:[^)'\"]+)", file.read_text(encoding="utf-8"))
        problems += [f"{file.relative_to(site)}: loads {address}" for address in found]
    return problems


class _Page(HTMLParser):
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = {"__skip", ""}, set[str](), set[str]()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if "src" in values:
            self.loaded.add(values["src"])
        if "href" in values:
            icon_or_style = tag == "link" and values.get("rel") in {"stylesheet", "icon", "preconnect"}
            (self.loaded if icon_or_style else self.links).add(values["href"])


def _entry(title: str, pages: list[str], *more: str) -> str:
    listed = ", ".join([*(f'"{page}"' for page in pages), *more])
    return f'{{ "{title}" = [{listed}] }}'


def _copy_assets(folder: Path) -> None:
    modules = node_modules(_HERE)
    (folder / "npm").mkdir(parents=True)
    for name, path in _ASSETS.items():
        shutil.copy(modules / path, folder / "npm" / name)
    shutil.copy(_HERE / "site.css", folder / "site.css")


def _zensical() -> Path:
    """Return the generator; its environment is made anew when its lock has changed."""
    try:
        return environment(_ENVIRONMENT, _HERE / "requirements.lock", compiled=False).with_name("zensical")
    except NotMeasured as error:
        raise DocumentationError(f"the generator cannot be installed: {error}") from None


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).resolve())
    except DocumentationError as error:
        sys.exit(f"docs: {error}")
