"""The files of evaluation sets: YAML and JSON lines, their faults, and recorded runs as cases."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, MemoryJournal, tool
from orchestrator.evaluation import EvaluationCase, evaluate, load_cases
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.evaluation import case_file
from orchestrator.runtime.evaluation.case_file import cases_text, recorded_case

X = "- name: a\n  input: x\n"

WHOLE = """
# what support must be able to do
defaults:
  tags: [smoke]
  expect:
    at_most: {cost: 0.05, requests: 4}
cases:
  - name: refund
    input: Refund order 7
    metadata: {user: 12, since: 2026-01-01}
    answers:
      refund: approve
      transfer: {reject: no}
    expect:
      output: {contains: refunded, schema: {type: string}}
      tools: {called: [search, {tool: refund, arguments: {order: 7}}]}
  - name: greets
    input: |
      Hello
    tags: chat
    expect:
      output: Hello!
      at_most: {cost: 0.01}
    reference: {tone: polite}
"""


@pytest.fixture
def cases(tmp_path: Path) -> Any:
    def load(text: str, name: str = "set.yaml") -> list[EvaluationCase]:
        file = tmp_path / name
        file.write_text(text)
        return load_cases(file)

    return load


def test_a_yaml_file_has_cases_over_their_defaults(cases: Any) -> None:
    refund, greets = cases(WHOLE)
    assert (refund.name, refund.tags, refund.metadata) == (
        "refund",
        ("smoke",),
        {"user": 12, "since": "2026-01-01"},
    )
    assert (refund.answers["refund"].decision, refund.answers["transfer"].text) == ("approve", "no")
    assert [one.tool for one in refund.expect.tools.called] == ["search", "refund"]
    assert (refund.expect.at_most.cost, refund.expect.at_most.requests) == (0.05, 4)
    assert (greets.input, greets.tags, greets.expect.output.equals) == ("Hello\n", ("chat",), "Hello!")
    assert (greets.expect.at_most.cost, greets.expect.at_most.requests) == (0.01, 4)


def test_json_lines_have_one_case_each(cases: Any) -> None:
    lines = '{"name": "a", "input": "x"}\n\n{"name": "b", "messages": [{"role": "user", "content": "y"}]}\n'
    assert [case.name for case in cases(lines, "set.jsonl")] == ["a", "b"]


def test_scalars_are_those_of_json(cases: Any) -> None:
    words = "no, yes, on, 12:30, 010, 1e3, 1_000, 2026-01-01, ~, true, -1.5, .5, NaN, 0x1F"
    (case,) = cases(f"- name: x\n  input: y\n  expect: {{output: {{equals: [{words}]}}}}")
    assert case.expect.output.equals == [
        *("no", "yes", "on", "12:30", "010", 1000.0, "1_000", "2026-01-01"),
        *(None, True, -1.5, 0.5, "NaN", "0x1F"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (X + "  expcet: {}\n", "case 'a', line 3: unknown key 'expcet'; did you mean 'expect'? allowed: name, "),
        (
            X + "  expect:\n    output:\n      contians: y\n",
            "case 'a', line 5: unknown key 'expect.output.contians'; did you mean 'contains'? allowed: equals,",
        ),
        (
            X + "  expect: {tools: {called: [{tol: y}]}}\n",
            "line 3: expect.tools.called.0.tool is missing",
        ),
        (X + "  expect: {outcome: done}\n", "line 3: expect.outcome: input should be 'completed', "),
        (X + "  expect: {reason: budget}\n", "line 3: expect.reason: input should be "),
        (X + "  answers: {pay: maybe}\n", "line 3: answers.pay.decision: input should be 'approve', "),
        (X + "  answers: {pay: {reject: a, respond: b}}\n", "line 3: "),
        (X + "  expect: {at_most: {cost: -1}}\n", "line 3: expect.at_most.cost: input should be greater"),
        (X + "  expect: {output: {matches: '(?=x)'}}\n", "line 3: expect.output: matches cannot be used: "),
        (X + "  expect: {output: {schema: {type: txt}}}\n", "line 3: expect.output: schema cannot be used: "),
        ("- name: a\n\n- name: b\n  input: x\n", "case 'a', line 1: give either input (a text) or messages"),
        ("- name: a\n  input: ' '\n", "case 'a', line 1: the input is empty"),
        ("- input: x\n", "case 1, line 1: name is missing"),
        ("- name: 7\n  input: x\n", "case 1, line 1: name: input should be a valid string (it is 7)"),
        ('- name: "a\\nb"\n  input: x\n', "line 1: name: give 1 to 200 printable characters"),
        (X + "- name: a\n  input: y\n", "case 'a', line 3: the name is that of the case in line 1"),
        (X + "  input: y\n", "line 3: the key 'input' is given twice"),
        ("- name: a\n  input: [x\n", "line 3: this is not YAML: "),
        ("- name: !!python/object:os.system a\n  input: x\n", "line 1: this is not YAML: could not determine"),
        ("- &a [*a]\n", "it is nested too deeply"),
        ("- just text\n", "case 1, line 1: a case is a mapping with name, input and expect"),
        ("case: []\n", "line 1: unknown key 'case'; did you mean 'cases'? allowed: defaults, cases"),
        ("cases: 3\n", "give a list of cases, or a mapping with cases and defaults"),
        ("defaults:\n  expct: {}\ncases:\n  - name: a\n    input: x\n", "case 'a', line 2: unknown key 'expct'"),
        ("", "has no cases"),
        ("cases: []", "has no cases"),
    ],
)  # fmt: skip
def test_a_fault_is_one_sentence_with_file_case_and_line(cases: Any, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cases(text)
    message = str(refused.value)
    assert said in message
    assert "set.yaml" in message
    assert "\n" not in message


def test_aliases_that_expand_without_end_are_refused(cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert case_file._MOST_PARTS == 1_000_000
    monkeypatch.setattr(case_file, "_MOST_PARTS", 10_000)
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    with pytest.raises(ConfigError, match="aliases make more than 10,000 parts"):
        cases(f"defaults:\n  l0: &l0 [x]\n{levels}".replace("\nl", "\n  l"))
    monkeypatch.setattr(case_file, "_MOST_PARTS", 4)
    assert len(cases("- name: a\n  input: x\n")) == 1, "a list, a case and its two values"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"name": "a", "input": "x", "tag": []}',
            "case 'a', line 2: unknown key 'tag'; did you mean 'tags'?",
        ),
        ('{"name": "a", "input": "x"', "line 2: this is not JSON"),
        (
            '{"name": "a", "name": "b", "input": "x"}',
            "line 2: this is not JSON (the key 'name' is given twice)",
        ),
        ('{"name": "a", "input": "x", "threshold": NaN}', "line 2: this is not JSON (NaN is no JSON number)"),
        ("[" * 100_000, "line 2: it is nested too deeply"),
        ("[]", "case 2, line 2: a case is a mapping"),
        ('{"name": "first", "input": "x"}', "case 'first', line 2: the name is that of the case in line 1"),
    ],
)
def test_a_fault_in_json_lines_names_the_line(cases: Any, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cases(f'{{"name": "first", "input": "x"}}\n{line}\n', "set.jsonl")
    assert said in str(refused.value)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "set.toml").write_text("")
    with pytest.raises(ConfigError, match=r"must end in \.yaml, \.yml or \.jsonl"):
        load_cases(tmp_path / "set.toml")
    (tmp_path / "set.yaml").write_bytes(b"- name: \xff")
    with pytest.raises(ConfigError, match="byte 8 is not UTF-8"):
        load_cases(tmp_path / "set.yaml")
    with pytest.raises(FileNotFoundError):
        load_cases(tmp_path / "none.yaml")


# ---- recorded runs ----

SECRET = "sk-abcdefghijklmnop1234"  # noqa: S105 - of a test


@tool(effect="irreversible", approval=True)
def pay(amount: int, note: str) -> str:
    """Pay."""
    return f"paid {amount}"


def payer(request: Any) -> Any:
    said = request.messages[-1]
    return f"Done: {said.content}" if said.role == "tool" else call("pay", amount=3, note=f"key {SECRET}")


def paying(journal: MemoryJournal) -> Agent[Any, Any]:
    return Agent(
        FunctionLLM(payer),
        name="payer",
        tools=[pay],
        instructions="Pay what is owed.",
        journal=journal,
        observers=(),
    )


async def _recorded(said: Any, decision: str, **more: Any) -> tuple[dict[str, Any], MemoryJournal]:
    journal = MemoryJournal()
    agent = paying(journal)
    running = asyncio.ensure_future(agent.run(said, run_id="r1", metadata={"user": "ann"}))
    while not await _asks(agent):  # noqa: ASYNC110 - a condition of another task
        await asyncio.sleep(0.01)
    decide: Any = getattr(agent, decision)
    await (decide("r1", "by a clerk") if decision == "respond" else decide("r1", why="enough", **more))
    await running
    return await recorded_case("r1", await journal.load("r1")), journal


async def _asks(agent: Agent[Any, Any]) -> bool:
    return bool([head async for head in agent.runs.journal.runs(waiting=True)])


@pytest.mark.parametrize(
    ("decision", "answers", "tools"),
    [
        (
            "approve",
            "approve",
            {"called": [{"tool": "pay", "arguments": {"amount": 3, "note": "key [redacted 1]"}}]},
        ),
        ("reject", {"reject": "enough"}, {}),
        ("respond", {"respond": "by a clerk"}, {}),
    ],
)
def test_a_recorded_run_becomes_a_case_without_its_secrets(decision: str, answers: Any, tools: Any) -> None:
    case, _ = asyncio.run(_recorded(f"Pay Ann with {SECRET}", decision))
    assert SECRET not in json.dumps(case)
    assert "ann" not in json.dumps(case)
    assert (case["name"], case["input"]) == ("r1", "Pay Ann with [redacted 1]")
    assert case["answers"] == {"pay": answers}
    assert case["expect"] == {"outcome": "completed", "tools": {**tools, "asked": ["pay"]}}


def test_the_arguments_that_a_person_edited_are_part_of_the_answer() -> None:
    async def work() -> None:
        edited = {"amount": 2, "note": "less"}
        case, _ = await _recorded("pay", "approve", arguments=json.dumps(edited))
        assert case["answers"] == {"pay": {"approve": edited}}
        assert case["expect"]["tools"]["called"] == [{"tool": "pay", "arguments": edited}]
        report = await evaluate(paying(MemoryJournal()), [EvaluationCase.model_validate(case)])
        assert report.passed, report.results

    asyncio.run(work())


@pytest.mark.parametrize("suffix", [".yaml", ".jsonl"])
def test_the_case_of_a_recorded_run_passes_with_the_same_agent(tmp_path: Path, suffix: str) -> None:
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]

    async def work() -> None:
        case, _ = await _recorded([*history, {"role": "user", "content": "pay"}], "reject")
        file = tmp_path / f"set{suffix}"
        file.write_text(cases_text([case], suffix))
        report = await evaluate(paying(MemoryJournal()), load_cases(file))
        assert report.passed, report.results

    asyncio.run(work())


def test_a_structured_output_is_expected_as_it_was() -> None:
    async def work() -> dict[str, Any]:
        journal = MemoryJournal()
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        agent = Agent(FunctionLLM(lambda _: '{"n": 3}'), output_type=schema, journal=journal, observers=())
        await agent.run("count", run_id="r1")
        return await recorded_case("r1", await journal.load("r1"))

    assert asyncio.run(work()) == {
        "name": "r1",
        "input": "count",
        "expect": {"outcome": "completed", "output": {"equals": {"n": 3}}},
    }
