"""Values are frozen for type checkers; they compare, hash, copy and describe themselves as frozen dataclasses do."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson
import pytest

from orchestrator.journal.context import copied, lasting_fields
from orchestrator.kernel.fact import LLMCall
from orchestrator.kernel.value import value
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.tools.result import ToolResult

CALL = ToolCall("1", "pay", '{"to": "ann"}')
VALUES = (
    CALL,
    Usage(1, 2, cost=0.5),
    Message("assistant", None, (CALL,)),
    Response("done", (CALL,), usage=Usage(3)),
    ToolResult(CALL, 0, "paid"),
    LLMCall("loop", "r", "await_llm", 1, "m", "ok", 0.5),
)
EXAMPLES = [pytest.param(one, id=type(one).__name__) for one in VALUES]


@value(frozen=True, slots=True)
class Point:
    x: int
    names: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    names: Mapping[str, int] = field(default_factory=dict, compare=False)


def test_a_type_checker_refuses_an_assignment_that_python_carries_out() -> None:
    point = Point(1)
    point.x = 2  # type: ignore[misc]  # mypy reports an ignore that nothing needs
    assert point == Point(2)


@pytest.mark.parametrize("one", EXAMPLES)
def test_a_value_has_the_equality_and_the_hash_of_its_fields(one: Any) -> None:
    same = replace(one)
    assert same is not one
    assert same == one
    assert hash(same) == hash(one)
    assert one != replace(one, **{fields(one)[0].name: "another"})


@pytest.mark.parametrize("one", EXAMPLES)
def test_a_value_survives_copy_and_pickle(one: Any) -> None:
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one  # noqa: S301


@pytest.mark.parametrize("one", [one for one in EXAMPLES if one.id != "Usage"])  # which has a dict
def test_a_value_takes_no_further_attribute(one: Any) -> None:
    with pytest.raises(AttributeError):
        one.another = 1


@pytest.mark.parametrize("kind", [Message, Response, Request, ToolCall, ToolResult, Usage, Point])
def test_code_that_inspects_the_class_sees_a_frozen_one(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen


def test_the_hash_is_that_of_a_frozen_dataclass() -> None:
    assert hash(Point(1, {"a": 1})) == hash(Frozen(1, {"b": 2}))


def test_a_snapshot_keeps_a_value_as_it_is() -> None:
    @dataclass(slots=True)
    class Context:
        said: Response
        parts: list[Response]

    response = VALUES[3]
    assert isinstance(response, Response)
    plain = copied(Context(response, [response]))
    assert plain["said"] is plain["parts"][0] is response
    assert lasting_fields(type(Point(1))) == {"x"}


def test_a_value_that_is_not_frozen_is_refused() -> None:
    with pytest.raises(TypeError):
        value(frozen=False, slots=True)


def test_a_usage_is_written_in_the_order_of_its_fields() -> None:
    one = replace(Usage(1, 2, cost=0.5), output_tokens=3)
    assert list(orjson.loads(orjson.dumps(one))) == [item.name for item in fields(Usage)]


def test_a_usage_equals_no_value_of_another_class() -> None:
    assert Usage(1) != Point(1)
    assert Usage(1) == replace(Usage(2), input_tokens=1)


@pytest.mark.parametrize("number", [item.name for item in fields(Usage)])
def test_usages_that_differ_in_one_number_are_not_equal(number: str) -> None:
    assert replace(Usage(1), **{number: 7}) != Usage(1)


def test_a_comparison_of_usages_leaves_them_without_a_dict() -> None:
    one, other = Usage(1), Usage(1)
    assert one == other
    assert not [each for each in gc.get_referents(one, other) if isinstance(each, dict)]
