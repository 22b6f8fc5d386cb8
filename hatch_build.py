"""What a package index shows: the addresses of the project, and README.md with links that lead somewhere there.

The address of the repository has one place, `repository` in pyproject.toml. From it come `project.urls` and the links
of the page: on an index there are no files beside it. While the project has no public address, `repository` is not set:
it has no URLs then, the links become plain text, and the pictures and the list of contents are left out. `make release`
reports that, because an invented address would lead readers to another project.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CONTENTS = re.compile(r"^(- \[[^\]]+\]\(#[^)]+\)\n)+\n", re.MULTILINE)
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")
_FILE = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://)([^)\s]+)\)")


def index_page(readme: str, repository: str = "") -> str:
    """Return the text for a package index; `repository` is the address of the folder of files, without a slash."""
    page = CONTENTS.sub("", readme)
    page = _PICTURE.sub(rf"![\1]({repository}/\2?raw=true)" if repository else "", page)
    return _FILE.sub(rf"[\1]({repository}/\2)" if repository else r"\1", page)


def project_urls(repository: str) -> dict[str, str]:
    """Return `project.urls` for the address of the repository, without a slash at its end; none without an address."""
    if not repository:
        return {}
    files = files_of(repository)
    return {
        "Homepage": repository,
        "Documentation": f"{files}/README.md#guides",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def files_of(repository: str) -> str:
    """Return the address of the folder of files; empty without a repository."""
    return repository and f"{repository}/blob/main"


class IndexPage(MetadataHookInterface):
    """Set the long description and the addresses of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls`."""
        repository = str(self.config.get("repository", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": index_page(text, files_of(repository)),
        }
        metadata["urls"] = project_urls(repository)
