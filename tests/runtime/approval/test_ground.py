"""The project as plans see it: what is listed, what would change, what changed meanwhile, what a person is shown."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.limits import PlanCaps
from orchestrator.machines.approval.plan import ApprovalPlan, PlanDraft, part, selection
from orchestrator.runtime.approval.workspace import NO_UNDO, Workspace, encoded, fault_of, look, preview
from tests.runtime.approval.hostile import DIFF, create, delete, edit, project, run

STEPS: list[dict[str, Any]] = [
    create("n.py"),
    {**edit("a.py"), "id": "2"},
    delete("src/b.py", "3"),
    {**edit("n.py", "@@ -1 +1,2 @@\n x = 1\n+y = 2\n"), "id": "4"},
    {**run("python3", "-c", "print('a b')"), "id": "5"},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path)


async def planned(root: Path, *steps: dict[str, Any], caps: PlanCaps | None = None) -> ApprovalPlan:
    draft = PlanDraft.read({"goal": "g", "steps": list(steps)})
    return await Workspace(root, caps).validated(draft, plan_id="plan-1", version=1)


def test_each_error_of_the_system_has_a_code() -> None:
    codes = {
        "FS-001": ["ENOENT"],
        "FS-002": ["EEXIST"],
        "FS-003": ["EACCES", "EPERM"],
        "FS-004": ["EROFS"],
        "FS-005": ["EBUSY", "EAGAIN", "ETXTBSY"],
        "FS-009": ["EISDIR"],
        "FS-010": ["EIO"],
        "FS-011": ["ENAMETOOLONG"],
        "FS-012": ["ETIMEDOUT"],
        "RES-001": ["ENOSPC", "EDQUOT"],
        "RES-003": ["ENOMEM", "EMFILE", "ENFILE"],
        "SEC-011": ["ENOTDIR", "ELOOP"],
    }
    for code, names in codes.items():
        faults = [fault_of(OSError(getattr(errno, name), ""), "a.py") for name in names]
        assert [fault.code for fault in faults] == [code] * len(names)
        assert all(fault.message.startswith("'a.py' ") for fault in faults)


async def test_the_same_draft_on_the_same_project_is_the_same_plan(root: Path) -> None:
    one, two = [await planned(root, *STEPS) for _ in range(2)]
    assert one == two
    assert one.digest == two.digest
    assert [target.path for target in one.targets] == ["a.py", "n.py", "src/b.py"]
    assert [target.sha256 is None for target in one.targets] == [False, True, False]
    assert [len(outcome.files) for outcome in one.outcomes] == [1, 1, 1, 1, 0]


async def test_nothing_is_written_by_validation(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    await planned(root, *STEPS)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


async def test_a_person_is_shown_what_will_be_and_what_cannot_be_undone(root: Path) -> None:
    shown = await preview(await planned(root, *STEPS), root)
    assert [(one.step_id, one.kind, one.path, one.added, one.removed) for one in shown] == [
        ("1", "create", "n.py", 1, 0),
        ("2", "edit", "a.py", 1, 1),
        ("3", "delete", "src/b.py", 0, 1),
        ("4", "edit", "n.py", 1, 0),
        ("5", "run", "", 0, 0),
    ]
    assert shown[0].text == "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert shown[1].text == f"--- a/a.py\n+++ b/a.py\n{DIFF}"
    assert shown[2].text == "--- a/src/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-b = 1\n"
    assert (shown[4].text, shown[4].note) == ("""python3 -c 'print('"'"'a b'"'"')'""", NO_UNDO)


async def test_a_preview_of_a_file_that_changed_says_so(root: Path) -> None:
    plan = await planned(root, *STEPS)
    (root / "a.py").write_text("other\n")
    shown = await preview(plan, root)
    assert [one.note for one in shown] == [
        "",
        "the file is not as it was when the plan was made",
        "",
        "",
        NO_UNDO,
    ]
    assert (shown[1].text, shown[1].added, shown[1].removed) == (DIFF, 1, 1), (
        "what the plan says of it counts"
    )


async def test_what_a_plan_adds_is_counted_in_lines_of_the_file_and_nothing_else(root: Path) -> None:
    content = "one\x0c+still one\u2028+still one\n-- two\n"
    plan = await planned(root, create("n.txt", content))
    (shown,) = await preview(plan, root)
    assert (shown.added, shown.removed) == (2, 0)
    (root / "n.txt").write_text(content)
    plan = await planned(root, delete("n.txt"))
    (shown,) = await preview(plan, root)
    assert (shown.added, shown.removed) == (0, 2)


def gone(root: Path) -> None:
    (root / "a.py").unlink()


def linked(root: Path) -> None:
    gone(root)
    (root / "a.py").symlink_to("src/b.py")


def to_folder(root: Path) -> None:
    gone(root)
    (root / "a.py").mkdir()


def to_pipe(root: Path) -> None:
    gone(root)
    os.mkfifo(root / "a.py")


def other_way(root: Path) -> None:
    (root / "src").rename(root / "moved")
    (root / "src").symlink_to("moved")


def changed(root: Path) -> None:
    (root / "a.py").write_text("x\n")


def made(root: Path) -> None:
    (root / "n.py").write_text("x\n")


CHANGES: list[tuple[Callable[[Path], None], str, str]] = [
    (changed, "a.py", "was changed outside"),
    (gone, "a.py", "was removed outside"),
    (made, "n.py", "was made outside"),
    (linked, "a.py", "was replaced outside: a symlink is there"),
    (to_folder, "a.py", "was replaced outside: a folder is there"),
    (to_pipe, "a.py", "was replaced outside: a device, pipe or socket is there"),
    (other_way, "src/b.py", "was replaced outside: its folder is no longer a folder"),
]


@pytest.mark.parametrize(("change", "path", "why"), CHANGES)
async def test_drift_is_told_with_what_was_expected_and_found(
    root: Path, change: Callable[[Path], None], path: str, why: str
) -> None:
    plan = await planned(root, *STEPS)
    ground = Workspace(root)
    assert not await ground.drift(plan)
    change(root)
    report = await ground.drift(plan)
    (told,) = report.plain()
    assert (told["path"], told["why"]) == (path, why)
    expected = plan.expected()[path].model_dump(mode="json", exclude={"path"})
    assert told["expected"] == expected != told["found"]


async def test_a_part_of_a_plan_is_validated_as_a_plan_of_its_own(root: Path) -> None:
    whole = await planned(root, *STEPS)
    chosen = selection(whole, ["4"])
    assert chosen == ("1", "4")
    derived = await Workspace(root).validated(
        part(whole, chosen), plan_id="plan-2", version=1, derived_from=whole.digest
    )
    assert (derived.id, derived.version, derived.derived_from) == ("plan-2", 1, whole.digest)
    assert [target.path for target in derived.targets] == ["n.py"]


async def test_the_listing_leaves_out_what_no_plan_may_touch(root: Path) -> None:
    for folder in ("build", "node_modules", ".venv", "src/__pycache__"):
        (root / folder).mkdir()
        (root / folder / "x.py").write_text("x")
    (root / ".env").write_text("KEY=1")
    (root / "link.py").symlink_to("a.py")
    (root / "link").symlink_to("..")
    os.mkfifo(root / "pipe")
    (root / "big.txt").write_bytes(b"x" * 1_048_577)
    (root / os.fsdecode(b"\xff.txt")).write_text("x")
    assert [one.path for one in await Workspace(root).tree()] == ["a.py", "src/b.py"]


@pytest.mark.parametrize(
    "cap", ["steps", "files_per_step", "files", "diff_lines", "constraints", "deletions", "operation_bytes"]
)
async def test_a_cap_of_n_allows_exactly_n_and_0_any_number(root: Path, cap: str) -> None:
    for name in ("c.py", "d.py"):
        (root / name).write_text("x = 1\n")
    steps = {
        "steps": [{**create(f"{n}.py"), "id": str(n)} for n in range(2)],
        "files_per_step": [
            {"id": "1", "kind": "create", "files": [{"path": f"{n}", "content": "x"} for n in range(2)]}
        ],
        "files": [{**create(f"{n}.py"), "id": str(n)} for n in range(2)],
        "diff_lines": [create("n.py", "x = 1\ny = 1\n")],
        "constraints": [create("n.py", constraints=["a", "b"])],
        "deletions": [delete("c.py"), delete("d.py", "2")],
        "operation_bytes": [create("n.txt", "é")],
    }[cap]

    def caps(allowed: int) -> PlanCaps:
        given: dict[str, Any] = {cap: allowed}
        return PlanCaps(**given)

    for allowed in (2, 0):
        plan = await planned(root, *steps, caps=caps(allowed))
        assert len(plan.steps) == len(steps)
    with pytest.raises(ApprovalError):
        await planned(root, *steps, caps=caps(1))


@pytest.mark.parametrize("where", ["nothing/here", "a.py"])
def test_a_project_that_is_no_folder_is_refused(root: Path, where: str) -> None:
    with pytest.raises(ApprovalError, match="CFG-003"):
        Workspace(root / where)


async def test_a_project_that_is_reached_by_a_link_is_the_folder_it_leads_to(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "way").symlink_to(root)
    assert Workspace(tmp_path / "way").root == root


STALE = edit("a.py", DIFF.replace("one = 1", "one = 0"))
BROKEN = {**create("n.py", "def ("), "id": "2"}
GONE = {**delete("nowhere.py"), "id": "3"}


@pytest.mark.parametrize(
    ("steps", "code", "faults"),
    [
        ([STALE], "VAL-003", ["VAL-003"]),
        ([STALE, {**STALE, "id": "2"}], "VAL-003", ["VAL-003"]),
        ([BROKEN], "VAL-005", ["VAL-005"]),
        ([STALE, BROKEN], "VAL-004", ["VAL-003", "VAL-005"]),
        ([GONE], "VAL-004", ["FS-001"]),
        ([STALE, GONE], "VAL-004", ["FS-001", "VAL-003"]),
        ([BROKEN, GONE], "VAL-004", ["FS-001", "VAL-005"]),
    ],
)
async def test_a_plan_has_the_code_that_is_retried_only_where_all_its_faults_have_it(
    root: Path, steps: list[dict[str, Any]], code: str, faults: list[str]
) -> None:
    with pytest.raises(ApprovalError) as refused:
        await planned(root, *steps)
    assert (refused.value.code, sorted({one.code for one in refused.value.faults})) == (code, faults)


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"", "utf-8"),
        ("für\n".encode(), "utf-8"),
        ("für\n".encode("utf-8-sig"), "utf-8-sig"),
        ("für\n".encode("latin-1"), "binary"),
        (b"text\0", "binary"),
        ("text\0".encode("utf-8-sig"), "binary"),
        ("text".encode("utf-16"), "binary"),
    ],
)
def test_a_file_is_utf_8_text_with_or_without_a_mark_or_binary(
    tmp_path: Path, content: bytes, encoding: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    if encoding == "binary":
        with pytest.raises(ApprovalError) as refused:
            look(tmp_path, "a")
        assert refused.value.fault.code == "FS-007"
        return
    found = look(tmp_path, "a")
    assert found.fingerprint.encoding == encoding
    assert encoded(found.text or "", encoding) == content
