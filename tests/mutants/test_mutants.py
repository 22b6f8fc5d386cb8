"""The tool itself: which changes it makes, which tests it runs, and that a known survivor is reported and only that."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mutants import trial
from tests.mutants.__main__ import EQUIVALENTS, ROOT
from tests.mutants.campaign import Area, Plan, at_place, drawn, tried
from tests.mutants.mutation import Mutant, mutants_of, sample
from tests.mutants.recording import FOLDER, ROOTS
from tests.mutants.report import Equivalent, figures, is_enough, read_equivalents, report
from tests.mutants.selection import Record
from tests.mutants.trial import Verdict

PRICE = '''"""Prices of a shop."""

LEAST = 5
CURRENCY = "euro"


def total(prices: list[int | None], discount: int) -> int:
    """Return what is to be paid."""
    if discount < 0:
        raise ValueError("a discount is never negative")
    known = [price for price in prices if price is not None]
    return sum(known) - discount


def countdown(number: int) -> int:
    while number > 0:
        number -= 1
    return number
'''

TESTS = """
import pytest
from shop.price import LEAST, countdown, total

def test_a_discount_is_taken_off():
    assert total([3, None, 4], 2) == LEAST

def test_a_negative_discount_is_refused():
    with pytest.raises(ValueError):
        total([], -1)

def test_it_counts_down():
    assert countdown(3) == 0

def test_that_fails_in_any_case():
    assert total([], 0) == 1
"""
CODES = r"""
import shop.price

def test_codes_stay_as_they_are():
    assert {value for value in vars(shop.price).values() if type(value) is str} >= {"euro"}

def test_a_longer_text_of_the_same_file_is_executed():
    exec(compile("\n" * 99 + "longer = True", shop.price.__file__, "exec"))

def test_a_text_of_no_file_is_executed():
    exec(compile("example = True", f"{shop.price.__file__}: example", "exec"))
"""
KILLED = "sum(known) - discount -> (sum(known) + discount)"
SURVIVOR = "discount < 0 -> (discount <= 0)"
HANGS = "number -= 1 -> pass"
AREAS = {"shop": Area("shop", ("tests",))}


def changes(text: str) -> set[str]:
    return {f"{one.kind}: {one.change}" for one in mutants_of("x.py", text.encode())}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project of one module, with a record of what its tests execute. They drop the environment, as ours do."""
    root = tmp_path_factory.mktemp("project")
    files = {
        "shop/__init__.py": "",
        "shop/price.py": PRICE,
        "tests/conftest.py": "import os\n\nos.environ.clear()\n",
        "tests/test_price.py": TESTS,
        "tests/test_codes.py": CODES,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "pytest.ini").write_text("[pytest]\n")
    paths = os.pathsep.join((str(root), str(ROOT)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each process would import them, and needs none
        environment = {**os.environ, "PYTHONPATH": paths, FOLDER: str(root / "record"), ROOTS: "shop"}
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.recording", "tests"],
            cwd=root,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        yield root


def judged(shop: Path, *wanted: str) -> dict[str, Verdict]:
    (found,) = at_place(shop, AREAS, "shop/price.py").values()
    mutants = [one for one in found if one.change in wanted]
    assert len(mutants) == len(wanted)
    plan = Plan(shop, ("",), Record(shop / "record", shop), workers=1)
    verdicts = tried(plan, AREAS, {"shop": mutants}, lambda _: None)["shop"]
    return {one.mutant.change: one for one in verdicts}


@pytest.mark.canary
@pytest.mark.campaign
def test_a_known_survivor_is_reported_and_a_known_killed_one_is_not(shop: Path) -> None:
    found = judged(shop, KILLED, SURVIVOR)
    assert found[KILLED].by == "tests/test_price.py::test_a_discount_is_taken_off"
    assert (found[SURVIVOR].detected, found[SURVIVOR].tests) == (False, 2)
    lines = list(report({"shop": list(found.values())}, []))
    assert lines[0].startswith("survivor: shop/price.py:9 total [compare] discount < 0 -> (discount <= 0)")
    assert lines[-1].split() == ["shop", "2", "1", "0", "1", "50.0%"]
    assert (shop / "shop/price.py").read_text() == PRICE


@pytest.mark.campaign
def test_a_mutant_that_hangs_is_detected(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LEAST_SECONDS", 4.0)
    assert judged(shop, HANGS)[HANGS].by == "(hangs)"


@pytest.mark.campaign
def test_a_constant_is_tried_with_the_tests_that_use_its_name_or_contain_its_code(shop: Path) -> None:
    assert judged(shop, "5 -> 6")["5 -> 6"].by == "tests/test_price.py::test_a_discount_is_taken_off"
    code = "\"euro\" -> 'euro_'"
    assert judged(shop, code)[code].by == "tests/test_codes.py::test_codes_stay_as_they_are"


def test_the_tests_about_a_module_are_tried_first_and_then_those_that_execute_few_lines(
    tmp_path: Path,
) -> None:
    lines = [
        ["shop/price.py", "total: return sum(known) - discount"],
        *(["x.py", f": {n}"] for n in range(3)),
    ]
    for name, tests in {
        "tests/test_report.py": {"every_line": [0, 1, 2, 3], "one_line[a]": [0], "one_line[b]": [0]},
        "tests/shop/test_total.py": {"of_the_folder": [0, 1]},
        "tests/shop/test_prices.py": {"elsewhere": [1], "slow": [0], "wide[a]": [0, 1], "wide[b]": [0, 1, 2]},
    }.items():
        seen = {f"{name}::{test}": numbers for test, numbers in tests.items()}
        seconds = {test: 60.0 if test.endswith("slow") else 0.1 for test in seen}
        body = {"lines": lines, "seconds": seconds, "seen": seen}
        (tmp_path / f"{Path(name).name}.json").write_text(json.dumps(body))
    (mutant,) = (one for one in mutants_of("shop/price.py", PRICE.encode()) if one.change == KILLED)
    record = Record(tmp_path, tmp_path)
    batches = record.batches(mutant, PRICE.encode(), (), patience=60.0)
    assert [[test.partition("::")[2] for test in batch.tests] for batch in batches] == [
        ["wide[a]", "wide[b]", "of_the_folder", "one_line[a]", "every_line", "one_line[b]"],
        ["slow"],
    ]
    (hurried,) = record.batches(mutant, PRICE.encode(), (), patience=0.35)[:1]
    assert [test.partition("::")[2] for test in hurried.tests] == ["wide[a]", "of_the_folder", "one_line[a]"]


def test_every_kind_of_statement_and_expression_is_changed() -> None:
    text = """
async def work(self, a, b):
    if a < b and not self.done:
        self.count += 1
        raise ValueError("a message for people")
    try:
        await self.send(a, kind="note")
    except OSError:
        self.failed = True
    with suppress(KeyError):
        del self.seen[a]
    for one in b:
        if one in a or one == 3:
            continue
    return [one for one in a if one is not None]
"""
    assert changes(text) == {
        "branch: a < b and not self.done -> not (a < b and (not self.done))",
        "boolean: a < b and not self.done -> (a < b or not self.done)",
        "boolean: a < b and not self.done -> (a < b)",
        "boolean: a < b and not self.done -> (not self.done)",
        "boolean: not self.done -> (self.done)",
        "compare: a < b -> (a <= b)",
        "compare: a < b -> (a >= b)",
        "statement: self.count += 1 -> pass",
        "constant: 1 -> 2",
        'statement: raise ValueError("a message for people") -> pass',
        'statement: await self.send(a, kind="note") -> pass',
        "await: await self.send(a, kind=\"note\") -> (self.send(a, kind='note'))",
        "code: \"note\" -> 'note_'",
        "statement: self.failed = True -> pass",
        "except: self.failed = True -> raise",
        "constant: True -> False",
        "except: suppress(KeyError) -> suppress()",
        "statement: del self.seen[a] -> pass",
        "branch: one in a or one == 3 -> not (one in a or one == 3)",
        "boolean: one in a or one == 3 -> (one in a and one == 3)",
        "boolean: one in a or one == 3 -> (one in a)",
        "boolean: one in a or one == 3 -> (one == 3)",
        "compare: one in a -> (one not in a)",
        "compare: one == 3 -> (one != 3)",
        "constant: 3 -> 4",
        "constant: 3 -> 6",
        "statement: continue -> pass",
        "return: return [one for one in a if one is not None] -> return None",
        "branch: one is not None -> not (one is not None)",
        "compare: one is not None -> (one is None)",
    }


def test_types_decorators_docstrings_messages_and_declarations_are_left_alone() -> None:
    text = '''"""A module."""
from typing import TYPE_CHECKING, TypeAlias, TypeVar
if TYPE_CHECKING:
    from x import y
T = TypeVar("T")
Kind = Literal["one", "two"]
Name: TypeAlias = "str | None"
__all__ = ["work"]

@cached(3)
class Work:
    """A class."""
    __slots__ = ("one", "two")

    @limited(seconds=4)
    def work(self, one: "int" = None) -> "str":
        """A method."""
        assert one == 3
        del one
        print(f"{one + 1}")
        print(open(encoding="utf-8"), field(repr=False))
'''
    assert changes(text) == {
        'statement: print(f"{one + 1}") -> pass',
        'statement: print(open(encoding="utf-8"), field(repr=False)) -> pass',
    }


def test_every_mutant_drawn_of_our_sources_is_another_program(seed: int) -> None:
    sources = {
        "driver.py": (ROOT / "orchestrator/kernel/driver.py").read_bytes(),
        "price.py": PRICE.encode(),
    }
    mutants = sample(sources, 20, random.Random(seed))
    assert len({(one.path, one.line) for one in mutants}) == 20
    for one in mutants:
        source = sources[one.path]
        compile(one.applied(source), one.path, "exec")
        assert one.applied(source) != source
        assert one.applied(source)[: one.start] == source[: one.start]


def test_a_seed_repeats_its_sample_and_an_area_does_not_depend_on_the_others(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "price.py").write_text(PRICE)
    areas = {"one": Area("one", ()), "two": Area("two", ())}
    first = drawn(tmp_path, areas, 7, 4)
    assert first == drawn(tmp_path, areas, 7, 4)
    assert drawn(tmp_path, {"two": areas["two"]}, 7, 4)["two"] == first["two"]
    assert first != drawn(tmp_path, areas, 8, 4)


def verdicts(*detected: bool) -> list[Verdict]:
    return [
        Verdict(Mutant("a.py", 1, (1, 1), "f", "compare", 0, 1, str(number), "x"), detected=one)
        for number, one in enumerate(detected)
    ]


@pytest.mark.parametrize(("survivors", "enough"), [(1, True), (2, False)])
def test_of_twenty_five_mutants_one_may_survive(survivors: int, enough: bool) -> None:
    assert is_enough({"a": verdicts(*[False] * survivors, *[True] * (25 - survivors))}, []) is enough


def test_equivalent_mutants_are_counted_apart_and_one_that_is_detected_is_none(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.toml"
    file.write_text('[[equivalent]]\npath = "a.py"\nfunction = "f"\nchange = "0 -> x"\nreason = "the same"\n')
    same = read_equivalents(file)
    assert same == [Equivalent("a.py", "f", "0 -> x", "the same")]
    area = figures(verdicts(False, False, True), same)
    assert (area.mutants, area.detected, area.equivalent, area.survivors, area.rate) == (3, 1, 1, 1, 0.5)
    assert figures(verdicts(True), same).equivalent == 0
    assert read_equivalents(tmp_path / "none.toml") == []


def test_each_equivalent_mutant_that_is_listed_still_exists_and_has_a_reason() -> None:
    for one in read_equivalents(EQUIVALENTS):
        assert len(one.reason.split()) > 3, one
        assert one.change == "*" or _exists(one, mutants_of(one.path, (ROOT / one.path).read_bytes())), one


def _exists(equivalent: Equivalent, mutants: Sequence[Mutant]) -> bool:
    return any(equivalent.is_of(one) for one in mutants)
