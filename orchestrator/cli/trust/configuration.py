"""The configuration files of a project, read with the user's consent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli.trust.project_file import ProjectFile
from orchestrator.cli.trust.refusal import refuse_untrusted_file
from orchestrator.errors import ConfigError
from orchestrator.settings import DEFAULT_FILE, Settings


def project_settings() -> Settings:
    """Return the settings of the working directory: environment, then its `orchestrator.toml`.

    Every member of that file needs consent: a model, an address and a folder decide where prompts and keys are
    sent, parameters can name servers to the provider, and limits, retries and prices decide the costs of a run. Raises
    ConfigError.
    """
    file = settings_file()
    if file is None:
        return Settings.load()
    refuse_untrusted_file(file)
    return Settings.load(file.members)


def settings_file() -> ProjectFile | None:
    """Return the `orchestrator.toml` of the working directory, or None. It is not checked. Raises ConfigError."""
    path = Path(DEFAULT_FILE)
    try:
        return ProjectFile.read(path) if path.is_file() else None
    except OSError as error:
        raise ConfigError(f"{DEFAULT_FILE} cannot be read: {error}") from error


def configuration(file: Path) -> Mapping[str, Any]:
    """Return the content of a configuration file that the user trusts. Raises ConfigError or OSError."""
    found = ProjectFile.read(file)
    refuse_untrusted_file(found)
    return found.members
