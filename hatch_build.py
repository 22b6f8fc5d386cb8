"""The page that a package index shows: README.md, with links that lead somewhere there.

On an index there are no files beside the page. With `repository` set in pyproject.toml, links to files become links to
the repository; without it they become plain text, as does the list of contents.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CONTENTS = re.compile(r"^(- \[[^\]]+\]\(#[^)]+\)\n)+\n", re.MULTILINE)
_FILE = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://)([^)\s]+)\)")


def index_page(readme: str, repository: str = "") -> str:
    """Return the text for a package index; `repository` is the address of the folder of files, without a slash."""
    page = _CONTENTS.sub("", readme)
    return _FILE.sub(rf"[\1]({repository}/\2)" if repository else r"\1", page)


class IndexPage(MetadataHookInterface):
    """Set the long description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = index_page(text, str(self.config.get("repository", "")))
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
