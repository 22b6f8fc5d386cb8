"""One concept has one name, and one name means one concept."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.syntax import nodes, tree

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("orchestrator", "callbacks/orchestrator_callbacks", "guards/orchestrator_guards")


class Module(NamedTuple):
    """What the tests read of a module."""

    classes: list[tuple[str, int]]
    """The name and the line of each public class."""
    names: set[str]
    """The names that it gives."""


@cache
def sources() -> dict[Path, Module]:
    """Return the modules of the packages, by path from the root."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {file.relative_to(ROOT): read(file) for file in files}


def read(file: Path) -> Module:
    source = file.read_text(encoding="utf-8")
    classes = [(node.name, node.lineno) for node in nodes(source) if isinstance(node, ast.ClassDef)]
    public = [(name, line) for name, line in classes if not name.startswith("_")]
    return Module(public, set(identifiers(file, source)))


def test_no_public_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, module in sources().items():
        for name, line in module.classes:
            places[name].append(f"{file}:{line}")
    assert len(places) > 700, "the packages were not read"
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# ---- names that the code has ----

TERMS = (
    # the kernel
    "Graph", "Edge", "Machine", "TransitionExecutor", "RunFinalizer", "suspension", "parked", "ConcurrencyLimiter",
    "CancelScope", "HookServices", "Fact", "publish", "TransitionNote", "pending_event", "entry_pending", "lint",
    # engines
    "RunQueue", "OperatorCommand", "CommandHandler", "EngineLog", "AgentRegistry", "engine_directory", "LoopAffinity",
    "OrphanRecovery", "Scheduler",
    # runs
    "RunService", "HumanInput", "child_agent", "parent_run_id", "BudgetAccount", "reserve", "settle", "RequestUsage",
    "memory", "guidance", "admission", "turn_accounting", "resume_plan", "restored", "ChildRunGuard", "RunScope",
    # the other machines, journals and the command line
    "Workspace", "PlanExecutor", "control_request", "error_mapping", "OperationRateLimiter", "Conversation", "reports",
    "model_guard", "JournalAddress", "actor", "signature",
)  # fmt: skip
"""Terms of the vocabulary, each the name of a module, class, function or attribute."""

REPLACED = {
    "above": "parent", "advice": "guidance", "allowance": "budget", "asked": "question, requested", "below": "child",
    "bill": "usage", "carried": "run", "carrier": "service", "carry": "run", "closer": "finalizer", "crew": "registry",
    "desk": "command handler, answers", "diary": "log", "fresh": "entry_pending, current", "ground": "workspace",
    "hands": "executor", "hear": "observe", "heard": "observed", "held": "parked, paused, owned", "home": "affinity",
    "keeper": "pool, services", "leash": "child run guard", "lent": "reserved", "outlook": "resume plan",
    "pace": "rate limit", "paper": "report", "people": "person, actor", "place": "address, position, path",
    "placer": "scheduler", "purse": "budget", "recall": "memory", "referee": "machine", "remark": "note",
    "roster": "directory", "seal": "signature", "seat": "slot", "seats": "limiter", "staff": "agents",
    "standing": "status, position", "stays": "parked", "stepper": "transition executor", "stranger": "untrusted",
    "talk": "conversation", "tell": "publish, print", "tells": "publishes", "told": "published", "trouble": "error",
    "underway": "current run", "unheard": "unpublished", "uptake": "recovery", "wanted": "expected, options",
    "who": "actor", "whoever": "actor", "will": "resume plan", "wish": "control request",
}  # fmt: skip
"""Word that the vocabulary replaces -> what to write instead."""

KEPT = {
    # fields of stored data, which journals of earlier versions have under these names
    "asked": "kind of a journal record, and the ledgers' fields for it",
    "below": "field of the stored usage of a run",
    "told": "fields of stored contexts",
    # words of the command line and of its JSON
    "tell": "command `ralph tell`",
    "will": "member of the JSON of `runs resume --all`",
    "pace": "option `--pace`: seconds before each step",
    "Pace": "its type",
    "_pace": "its value",
    "LONGEST_PACE": "its greatest value",
    "_PACE": "its use in the demonstration",
    # the ordinary meaning
    "QuestionAsked": "event: the run asked a person",
    "Held": "error: another owner holds the lease, the word of leases",
    "above": "an operator of comparisons in trials of alerts",
    "_HOME": "module in which a lazily loaded name lives",
    "place": "module `journal/sqlite/place.py`: where on a file system a journal may lie",
    "PLACE": "the colour of paths",
    "wait_in_place": "wait without parking",
    "waits_in_place": "wait without parking",
}
"""Identifier with a replaced word -> why it has it."""


def identifiers(file: Path, source: str) -> Iterator[str]:
    """Yield the names that a module gives: itself, classes, functions, parameters, attributes, constants, aliases."""
    yield file.stem
    yield from _module_names(tree(source))
    for node in nodes(source):
        match node:
            case ast.ClassDef(name=name, body=body):
                yield name
                yield from _targets(body)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _module_names(module: ast.Module) -> Iterator[str]:
    yield from _targets(module.body)
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname for alias in node.names if alias.asname)


def _targets(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else getattr(node, "target", None)
        for target in targets if isinstance(targets, list) else [targets]:
            if isinstance(target, ast.Name):
                yield target.id


def words(identifier: str) -> set[str]:
    """Return the words of an identifier, in small letters."""
    return {word.lower() for word in re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", identifier)}


def replaced(names: Iterable[str]) -> set[str]:
    """Return the identifiers that have a replaced word, but for those that keep it."""
    return {name for name in names if words(name) & REPLACED.keys()} - KEPT.keys()


def test_each_term_of_the_vocabulary_is_a_name() -> None:
    names = set().union(*(module.names for module in sources().values()))
    assert [term for term in TERMS if term not in names] == []


def test_no_replaced_word_is_left_in_a_name() -> None:
    # Tests of stores are sentences: their names are prose.
    left = {str(file): replaced(module.names) for file, module in sources().items()}
    found = {file: {name for name in names if not name.startswith("test_")} for file, names in left.items()}
    assert {file: names for file, names in found.items() if names} == {}


def test_every_kept_word_is_still_needed() -> None:
    assert set().union(*(module.names for module in sources().values())) >= KEPT.keys()


@pytest.mark.parametrize(
    "source",
    ["class Purse: ...", "def tell_observers(): ...", "def run(wanted): ...", "self.seats = 1", "CREW = ()",
     "from orchestrator.llm import memory as recall", "class A:\n    standing: int = 0"],
)  # fmt: skip
def test_a_planted_word_is_found(source: str) -> None:
    assert len(replaced(identifiers(Path("module.py"), source))) == 1


# ---- files that a concept is found by ----

CONCEPTS = {
    "graph": "kernel/graph.py", "machine": "kernel/machine.py", "run": "kernel/run.py", "driver": "kernel/driver.py",
    "transition executor": "kernel/transition_executor.py", "suspension": "kernel/suspension.py",
    "mailbox": "kernel/mailbox.py", "cancellation": "kernel/cancellation.py",
    "outcome": "kernel/outcome.py", "lint": "kernel/lint.py", "hooks": "kernel/hooks.py",
    "message": "llm/message.py", "usage": "llm/usage.py", "retry": "llm/retry.py",
    "structured output": "llm/structured_output.py", "json schema": "llm/json_schema.py",
    "tool set": "tools/tool_set.py", "argument": "tools/argument.py",
    "path safety": "files/path_safety.py", "rollback": "files/rollback.py", "atomic": "files/atomic.py",
    "address": "journal/address.py", "stored run": "journal/stored_run.py", "effect ledger": "journal/ledger.py",
    "limits": "machines/llm_loop/limits.py", "ending of a graph": "machines/llm_loop/graph.py",
    "context model": "machines/pipeline/model.py", "reports": "machines/ralph/reports.py",
    "admission": "callbacks/orchestrator_callbacks/llm_loop/admission.py",
    "budget account": "callbacks/orchestrator_callbacks/llm_loop/budget_account.py",
    "compaction": "callbacks/orchestrator_callbacks/llm_loop/compaction.py",
    "guidance": "callbacks/orchestrator_callbacks/llm_loop/guidance.py",
    "human input": "callbacks/orchestrator_callbacks/llm_loop/human_input.py",
    "memory": "callbacks/orchestrator_callbacks/llm_loop/memory.py",
    "request usage": "callbacks/orchestrator_callbacks/llm_loop/request_usage.py",
    "turn accounting": "callbacks/orchestrator_callbacks/llm_loop/turn_accounting.py",
    "control request": "callbacks/orchestrator_callbacks/approval/control_request.py",
    "conversation": "callbacks/orchestrator_callbacks/rlm/conversation.py",
    "progress": "guards/orchestrator_guards/progress.py",
    "plan executor": "runtime/approval/plan_executor.py", "workspace": "runtime/approval/workspace.py",
    "rate limiter": "runtime/approval/rate_limiter.py", "agent tool": "runtime/llm_loop/agent_tool.py",
    "prompt stage": "runtime/pipeline/prompt_stage.py", "command agent": "runtime/ralph/coding_agent.py",
    "run service": "runtime/service/run_service.py", "child run guard": "runtime/service/child_run.py",
    "resume plan": "runtime/service/resume_plan.py", "run scope": "runtime/service/child_run.py",
    "recovery": "runtime/service/recovery.py", "stream": "runtime/run_stream.py",
    "agent registry": "engines/agent.py", "command handler": "engines/operator_command.py",
    "operator command": "engines/operator_command.py", "orphan recovery": "engines/orphan_recovery.py",
    "run queue": "engines/run_queue.py",
    "engine directory": "engines/engine_directory.py", "worker": "engines/worker.py",
    "model guard": "providers/model_guard.py", "limiter of models": "providers/limiter.py",
    "run signature": "cli/trust/signature.py", "catalogue of metrics": "telemetry/catalogue.py",
}  # fmt: skip
"""Concept -> the file in which a reader looks for it, from `orchestrator/` unless it begins with another root."""


def folders() -> list[str]:
    """Return the folders of the table in CONTRIBUTING, as patterns of paths."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| folder \|.*?\n\|---.*?\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert rows is not None, "CONTRIBUTING has no table of folders"
    return [
        re.escape(name).replace("<machine>", "[a-z_]+")
        for name in re.findall(r"^\| `([^`]+)`", rows[1], re.MULTILINE)
    ]


def is_found(concept: str, path: str, named: list[str]) -> bool:
    """Return whether a file exists, has a word of the concept in its name, and lies in a folder that is named."""
    file = ROOT / (path if path.startswith(("callbacks", "guards")) else f"orchestrator/{path}")
    folder = f"{path.rpartition('/')[0]}/"
    return (
        file.is_file()
        and any(word.startswith(file.stem.split("_")[-1][:6]) for word in concept.split())
        and any(re.fullmatch(pattern, folder) for pattern in named)
    )


def test_each_concept_is_found_by_its_file_name_in_a_folder_that_contributing_names() -> None:
    named = folders()
    assert {concept: path for concept, path in CONCEPTS.items() if not is_found(concept, path, named)} == {}


def test_the_parameter_that_contributing_follows_passes_the_functions_it_names() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## One parameter")[2].partition("\n## ")[0]
    steps = re.findall(r"^\|[^|]+\| `([^`]+)` \| `([^`]+)` \|$", section, re.MULTILINE)
    assert len(steps) >= 5
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in steps}
    assert [(file, name) for file, name in steps if f"def {name}(" not in sources[file]] == []
