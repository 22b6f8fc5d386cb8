"""YAML as JSON values, with the line of each part.

Scalars are those of JSON and of YAML 1.2: `no`, `12:30` and `2026-01-01` are texts, which YAML 1.1 reads as False, 750
and a date. Duplicate keys are refused, and so are aliases that expand to more than any evaluation set needs.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from orchestrator.errors import MissingExtra

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
