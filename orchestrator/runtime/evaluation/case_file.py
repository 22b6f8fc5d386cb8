"""Read and write the files of evaluation sets: YAML, or one JSON object in each line; make a case of a recorded run.

A fault is one sentence with the file, the case and the line. A file names no code: judges are functions that the
caller gives, and a case selects them by name. So a file from elsewhere can be evaluated without importing its choice
of modules.

Scalars of YAML are those of JSON and of YAML 1.2: `no`, `12:30` and `2026-01-01` are texts, which YAML 1.1 reads as
False, 750 and a date. Duplicate keys are refused, and so are aliases that expand to more than any set needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import BaseModel, ValidationError

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.files.bounded import read_file
from orchestrator.kernel.journal import Record
from orchestrator.runtime.evaluation.case import EvaluationCase
from orchestrator.runtime.evaluation.check import CaseRun, json_values
from orchestrator.runtime.run_replay import archive_of, journal_of
from orchestrator.runtime.runs.story import Story

NodePath = tuple[str | int, ...]
"""Path of a part: keys and positions."""

_MOST_PARTS: Final = 1_000_000
_WORDS: Final = {
    "tag:yaml.org,2002:null": (r"~|null|", "~n"),
    "tag:yaml.org,2002:bool": (r"true|false", "tf"),
    "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+",
        "-+.0123456789",
    ),
}
"""Tag -> texts that have it, and their first characters."""


class YamlFault(ValueError):
    """The text is not YAML that is used here; `line` is where."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Reader:
    """Values and lines of one document."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._parts = 0
        self.lines: dict[NodePath, int] = {}

    def read(self, node: Any, place: NodePath = ()) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise YamlFault(
                line, f"aliases make more than {_MOST_PARTS:,} parts of this file: write them out"
            )
        if node.id == "sequence":
            return [self.read(one, (*place, number)) for number, one in enumerate(node.value)]
        if node.id == "mapping":
            return self._mapping(node, place)
        return self._loader.construct_object(node)

    def _mapping(self, node: Any, place: NodePath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            name, line = key.value, key.start_mark.line + 1
            if key.id != "scalar":
                raise YamlFault(line, "a key must be a text")
            if name in found:
                raise YamlFault(line, f"the key {name!r} is given twice")
            self.lines[(*place, name)] = line
            found[name] = self.read(value, (*place, name))
        return found


def read_yaml(text: str) -> tuple[Any, dict[NodePath, int]]:
    """Return the value of a document, and path -> line of its parts. Raises YamlFault, MissingExtra."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("pyyaml", "evaluation", "evaluation") from error
    loader = _loader()(text)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader)
        return (None if node is None else reader.read(node)), reader.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlFault(1 if mark is None else mark.line + 1, f"this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise YamlFault(1, f"this is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise YamlFault(1, "it is nested too deeply") from None
    finally:
        loader.dispose()


def yaml_text(value: Any) -> str:
    """Return JSON values as YAML. Raises MissingExtra."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("pyyaml", "evaluation", "evaluation") from error
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - as the base class declares it

    for tag, (words, first) in _WORDS.items():
        Loader.add_implicit_resolver(tag, re.compile(rf"(?:{words})\Z"), list(first) + [""] * ("~" in first))
    return Loader


_YAML: Final = (".yaml", ".yml")
_JSONL: Final = (".jsonl", ".ndjson")
_MEMBERS: Final = ("defaults", "cases")


class _Raw(NamedTuple):
    """A case that is not checked yet."""

    value: Any
    number: int
    line: Callable[[NodePath], int]
    """Line of a part of it."""


def load_cases(file: Path | str) -> list[EvaluationCase]:
    """Return the cases of a file.

    Args:
        file: `*.yaml` or `*.yml`: a list of cases, or a mapping with `cases` and the `defaults` of each. `*.jsonl`:
            one case in each line.

    Raises:
        ConfigError: The file is no evaluation set; one sentence with file, case and line.
        MissingExtra: YAML needs the extra `evaluation`.
        OSError: The file cannot be read.
    """
    path = Path(file)
    if path.suffix not in {*_YAML, *_JSONL}:
        raise ConfigError(f"{path} must end in .yaml, .yml or .jsonl, so that its format is known")
    try:
        text = read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: byte {error.start:,} is not UTF-8") from None
    found: list[EvaluationCase] = []
    known: dict[str, int] = {}
    for raw in (_of_yaml if path.suffix in _YAML else _of_lines)(path, text):
        case, line = _checked(path, raw), raw.line(("name",))
        if case.name in known:
            _refuse(path, case.name, line, f"the name is that of the case in line {known[case.name]}")
        known[case.name] = line
        found.append(case)
    if not found:
        raise ConfigError(f"{path} has no cases: give at least one with name and input")
    return found


def cases_text(cases: Sequence[Mapping[str, Any]], suffix: str) -> str:
    """Return cases as the text of a file with this suffix. Raises ConfigError, MissingExtra."""
    if suffix in _YAML:
        return yaml_text({"cases": [dict(case) for case in cases]})
    if suffix in _JSONL:
        return "".join(f"{json.dumps(case, ensure_ascii=False)}\n" for case in cases)
    raise ConfigError(f"a file of cases ends in .yaml, .yml or .jsonl, not in {suffix!r}")


# ---- the two formats ----


def _of_lines(file: Path, text: str) -> Iterator[_Raw]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_number)
            except RecursionError:
                raise ConfigError(f"{file}, line {number}: it is nested too deeply") from None
            except ValueError as error:
                raise ConfigError(f"{file}, line {number}: this is not JSON ({error})") from None
            yield _Raw(value, number, lambda _, at=number: at)  # type: ignore[misc]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _of_yaml(file: Path, text: str) -> Iterator[_Raw]:
    try:
        value, lines = read_yaml(text)
    except YamlFault as error:
        raise ConfigError(f"{file}, line {error.line}: {error}") from None
    cases: Any = [] if value is None else value
    defaults: Any = {}
    place: NodePath = ()
    if isinstance(value, dict):
        if unknown := [name for name in value if name not in _MEMBERS]:
            allowed = _allowed(unknown[0], _MEMBERS)
            raise ConfigError(f"{file}, line {lines[(unknown[0],)]}: unknown key {unknown[0]!r}{allowed}")
        cases, defaults, place = value.get("cases") or [], value.get("defaults") or {}, ("cases",)
    if not isinstance(cases, list) or not isinstance(defaults, dict):
        raise ConfigError(f"{file}: give a list of cases, or a mapping with cases and defaults")
    for number, one in enumerate(cases):
        yield _Raw(_merged(defaults, one), number + 1, _finder(lines, (*place, number)))


def _finder(lines: Mapping[NodePath, int], base: NodePath) -> Callable[[NodePath], int]:
    def line(place: NodePath) -> int:
        """Return the line of the longest part of the path that the case has, or else the defaults."""
        parts = (place[:length] for length in range(len(place), -1, -1))
        paths = ((*root, *part) for part in parts for root in (base, ("defaults",)))
        return next(lines[path] for path in paths if path in lines)

    return line


def _merged(defaults: Any, own: Any) -> Any:
    """Return a case over the defaults: mappings are merged, any other value replaces."""
    if not isinstance(defaults, dict) or not isinstance(own, dict):
        return own
    both = {name: _merged(value, own[name]) for name, value in defaults.items() if name in own}
    return {**defaults, **own, **both}


# ---- faults ----


def _checked(file: Path, raw: _Raw) -> EvaluationCase:
    if not isinstance(raw.value, dict):
        _refuse(file, raw.number, raw.line(()), "a case is a mapping with name, input and expect")
    label = raw.value.get("name")
    label = label if isinstance(label, str) and label else raw.number
    try:
        return EvaluationCase.model_validate(raw.value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = tuple(part for part in fault["loc"] if part != "[key]")
        _refuse(file, label, raw.line(place), _described(place, fault))


def _refuse(file: Path, label: str | int, line: int, message: str) -> NoReturn:
    raise ConfigError(f"{file}, case {label!r}, line {line}: {message}")


def _described(place: NodePath, fault: Mapping[str, Any]) -> str:
    name = ".".join(map(str, place))
    if fault["type"] == "extra_forbidden":
        return f"unknown key {name!r}{_allowed(str(place[-1]), _keys_at(place[:-1]))}"
    message = str(fault.get("ctx", {}).get("error", fault["msg"]))  # our own message, without a prefix
    message = message[:1].lower() + message[1:]
    if fault["type"] == "missing":
        return f"{name} is missing"
    given = fault["input"]
    shown = f" (it is {given!r:.60})" if isinstance(given, str | int | float | None) else ""
    return f"{name}: {message}{shown}" if name else message


def _allowed(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{meant} allowed: {', '.join(known)}"


def _keys_at(place: NodePath) -> list[str]:
    """Return the keys that a part of a case may have."""
    model: type[BaseModel] = EvaluationCase
    for part in place:
        model = _model_of(model, part) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_of(model: type[BaseModel], part: str | int) -> type[BaseModel] | None:
    """Return the model of a member; None if the part is a position or a key of a mapping of models."""
    for name, field in model.model_fields.items():
        if part in {name, field.alias}:
            return _first_model(field.annotation)
    return None


def _first_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation: itself, or that of a member, as in `X | None` and `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_first_model(one) for one in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)


_SYSTEM = frozenset(("system", "developer"))


async def recorded_case(run_id: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return the case of an ended run, as the members of an EvaluationCase.

    It expects the outcome of the run, its structured output, the calls of its tools and the questions to people. A
    text is the `reference` of the case, because no model repeats one. The answers of people become those of the case.
    Texts that look like secrets are replaced, and metadata is left out. Review it: a run that went wrong makes a case
    that expects that.

    Raises:
        ConfigError: The run has not ended, or it is no run of an agent.
    """
    if records[-1].kind != "ended":
        raise ConfigError(
            f"run {run_id!r} has not ended, so its outcome cannot be expected: wait for its end"
        )
    clean = await (await journal_of(archive_of(run_id, records))).load(run_id)
    story = Story.of(run_id, clean)
    prompt = _prompt(story)
    if not prompt:
        raise ConfigError(f"run {run_id!r} has no messages: only runs of an agent can become cases")
    run = CaseRun.of(EvaluationCase(name=run_id, input="-"), run_id, clean)
    answers: dict[str, Any] = {}
    for entry in story.ledger.entries.values():
        if entry.answer is not None:
            match entry.answer.get("decision"):
                case "reject":
                    answers[entry.tool] = {"reject": str(entry.answer.get("why") or "")}
                case "respond":
                    answers[entry.tool] = {"respond": str(entry.answer.get("content") or "")}
                case _:
                    edited = json_values(entry.answer.get("arguments"))
                    answers[entry.tool] = (
                        {"approve": dict(edited)} if isinstance(edited, Mapping) else "approve"
                    )
    outcome, output = run.outcome, run.output
    expect: dict[str, Any] = {"outcome": outcome}
    if output is not None and not isinstance(output, str):
        expect["output"] = {"equals": output}
    found: list[dict[str, Any]] = []
    for call in run.calls:
        one: dict[str, Any] = {"tool": call.tool}
        if isinstance(call.arguments, Mapping):
            one["arguments"] = dict(call.arguments)
        if one not in found:
            found.append(one)
    tools: dict[str, Any] = {"called": found, "asked": list(dict.fromkeys(run.asked))}
    if tools := {name: value for name, value in tools.items() if value}:
        expect["tools"] = tools
    reference = {"reference": output} if isinstance(output, str) else {}
    return {
        "name": run_id,
        **prompt,
        **({"answers": answers} if answers else {}),
        **reference,
        "expect": expect,
    }


def _prompt(story: Story) -> dict[str, Any]:
    """Return the input of the run: the messages before the first answer, without the agent's own instructions."""
    said: list[dict[str, Any]] = []
    for entry in story.conversation:
        if entry.answer is not None:
            break
        if entry.message.get("role") not in _SYSTEM:
            said.append(dict(entry.message))
    if len(said) == 1 and said[0].get("role") == "user" and isinstance(said[0].get("content"), str):
        return {"input": said[0]["content"]}
    return {"messages": said} if said else {}
