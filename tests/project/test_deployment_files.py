"""The Dockerfile, the compose file and the configuration of a new project name only what is there."""

from __future__ import annotations

import fnmatch
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.project.creation import create_project
from orchestrator.web.access import parse_tokens
from tests.project.test_made_project import instructions


def compose(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text())
    return found


def test_every_source_of_a_copy_exists_and_is_not_ignored(pristine: Path) -> None:
    ignored = (pristine / ".dockerignore").read_text().split()
    sources = [
        source
        for word, rest in instructions(pristine / "Dockerfile")
        if word == "COPY"
        for source in rest.split()[:-1]
    ]
    assert sources == ["pyproject.toml", "README.md", "wheels", "shop"]
    for source in sources:
        assert (pristine / source).exists()
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored)


def test_the_image_starts_the_service_as_another_user_than_root(pristine: Path) -> None:
    found = dict(instructions(pristine / "Dockerfile"))
    assert json.loads(found["CMD"])[:3] == ["python", "-m", "shop.service"]
    assert int(found["USER"]) > 0
    assert found["EXPOSE"] in json.loads(found["CMD"])
    assert f":{found['EXPOSE']}/readyz" in found["HEALTHCHECK"]


def test_the_token_is_new_for_each_project_private_and_no_part_of_git_or_the_image(
    pristine: Path, tmp_path: Path
) -> None:
    other = create_project("shop", tmp_path)
    found = [(folder / ".env").read_text().splitlines()[-1] for folder in (pristine, other)]
    assert found[0] != found[1]
    for line in found:
        assert len(parse_tokens(line.removeprefix("SHOP_TOKEN="), "the file")["operator"]) >= 32
    assert {oct((folder / ".env").stat().st_mode)[-3:] for folder in (pristine, other)} == {"600"}
    for ignored in (".gitignore", ".dockerignore"):
        assert ".env" in (pristine / ignored).read_text().splitlines()
    assert not any(
        found[0].removeprefix("SHOP_TOKEN=") in file.read_text(errors="replace")
        for file in pristine.rglob("*")
        if file.is_file() and file.name != ".env"
    )


def test_the_compose_file_starts_nothing_without_a_token_and_names_the_host_of_prometheus(
    pristine: Path,
) -> None:
    environment = compose(pristine)["services"]["service"]["environment"]
    assert environment["SHOP_TOKEN"].startswith("${SHOP_TOKEN:?")
    config = yaml.safe_load((pristine / "ops" / "prometheus.yml").read_text())
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert environment["SHOP_HOSTS"] == target.partition(":")[0]


def test_what_the_compose_file_mounts_builds_and_waits_for_is_there(pristine: Path) -> None:
    said = compose(pristine)
    services = said["services"]
    assert set(services) == {"service", "postgres", "prometheus", "alertmanager"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (pristine / source).exists() if source.startswith(".") else source in said["volumes"]
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        assert set(service.get("depends_on", ())) <= set(services)
        assert (
            (pristine / service["build"] / "Dockerfile").exists() if "build" in service else service["image"]
        )
    database = services["postgres"]["environment"]
    user, password, name = (database[f"POSTGRES_{part}"] for part in ("USER", "PASSWORD", "DB"))
    journal = services["service"]["environment"]["ORCHESTRATOR_JOURNAL"]
    assert journal == f"postgresql://{user}:{password}@postgres/{name}"


@pytest.mark.system("promtool", "amtool")
def test_prometheus_and_alertmanager_accept_their_configuration(pristine: Path) -> None:
    services = compose(pristine)["services"]
    for name, program in (("prometheus", "promtool check config"), ("alertmanager", "amtool check-config")):
        source, target, _ = services[name]["volumes"][0].split(":")
        (option,) = services[name]["command"]
        file = Path(option.removeprefix("--config.file=")).relative_to(target)
        done = subprocess.run(
            [*program.split(), pristine / source / file], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    config = yaml.safe_load((pristine / "ops" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["service:8000"]}]
    assert config["alerting"]["alertmanagers"][0]["static_configs"] == [{"targets": ["alertmanager:9093"]}]
