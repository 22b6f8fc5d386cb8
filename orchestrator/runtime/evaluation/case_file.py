"""Read and write the files of evaluation sets: YAML, or one JSON object in each line.

A fault is one sentence with the file, the case and the line. A file names no code: judges are functions that the
caller gives, and a case selects them by name. So a file from elsewhere can be evaluated without importing its choice
of modules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import BaseModel, ValidationError

from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file
from orchestrator.runtime.evaluation.case import EvaluationCase
from orchestrator.runtime.evaluation.yaml_node import NodePath, YamlFault, read_yaml, yaml_text

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
