"""Edits of a project's source, in files as their owners write them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.project.addition import Project, Source
from orchestrator.project.creation import LONGEST, command_for, create_project, part_name, project_name


@pytest.fixture
def project(tmp_path: Path) -> Project:
    create_project("shop", tmp_path)
    return Project.at(tmp_path / "shop")


def read(project: Project, path: str) -> str:
    return (project.folder / path).read_text()


def test_a_state_is_put_on_the_edge_that_leads_to_the_end(project: Project) -> None:
    assert [str(path) for path in project.add_state("translate")] == [
        "tests/test_answer_loop_translate.py",
        "shop/machines/answer_loop.py",
        "shop/callbacks/answer_loop.py",
    ]
    table = read(project, "shop/machines/answer_loop.py")
    for line in (
        'states=["review", "translate"],',
        'events=["accepted", "sent_back", "translate_done"],',
        'Edge("accepted", ("review",), "translate"),',
        'Edge("translate_done", ("translate",), "finalize"),',
        'Edge("failure", ("translate",), "terminate_error"),',
        'Edge("sent_back", ("review",), "await_llm", may_revise),',
    ):
        assert line in table
    assert "async def enter_translate(" in read(project, "shop/callbacks/answer_loop.py")


def test_a_state_of_a_machine_with_enums_gets_members_of_them(project: Project) -> None:
    project.add_machine("returns")
    project.add_state("pack", "returns")
    table = read(project, "shop/machines/returns.py")
    for line in (
        '    FAILED = "failed"\n    PACK = "pack"\n',
        '    PACK_DONE = "pack_done"\n',
        "Edge(Event.FINISH, (State.WORK,), State.PACK),",
        "Edge(Event.PACK_DONE, (State.PACK,), State.DONE),",
        "Edge(Event.FAILURE, (State.PACK,), State.FAILED),",
    ):
        assert line in table


def test_comments_layout_and_letters_outside_of_ascii_stay(project: Project) -> None:
    file = project.folder / "shop/machines/answer_loop.py"
    changed = file.read_text().replace(
        '        Edge("accepted", ("review",), "finalize"),\n',
        '        # größer – ein Kommentar\n        Edge(event="x", sources=(), dest="y") if False else\n'
        '        Edge("accepted", (  # ü\n            "review",\n        ), "finalize"),  # Ende ✓\n',
    )
    file.write_text(changed)
    project.add_state("polish")
    table = file.read_text()
    ast.parse(table)
    assert "# größer – ein Kommentar\n" in table
    assert '        ), "polish"),\n' in table.replace(",  # Ende ✓", ",")
    assert table.count("✓") == 1


def test_a_tool_is_imported_and_listed(project: Project) -> None:
    project.add_tool("find_customer")
    listing = read(project, "shop/tools/__init__.py")
    assert "from shop.tools.find_customer import find_customer\n" in listing
    assert "TOOLS = (find_order, refund_order, find_customer)\n" in listing


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("TOOLS = ()", "TOOLS = (b,)"),
        ("TOOLS = (a,)", "TOOLS = (a, b,)"),
        ("TOOLS = []", "TOOLS = [b]"),
        ("TOOLS = (\n    a,\n    c,\n)", "TOOLS = (\n    a,\n    c,\n    b,\n)"),
    ],
)
def test_an_element_is_appended_in_the_layout_of_the_others(before: str, after: str) -> None:
    source = Source(before + "\n", "x.py")
    found = source.assigned("TOOLS")
    assert found is not None
    source.append(found, "b")
    assert source.edited() == after + "\n"


def test_a_refused_addition_changes_no_file(project: Project) -> None:
    def files() -> dict[Path, str]:
        return {file: file.read_text() for file in project.folder.rglob("*") if file.is_file()}

    (project.folder / "tests/test_answer_loop_translate.py").write_text("")
    before = files()
    for add, name in (
        (project.add_state, "translate"),
        (project.add_tool, "find_order"),
        (project.add_machine, "agent"),
        (project.add_guard, "revisions"),
    ):
        with pytest.raises(ConfigError, match="exists; choose another name"):
            add(name)
    assert files() == before


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("shop/machines/answer_loop.py", "GRAPH = (", "was never closed; correct the file first"),
        ("shop/machines/answer_loop.py", "GRAPH = 1\n", "has no unguarded Edge"),
        (
            "shop/machines/answer_loop.py",
            'Edge("a", "b", "c"), Edge("failure", "b", "d")\n',
            "no list states=",
        ),
        (
            "shop/callbacks/answer_loop.py",
            "async def enter_translate(run): ...\n",
            "has a hook enter_translate",
        ),
    ],
)
def test_a_file_in_another_form_is_named(project: Project, path: str, text: str, problem: str) -> None:
    (project.folder / path).write_text(text)
    with pytest.raises(ConfigError, match=problem) as refused:
        project.add_state("translate")
    assert path in str(refused.value)


@pytest.mark.parametrize("taken", ["review", "init", "finalize", "await_llm"])
def test_a_state_that_the_machine_has_is_refused(project: Project, taken: str) -> None:
    with pytest.raises(ConfigError, match="already; choose another name"):
        project.add_state(taken)


def test_a_table_without_tools_is_named(project: Project) -> None:
    (project.folder / "shop/tools/__init__.py").write_text("import math\nTOOLS = list()\n")
    with pytest.raises(ConfigError, match="no tuple TOOLS"):
        project.add_tool("find_customer")


# ---- names ----


@pytest.mark.parametrize("name", ["shop", "my-shop", "my_shop", "a1"])
def test_a_name_of_a_project(name: str) -> None:
    assert project_name(name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../shop", "is a path"),
        ("a/b", "is a path"),
        (".", "is a path"),
        ("", "cannot name a project"),
        ("a\\b", "is a path"),
        ("class", "is a keyword of Python"),
        ("match", "is a keyword of Python"),
        ("json", "is a module of Python or of an installed package"),
        ("orchestrator", "is a module of Python or of an installed package"),
        ("tests", "is the name of a folder of every project"),
        ("Shop", "lower-case letters"),
        ("1shop", "lower-case letters"),
        ("-shop", "lower-case letters"),
        ("shop-", "lower-case letters"),
        ("sh op", "lower-case letters"),
        ("größe", "lower-case letters"),
        ("a\n", "lower-case letters"),
        ("a" * (LONGEST + 1), "lower-case letters"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        project_name(name)


@pytest.mark.parametrize("name", ["lambda", "A", "a-b", "a.b", "../a", "print", "", "_a", "type"])
def test_a_name_of_a_part_is_a_plain_python_name(name: str) -> None:
    with pytest.raises(ConfigError):
        part_name(name, "tool")


@pytest.mark.parametrize(("kind", "name"), [("tool", "tool"), ("guard", "pytest"), ("guard", "check_guard")])
def test_a_name_that_the_new_files_import_is_refused(project: Project, kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match="for something else"):
        {"tool": project.add_tool, "guard": project.add_guard}[kind](name)


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, None),
        ('{"url": "https://example.org/fsm.whl", "archive_info": {}}', None),
        (
            '{"url": "file:///home/me/my%20fsm", "dir_info": {"editable": true}}',
            "pip wheel --no-deps -w wheels '/home/me/my fsm'",
        ),
        (
            '{"url": "file:///tmp/fsm.whl", "archive_info": {}}',
            "pip wheel --no-deps -w wheels /tmp/fsm.whl",
        ),
    ],
)
def test_a_library_from_no_index_is_put_into_the_project_as_a_wheel(
    direct_url: str | None, command: str | None
) -> None:
    assert command_for(direct_url) == command
