"""What is recorded of one graph's own: the values of its cases, and whether these notice a spoilt expression."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.ops.pack import of_graph, yaml
from orchestrator.ops.rule import Profile, group, recording_data
from orchestrator.ops.run_flow import RALPH_RECORDINGS
from orchestrator.ops.trial import RECORDED_CASES, recorded_tests

SPOILS = [
    ('event=~"qualified"', 'event=~"rework"'),
    ('event=~"attempts_exhausted"', 'event=~"error"'),
    ("rework|executor_failed", "rework"),
    ("qualified|attempts_exhausted", "qualified"),
    ('event=~"qa_needed"', 'event=~"planner_completed"'),
    ('machine="ralph", event', "event"),
]


def cases_pass(folder: Path, spoil: tuple[str, str] | None = None) -> bool:
    profile = Profile()
    recorded = (
        recording_data(rule, profile) for rule in RALPH_RECORDINGS
    )  # the others would be evaluated, too
    rules = yaml({"groups": [group("orchestrator-graphs", recorded, profile.interval)]})
    if spoil is not None:
        assert spoil[0] in rules
        rules = rules.replace(*spoil)
    (folder / "rules.yml").write_text(rules)
    (folder / "cases.yml").write_text(
        yaml(recorded_tests(RECORDED_CASES, {"orchestrator-graphs": "rules.yml"}))
    )
    done = subprocess.run(
        ["promtool", "test", "rules", folder / "cases.yml"], check=False, capture_output=True, timeout=120
    )
    return done.returncode == 0


@pytest.mark.system("promtool")
def test_each_recorded_expression_has_the_values_of_its_cases(tmp_path: Path) -> None:
    assert {case.rule for case in RECORDED_CASES} == {rule.name for rule in RALPH_RECORDINGS}
    assert cases_pass(tmp_path)


@pytest.mark.campaign
@pytest.mark.system("promtool")
@pytest.mark.parametrize("spoil", SPOILS, ids=[before for before, _ in SPOILS])
def test_a_spoilt_expression_is_noticed(spoil: tuple[str, str], tmp_path: Path) -> None:
    assert not cases_pass(tmp_path, spoil)


def test_they_are_recorded_where_the_graph_is_and_nowhere_else() -> None:
    own = {rule.name for rule in RALPH_RECORDINGS}
    assert own <= {rule.name for rule in of_graph(RALPH)}
    assert not own & {rule.name for rule in of_graph(LLM_LOOP)}
