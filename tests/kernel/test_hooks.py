from __future__ import annotations

import functools
import itertools
import types
from typing import Any

import pytest

from orchestrator.errors import GraphError
from orchestrator.kernel.hooks import GENERAL, collect, expected, takes
from orchestrator.kernel.lint import LintRule
from tests.kernel.toy import TOY, ToyRun, hooks, nothing

POINTS = {"before_request": "request", "after_start": "answer"}
"""A point of its own, and one that has the name of a hook."""


async def _point(run: ToyRun, value: Any) -> None: ...


def rules(*modules: object, **options: Any) -> list[LintRule]:
    with pytest.raises(GraphError) as caught:
        collect(TOY, *modules, **options)
    return [problem.rule for problem in caught.value.problems]  # type: ignore[attr-defined]


def test_a_graph_has_a_place_for_four_hooks_of_each_kind_and_four_general_ones() -> None:
    names = list(expected(TOY))
    assert len(names) == len(set(names)) == 4 + 2 * len(TOY.states) + 2 * len(TOY.events)
    assert {*GENERAL, "enter_check", "leave_ask", "before_fail", "after_start"} <= set(names)


def test_any_object_with_such_methods_will_do() -> None:
    class Host:
        async def enter_done(self, run: ToyRun) -> None: ...

        async def _private(self) -> None: ...

        def helper(self) -> None: ...

    bound = collect(TOY, hooks(), extra=[Host()])
    assert "enter_done" in bound
    assert bound.hosted == {"enter_done"}


def test_a_misspelt_hook_is_told_with_what_it_may_have_meant() -> None:
    with pytest.raises(
        GraphError, match="enter_wrok fits no state or event; did you mean 'enter_work'"
    ) as caught:
        collect(TOY, hooks(), extra=[types.SimpleNamespace(enter_wrok=nothing)])
    assert caught.value.graph == "toy"


def test_a_name_without_any_likeness_gets_no_guess() -> None:
    with pytest.raises(GraphError) as caught:
        collect(TOY, hooks(), extra=[types.SimpleNamespace(zzz=nothing)])
    assert "did you mean" not in str(caught.value)


def test_a_sync_hook_is_refused_and_a_sync_helper_is_none() -> None:
    assert rules(hooks(), extra=[types.SimpleNamespace(enter_done=lambda run: None)]) == [LintRule.SYNC_HOOK]
    host = types.SimpleNamespace(helper=lambda run: None, enter_done=nothing)
    assert "helper" not in collect(TOY, hooks(), extra=[host])


def test_ours_are_unique_and_the_hosts_may_be_many() -> None:
    one, other = types.SimpleNamespace(enter_done=nothing), types.SimpleNamespace(enter_done=nothing)
    assert rules(hooks(), one, other) == [LintRule.DUPLICATE_HOOK]
    assert len(collect(TOY, hooks(), extra=[one, other]).by_name["enter_done"]) == 2


def test_all_problems_of_all_modules_stand_in_one_error() -> None:
    stray = types.SimpleNamespace(enter_nowhere=nothing, leave_done=lambda run: None)
    assert sorted(rules(stray)) == sorted(
        [LintRule.STRAY_HOOK, LintRule.SYNC_HOOK, *[LintRule.MISSING_ENTER] * 3]
    )


def test_an_object_with_an_async_call_and_a_partial_are_hooks() -> None:
    class Hook:
        async def __call__(self, run: ToyRun) -> None: ...

    async def ask(what: str, run: ToyRun) -> None: ...

    bound = collect(
        TOY, hooks(), types.SimpleNamespace(enter_done=Hook(), leave_ask=functools.partial(ask, "why"))
    )
    assert "enter_done" in bound
    assert "leave_ask" in bound


def test_points_are_names_that_the_caller_runs_by_itself() -> None:
    bound = collect(TOY, hooks(), extra=[types.SimpleNamespace(before_request=_point)], points=POINTS)
    assert len(bound.by_name["before_request"]) == 1


def test_what_a_module_imports_is_not_its_hook() -> None:
    async def enter_done(run: ToyRun) -> None: ...

    async def helper(run: ToyRun) -> None: ...

    module = types.ModuleType("mine")
    module.enter_done, module.helper = enter_done, helper  # type: ignore[attr-defined]
    assert "enter_done" not in collect(TOY, hooks(), module)


def test_a_hook_that_a_decorator_from_elsewhere_has_replaced_is_not_lost() -> None:
    def timed(hook: Any) -> Any:
        async def timer(run: ToyRun) -> Any:
            return await hook(run)

        return timer

    async def enter_done(run: ToyRun) -> None: ...

    module = types.ModuleType("mine")
    enter_done.__module__ = "mine"
    module.enter_done = timed(enter_done)  # type: ignore[attr-defined]
    assert "enter_done" in collect(TOY, hooks(), module)


def test_classes_in_a_module_are_no_hooks() -> None:
    module = types.ModuleType("mine")
    module.Helper = type("Helper", (), {"__module__": "mine"})  # type: ignore[attr-defined]
    collect(TOY, hooks(), module)


# ---- what is given as a hook and is none ----


async def before_start(run: ToyRun) -> None: ...


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (before_start, "before_start (function)"),
        ("m", "'m' (str)"),
        ({"before_start": before_start}, "(dict)"),
        (object(), "(object)"),
        (types.ModuleType("empty"), "empty (module)"),
        (type("Empty", (), {}), "Empty (type)"),
    ],
    ids=["function", "str", "dict", "object", "module", "class"],
)
def test_what_a_host_gives_and_holds_no_hook_is_refused_with_what_is_wanted(
    given: object, named: str
) -> None:
    with pytest.raises(GraphError) as caught:
        collect(TOY, hooks(), extra=[given], points=POINTS)
    [problem] = caught.value.problems
    assert problem.rule is LintRule.NO_HOOK  # type: ignore[attr-defined]
    wanted = "enter_<state>, leave_<state>, before_<event>, after_<event>, before_request, after_start"
    assert f"{named} has no hook; give the module or an object with methods named {wanted}" in str(problem)


def test_a_module_of_ours_may_hold_none() -> None:
    collect(TOY, hooks(), types.ModuleType("after"))


# ---- hooks that could not be called ----


@pytest.mark.parametrize(
    ("name", "count", "wanted"),
    [
        ("enter_done", 0, "(run)"),
        ("enter_done", 2, "(run)"),
        ("leave_ask", 0, "(run)"),
        ("before_start", 2, "(run)"),
        ("after_event", 0, "(run)"),
        ("before_request", 1, "(run, request)"),
        ("before_request", 3, "(run, request)"),
        ("after_start", 0, "(run) or (run, answer)"),
    ],
)
def test_a_hook_that_takes_something_else_is_told_with_where_it_stands_and_what_it_gets(
    name: str, count: int, wanted: str
) -> None:
    with pytest.raises(GraphError) as caught:
        collect(TOY, hooks(), extra=[types.SimpleNamespace(**{name: _taking(count)})], points=POINTS)
    [problem] = caught.value.problems
    assert str(problem) == f"hook_arguments: SimpleNamespace.{name} must take {wanted}"


@pytest.mark.parametrize("count", [1, 2])
def test_a_name_that_is_hook_and_point_takes_what_either_gets(count: int) -> None:
    collect(TOY, hooks(), extra=[types.SimpleNamespace(after_start=_taking(count))], points=POINTS)


def test_arguments_with_defaults_and_any_number_of_them_are_fine() -> None:
    async def more(run: ToyRun, extra: int = 0, *rest: int, **others: int) -> None: ...

    collect(TOY, hooks(), extra=[types.SimpleNamespace(enter_done=more)])


@pytest.mark.parametrize("arguments", range(5))
def test_a_function_takes_as_many_arguments_as_its_signature_says(arguments: int) -> None:
    kinds = (
        ("", "a, /", "a=1, /"),
        ("", "b=1", "b=1, c=1"),
        ("*", "*rest"),
        ("d=1", "d", "d=1, e"),
        ("", "**more"),
    )
    for parts in itertools.product(*kinds):
        parameters = ", ".join(filter(None, parts))
        for source in (f"lambda {parameters}: None", f"lambda first, {parameters}: None"):
            function = eval(source)  # noqa: S307 - one of ours
            assert takes(function, arguments) == takes(functools.partial(function), arguments), source


def test_a_function_takes_what_the_one_that_it_replaces_takes() -> None:
    @functools.wraps(_taking(1))
    def replacing(*anything: Any) -> None: ...

    assert [takes(replacing, count) for count in range(3)] == [False, True, False]


def _taking(count: int) -> Any:
    async def none() -> None: ...

    async def one(run: ToyRun) -> None: ...

    async def two(run: ToyRun, value: Any) -> None: ...

    async def three(run: ToyRun, value: Any, more: Any) -> None: ...

    return (none, one, two, three)[count]


# ---- strays ----


def test_a_misspelt_hook_is_compared_with_those_of_its_kind_and_with_the_points() -> None:
    stray = types.SimpleNamespace(before_requests=_point)
    with pytest.raises(GraphError, match="did you mean 'before_request'"):
        collect(TOY, hooks(), extra=[stray], points=POINTS)


def test_a_public_method_that_is_no_hook_is_told_how_to_stay_out() -> None:
    class Service:
        async def close(self) -> None: ...

        async def before_start(self, run: ToyRun) -> None: ...

    with pytest.raises(
        GraphError, match=r"Service\.close fits no state or event; prefix it with _ if it is not a hook"
    ):
        collect(TOY, hooks(), extra=[Service()])
