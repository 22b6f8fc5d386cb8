"""What a person waits for is short, and CI leaves nothing out: the tiers of tests, the Makefile, .ci/run."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.tiers import CAMPAIGN, CHECK, MINUTES, SELECTED, TIERS, examples

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_CANARY: dict[str, str] = {
    "benchmarks/test_console.py": "what is measured: console/ tests the pages",
    "benchmarks/test_instructions.py": "a gate of speed, no behaviour",
    "benchmarks/test_stores.py": "what is measured: journal/ tests the stores",
    "benchmarks/test_workers.py": "what is measured: engines/test_worker.py tests the workers",
    "cli/test_demo.py": "examples/, cli/test_run.py and cli/test_approval.py have what the demonstrations show",
    "cli/test_mcp_kill.py": "cli/test_mcp_serve.py continues a call after a kill -9, with the answer of a person",
    "console/test_tasks.py": "console/test_browser.py has a browser, console/test_pages.py has the pages",
    "contract/test_core.py": "make check reads what the core imports",
    "contract/test_extending.py": "contract/test_graphs.py and guards/test_verdict.py compare the derived files",
    "contract/test_pythons.py": "contract/test_distribution.py embeds the wheel in the running Python",
    "contract/test_layers.py": "contract/test_public_api.py imports each namespace first",
    "contract/test_guide_workers.py": "cli/test_worker.py starts a worker",
    "telemetry/test_multiprocess.py": "telemetry/test_exposition_processes.py has the page of several processes",
    "crash/test_approval_kill.py": "cli/test_approval_terminal.py kills a plan in its execution",
    "crash/test_branches_kill.py": "runtime/branches/test_fan_out_recovery.py crashes at the writes, in one process",
    "crash/test_fleet.py": "cli/test_worker.py and engines/test_worker.py have a worker each",
    "crash/test_full_disk.py": "journal/test_sqlite_reserve.py has full disks without a mount",
    "crash/test_log_damage.py": "journal/test_sqlite_mark.py and crash/test_damage.py damage the log",
    "crash/test_postgres_failover.py": "journal/test_postgres_server.py stops a server",
    "crash/test_upgrade_kill.py": "journal/test_upgrade.py upgrades, and interrupts an upgrade, in one process",
    "crash/test_power_files.py": "crash/test_power.py loses power, crash/test_rollback_image.py undoes changes",
    "crash/test_program_kill.py": "runtime/test_program_recovery.py ends programs that survived",
    "crash/test_rolling_deploy.py": "cli/test_worker.py starts workers, engines/test_versions.py migrates",
    "crash/test_run_cancel.py": "kernel/test_cancel.py and runtime/test_cancellation.py cancel at chosen places",
    "crash/test_takeover.py": "journal/test_sqlite_lease.py lets a lease expire",
    "examples/test_coding.py": "examples/test_orders.py has a command of a guide, cli/test_ralph.py a coding loop",
    "kernel/test_long_run.py": "kernel/test_driver.py drives runs of few turns",
    "dashboards/test_helm.py": "npm installs 37 MB: dashboards/test_pack.py reads the files of the chart",
    "dashboards/test_live_hidden.py": "dashboards/test_rules.py tries its rules, telemetry/test_cost.py its metrics",
    "dashboards/test_live.py": "dashboards/test_rules.py and test_alertmanager.py try rules and routes",
    "engines/test_stubborn_process.py": "cli/test_stop.py ends a process whose code ignores it",
    "runtime/test_pipeline_properties.py": "runtime/test_pipeline.py takes each edge",
    "runtime/test_coding_agents.py": "npm installs a gigabyte: test_coding_preset.py runs a small program as one",
    "telemetry/test_conservation_kills.py": "telemetry/test_log.py kills a process that writes lines",
}
"""File of campaigns -> where its behaviour is tried in `make test`."""


def commands(target: str) -> str:
    """What `make` would run for a target, once it is set up."""
    made = subprocess.run(
        ["make", "--dry-run", "--old-file", ".venv/.ready", target],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout


def test_make_test_leaves_out_the_campaign_and_make_campaign_makes_up_for_it() -> None:
    assert f'-m "{SELECTED["test"]}"' in commands("test")
    assert re.search(rf"^TEST_TIER=campaign .*-m pytest .* -m \"{SELECTED[CAMPAIGN]}\"", commands("campaign"))


def test_make_check_runs_the_tests_that_read_sources_and_guides(request: pytest.FixtureRequest) -> None:
    (line,) = [line for line in commands("check").splitlines() if "-m pytest" in line]
    assert line.partition(" -m pytest ")[2] == (
        '-q -m "check and not campaign" '
        "$(grep -lE '^(pytestmark = |@)pytest.mark.check' tests/contract/test_*.py)"
    )
    collected = request.config.stash[TIERS]
    assert {path.parent for path, counted in collected.items() if counted[CHECK]} <= {ROOT / "tests/contract"}


@pytest.mark.parametrize("target", ["coverage", "soak"])
def test_coverage_and_soak_leave_out_neither_tier(target: str) -> None:
    (line,) = [line for line in commands(target).splitlines() if "-m pytest" in line]
    assert re.findall(r"-m \"(.*?)\"", line) == (["not bench"] if target == "coverage" else [])
    assert re.match(r"(TEST_TIER=campaign|ORCHESTRATOR_SOAK=1) ", line)


@pytest.mark.check
@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("make test", {"README.md", "CONTRIBUTING.md", "Makefile"}),
        ("make campaign", {"CONTRIBUTING.md", "Makefile"}),
        (".ci/run", {"CONTRIBUTING.md"}),
    ],
)
def test_the_guides_and_the_makefile_say_the_same_of_the_time_that_a_tier_takes(
    command: str, files: set[str]
) -> None:
    said: dict[str, list[str]] = {}
    for file in ("README.md", "CONTRIBUTING.md", "Makefile"):
        text = (ROOT / file).read_text(encoding="utf-8")
        text = re.sub(r"^(?=[a-z-]+:.*##)", "make ", text, flags=re.MULTILINE)
        if minutes := re.findall(rf"{re.escape(command)}(?![\w-]).*?\b(\d+) min", text):
            said[file] = minutes
    assert said == {file: [str(MINUTES[command])] for file in files}


def test_each_file_of_campaigns_has_a_canary_in_make_test(request: pytest.FixtureRequest) -> None:
    whole = not any("::" in argument for argument in request.config.args)
    collected: dict[Path, Counter[str]] = request.config.stash[TIERS] if whole else {}
    silent = {
        path.relative_to(ROOT / "tests").as_posix()
        for path, counted in collected.items()
        if counted[CAMPAIGN] and not counted["test"]
    }
    assert sorted(silent - WITHOUT_CANARY.keys()) == []
    assert {name for name in WITHOUT_CANARY if ROOT / "tests" / name in collected} <= silent
    assert all((ROOT / "tests" / name).exists() for name in WITHOUT_CANARY)


@pytest.mark.parametrize(("count", "least"), [(20, 6), (100, 10), (250, 10)])
def test_a_property_has_some_examples_in_each_tier(count: int, least: int) -> None:
    assert least <= examples(count) <= 10 * count
    assert examples(count, count) <= count
