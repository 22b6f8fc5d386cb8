"""A coding loop on a small repository: a shell agent does the tasks of a list, and each task is a commit.

    python -m orchestrator.examples.coding project

The command makes a git repository `project` with a list of tasks and one test for each, which fails. The ralph loop
plans from the list, lets the executor do one task after the other, and reviews each: its test passes, and its work is
committed. The executor is a model with a shell in the repository; here it follows a script, so that no key is needed.
The runs are in runs.db of the repository. The same command again continues a killed run, or prints the result of one
that has ended. If the kill interrupted a command of the shell, a person decides whether it runs again: the example
prints the question, and the command that shows how to answer it.

The shell has the rights of the user who starts the command. Run a real model in a container.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from orchestrator.errors import Held, Suspended
from orchestrator.examples.terminal import complain, say
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.ralph import AgentRequest, PromptAgent, Ralph
from orchestrator.tools.spec import ToolSpec, tool

TASKS = {
    "task-1": (
        "slug",
        "Write slug(title): lower case, words joined by -",
        "slug('Two Moons') == 'two-moons'",
    ),
    "task-2": ("title", "Write title(slug), the way back", "title('two-moons') == 'Two Moons'"),
}
"""Task -> its function, what to do, and what its test checks."""
CODE = {
    "task-1": "def slug(title):\n    return '-'.join(title.lower().split())\n",
    "task-2": "def title(slug):\n    return slug.replace('-', ' ').title()\n",
}
"""What the scripted model writes for each task."""
TEST = """import unittest


class Case(unittest.TestCase):
    def test(self):
        from {function} import {function}

        self.assertTrue({check})
"""


def test_of(task: str) -> str:
    """Return the module of a task's test."""
    return f"test_{task.replace('-', '_')}"


def git(folder: Path, *words: str) -> str:
    """Run git in the repository and return its output. Raises CalledProcessError."""
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout  # noqa: S603, S607


def create_repository(folder: Path) -> None:
    """Create the repository with its list of tasks and their tests."""
    folder.mkdir(parents=True)
    items = "".join(f"- {name}: {what}\n" for name, (_, what, _) in TASKS.items())
    (folder / "TASKS.md").write_text(f"# Tasks\n\n{items}")
    (folder / ".gitignore").write_text("__pycache__/\n.ralph-sessions/\nruns.db*\n")
    for name, (function, _, check) in TASKS.items():
        (folder / f"{test_of(name)}.py").write_text(TEST.format(function=function, check=check))
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "coding loop")
    git(folder, "config", "user.email", "coding@localhost")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "List the tasks")


def shell_tool(folder: Path) -> ToolSpec:
    """Return the tool of the executor."""

    @tool(effect="irreversible")
    async def shell(command: str) -> str:
        """Run a command in the repository and return its output and exit code."""
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", command),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
        return f"{output.decode(errors='replace')[-4000:]}exit code {process.returncode}"

    return shell


def model(request: Request) -> Answer:
    """Answer as a model would: write the code and test it, commit, then report."""
    prompt = next(message.text for message in request.messages if message.role == "user")
    [task], [report] = (
        re.findall(r"^TASK_ID: (.+)$", prompt, re.MULTILINE),
        re.findall(r'"report_path": "(.+?)"', prompt),
    )
    results = [message.text for message in request.messages if message.role == "tool"]
    function, test = TASKS[task][0], shlex.join([sys.executable, "-m", "unittest", test_of(task)])
    if not results:
        return call("shell", command=f"printf %s {shlex.quote(CODE[task])} > {function}.py && {test}")
    if len(results) == 1:
        text = f"# Task Report: {task}\n\n## PART 1: IMPLEMENTATION REPORT\n\n{results[0]}\n"
        commit = f"git add . && git commit -qm {shlex.quote(f'{task}: write {function}')}"
        return call("shell", command=f"{commit} && printf %s {shlex.quote(text)} > {report}")
    done = all(text.endswith("exit code 0") for text in results)
    return json.dumps(
        {
            "status": "completed" if done else "failed",
            "report_path": Path(report).name,
            "success_criteria_met": done,
        }
    )


def coding_loop(folder: Path, journal: SqliteJournal) -> Ralph:
    """Return the loop of a repository. For a real model, replace the FunctionLLM."""

    def plan(request: AgentRequest) -> dict[str, object]:
        session = Path(request.input["SESSION_PATH"])
        if not (session / "tasks.md").exists():
            (session / "tasks.md").write_text((folder / "TASKS.md").read_text())
        return {"status": "completed"}

    def review(request: AgentRequest) -> dict[str, object]:
        test = [sys.executable, "-m", "unittest", test_of(str(request.task_id))]
        passes = subprocess.run(test, cwd=folder, capture_output=True, check=False).returncode == 0  # noqa: S603
        clean = git(folder, "status", "--porcelain") == ""
        found = [("the test passes", passes), ("everything is committed", clean)]
        return {
            "status": "completed",
            "verdict": "Qualified" if passes and clean else "Failed",
            "criteria_results": [{"criterion": name, "met": met} for name, met in found],
            "feedback": "; ".join(f"not met: {name}" for name, met in found if not met),
        }

    executor = PromptAgent(FunctionLLM(model, model="scripted"), folder=folder, tools=[shell_tool(folder)])
    return Ralph(plan, executor, review, root=folder / ".ralph-sessions", journal=journal, observers=())


async def main() -> int:
    """Do the tasks of a repository, and print them with the commits."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.examples.coding")
    parser.add_argument("folder", type=Path, help="The repository; it is created if it does not exist.")
    folder = parser.parse_args().folder.absolute()
    if not folder.exists():
        create_repository(folder)
    async with SqliteJournal(folder / "runs.db") as journal:
        loop = coding_loop(folder, journal)
        try:
            result = await loop.run(
                "Do the tasks of TASKS.md.", run_id="tasks", if_exists="resume", wait="never"
            )
        except (Held, Suspended) as error:
            complain(str(error))
            return 1
    for question in result.questions:
        complain(f"{question.text} ({question.why})")
        show = (
            "orchestrator",
            "runs",
            "show",
            question.run_id,
            "--full",
            "--journal",
            str(folder / "runs.db"),
        )
        complain(f"waiting for you: {shlex.join(show)}")
    if result.waiting:
        return 1
    say(f"{result.outcome}: {result.qualified} of {len(result.tasks)} tasks, {result.executions} executions")
    for task in result.tasks:
        say(f"[{task.marker}] {task.id}")
    say(git(folder, "log", "--reverse", "--format=%s").rstrip())
    return 0 if result.outcome == "completed" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
