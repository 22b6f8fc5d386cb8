"""The comparison of two revisions, on a project of one module that loses some of each kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compare.__main__ import main
from tests.compare.places import Counts, lines_and_branches, lost
from tests.mutants.mutation import Mutant

PRICE = '''"""Prices of a shop."""


def total(prices, discount):
    if discount < 0:
        raise ValueError("a discount is never negative")
    return sum(prices) - discount


def is_free(prices):
    return total(prices, 0) == 0
'''
LATER = PRICE.replace("def total", "LEAST = 5\n\n\ndef total").partition("def is_free")
MOVED = f"from shop.price import total\n\n\n{''.join(LATER[1:])}"
TESTS = """
import pytest
from shop.price import is_free, total

@pytest.mark.parametrize("discount", [2, 3])
def test_a_discount_is_taken_off(discount):
    assert total([3, 4], discount) == 7 - discount

def test_a_negative_discount_is_refused():
    with pytest.raises(ValueError):
        total([], -1)

def test_zero_is_free():
    assert is_free([0])

@pytest.mark.campaign
def test_nothing_is_free():
    assert is_free([])
"""
LATER_TESTS = """
import pytest
from shop.price import total

@pytest.mark.parametrize("discount", [2])
def test_a_discount_is_taken_off(discount):
    assert total([3, 4], discount) == 7 - discount
"""
MOVED_TESTS = """
import pytest
from shop.free import is_free

@pytest.mark.campaign
def test_zero_is_free():
    assert is_free([0])
"""
MAKEFILE = f"""
ALL = {sys.executable} -m pytest -p no:orchestrator -n 0
setup:
	@ln -s {sys.prefix} .venv
coverage:
	@cp shop/price.py shop/copied.py
	@{sys.executable} -m coverage run --branch --source shop -m pytest -q -n 0 tests
	@rm shop/copied.py
test:
	@$(ALL) -m "not campaign" $(ARGS)
campaign:
	@$(ALL) -m campaign $(ARGS)
mutants:
	@cat mutants.txt; false
"""
INI = "[pytest]\npythonpath = .\nmarkers = campaign\n"


def verdicts(line: int, **said: str) -> str:
    """Return lines as `make mutants` prints them."""
    mutants = {
        change: Mutant("shop/price.py", line, (line, line), "total", "compare", 0, 1, "discount < 0", change)
        for change in said
    }
    return "".join(f"{mutants[change]}: {words}\n" for change, words in said.items())


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository with the tags `before` and `after`."""
    root = tmp_path / "shop"
    root.mkdir()

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=root, check=True, stdout=subprocess.DEVNULL)

    def commit(tag: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        git("add", ".")
        git("commit", "-qm", tag)
        git("tag", tag)

    git("init", "-q")
    commit(
        "before",
        {
            "Makefile": MAKEFILE,
            "pytest.ini": INI,
            "shop/__init__.py": "",
            "shop/price.py": PRICE,
            "tests/test_price.py": TESTS,
            "mutants.txt": verdicts(5, kept="detected by a", worse="detected by b", same="SURVIVES 2 tests"),
        },
    )
    commit(
        "after",
        {
            "shop/price.py": LATER[0],
            "shop/free.py": MOVED,
            "tests/test_price.py": LATER_TESTS,
            "tests/test_free.py": MOVED_TESTS,
            "mutants.txt": verdicts(
                8, kept="detected by a", worse="SURVIVES 3 tests", same="SURVIVES 2 tests"
            ),
        },
    )
    return root


LOST = """\
lines: 6 of 6 covered before, 7 of 8 covered after; 1 lost
  lost: shop/price.py total: raise ValueError('a discount is never negative')
branches: 2 of 2 covered before, 1 of 2 covered after; 1 lost
  lost: shop/price.py total: if discount < 0: -> raise ValueError('a discount is never negative')
tests: 4 before (test 4, campaign 1), 2 after (test 1, campaign 1); 2 gone, of which 0 were judged
  gone: tests/test_price.py test_a_negative_discount_is_refused (test)
  gone: tests/test_price.py test_nothing_is_free (campaign)
  fewer cases: tests/test_price.py test_a_discount_is_taken_off (2 -> 1)
  another file: tests/test_price.py -> tests/test_free.py test_zero_is_free
  another tier: tests/test_free.py test_zero_is_free (test -> campaign)
mutants: 3 of 3 are in both samples, 2 detected before, 1 after; 1 lost
  lost: shop/price.py total [compare] discount < 0 -> worse
"""


@pytest.mark.campaign
def test_what_two_revisions_lost_is_listed_and_each_is_measured_once(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", str(tmp_path / "store"))
    compared = main(["before", "after", *store], shop)
    assert (capsys.readouterr().out, compared) == (LOST, 1)
    judged = tmp_path / "judged.txt"
    judged.write_text(
        "test_a_negative_discount_is_refused: nowhere\ntest_nothing_is_free: test_zero_is_free\n"
    )
    assert main(["before", "after", "--only", "tests", "--judged", str(judged), *store], shop) == 0
    printed = capsys.readouterr()
    assert "2 gone, of which 2 were judged\n  fewer cases: " in printed.out
    assert printed.err == "", "what was measured is kept"
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=shop, check=True, stdout=subprocess.PIPE)
    assert len(worktrees.stdout.splitlines()) == 1


def covered(source: str, *missing: int, path: str = "shop/price.py") -> Counts:
    """Return the lines of a file, all of which are covered except some."""
    lines = [number for number, line in enumerate(source.splitlines(), 1) if line.strip() and number > 1]
    report = {
        "executed_lines": [line for line in lines if line not in missing],
        "missing_lines": list(missing),
        "executed_branches": [],
        "missing_branches": [],
    }
    return lines_and_branches({"files": {path: report}}, {path: source})[0]


def test_a_line_is_recognised_where_it_moved_to_and_is_lost_where_it_is_not_covered() -> None:
    before = covered(PRICE)
    assert [*lost(before, covered(PRICE))] == []
    assert [place.text for place in lost(before, covered(PRICE, 6))] == [
        "raise ValueError('a discount is never negative')"
    ]
    moved = "\n\nLEAST = 5\n" + PRICE.replace("discount < 0", "discount  <  0").removeprefix(
        '"""Prices of a shop."""'
    )
    assert [*lost(before, covered(moved))] == []
    assert [place.text for place in lost(before, covered(moved, 14))] == ["return total(prices, 0) == 0"]
    assert [*lost(before, covered(moved, path="shop/discount.py"))] == []
    assert [place.function for place in lost(before, covered(moved, 14, path="shop/discount.py"))] == [
        "is_free"
    ]
    assert [*lost(before, covered("def another():\n    return 1\n", 1, 2))] == []


def test_of_equal_statements_of_a_function_as_many_must_be_covered_as_before() -> None:
    source = "\ndef one(a):\n    if a:\n        return 1\n    return 1\n"
    assert len([*lost(covered(source), covered(source, 4))]) == 1
    assert [*lost(covered(source, 5), covered(source, 4))] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "HEAD"], "no revision 'nowhere' in .*: name a commit, a branch or a tag"),
        (["HEAD", "HEAD", "--judged", "judged.txt"], "'test_a' has no reason; write `name: where"),
    ],
)
def test_an_unknown_revision_and_a_judgement_without_a_reason_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("judged.txt").write_text("test_a\n")
    with pytest.raises(SystemExit, match=said):
        main(words)
