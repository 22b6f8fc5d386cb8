from __future__ import annotations

import json

import pytest

from orchestrator.kernel.graph import FORMATS
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.kernel.toy import TOY

MERMAID = """\
stateDiagram-v2
    [*] --> init
    init --> work: start
    work --> check: did
    check --> work: again [may_work]
    check --> ask: asked
    ask --> work: answer
    ask --> ask: note
    ask --> lost: late
    check --> done: finish
    init --> lost: fail
    work --> lost: fail
    check --> lost: fail
    ask --> lost: fail
    done --> lost: fail
    done --> [*]
    lost --> [*]
    classDef current fill:#2a9d4a,color:#fff
    class ask current
"""

DOT = r"""digraph "toy" {
    rankdir=LR;
    node [shape=box, style="rounded"];
    "init";
    "work";
    "check";
    "ask" [style="rounded,filled", fillcolor="#9be3b0"];
    "done" [peripheries=2];
    "lost" [peripheries=2];
    "init" -> "work" [label="start"];
    "work" -> "check" [label="did"];
    "check" -> "work" [label="again\n[may_work]"];
    "check" -> "ask" [label="asked"];
    "ask" -> "work" [label="answer"];
    "ask" -> "ask" [label="note"];
    "ask" -> "lost" [label="late"];
    "check" -> "done" [label="finish"];
    "init" -> "lost" [label="fail"];
    "work" -> "lost" [label="fail"];
    "check" -> "lost" [label="fail"];
    "ask" -> "lost" [label="fail"];
    "done" -> "lost" [label="fail"];
}
"""

TABLE = """\
from   event   to     only when
-----  ------  -----  ---------
init   start   work
work   did     check
check  again   work   may_work
check  asked   * ask
* ask  answer  work
* ask  note    * ask
* ask  late    lost
check  finish  done
init   fail    lost
work   fail    lost
check  fail    lost
* ask  fail    lost
done   fail    lost
"""


@pytest.mark.parametrize(("name", "golden"), [("mermaid", MERMAID), ("dot", DOT), ("table", TABLE)])
def test_a_graph_is_drawn_with_its_current_state(name: str, golden: str) -> None:
    assert FORMATS[name](TOY, "ask") == golden


def test_without_a_current_state_nothing_is_marked() -> None:
    assert FORMATS["mermaid"](TOY, None) == MERMAID.partition("    classDef")[0]
    assert FORMATS["dot"](TOY, None) == DOT.replace(
        '"ask" [style="rounded,filled", fillcolor="#9be3b0"]', '"ask"'
    )
    assert "*" not in FORMATS["table"](TOY, None)


@pytest.mark.parametrize("name", FORMATS)
def test_a_terminal_state_can_be_the_current_one(name: str) -> None:
    assert FORMATS[name](TOY, "lost") != FORMATS[name](TOY, None)


def test_json_is_the_whole_table() -> None:
    drawn = json.loads(FORMATS["json"](LLM_LOOP, "init"))
    assert drawn.pop("current") == "init"
    assert drawn.pop("fingerprint") == LLM_LOOP.fingerprint
    assert drawn == LLM_LOOP.describe()
    assert len(drawn["edges"]) == len(LLM_LOOP.rows)
    assert drawn["edges"][0] == {
        "event": "start_loop",
        "source": "init",
        "dest": "await_llm",
        "guard": None,
        "internal": False,
    }


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("mermaid", "    {source} --> {dest}: {event}"),
        ("dot", '    "{source}" -> "{dest}" [label="{event}'),
        ("table", "{source}  {event}  {dest}"),
    ],
)
def test_every_row_of_a_shipped_graph_is_in_every_picture(name: str, row: str) -> None:
    drawn = " ".join(FORMATS[name](LLM_LOOP, None).split())
    for source, event, dest, _ in LLM_LOOP.rows:
        assert " ".join(row.format(source=source.value, event=event.value, dest=dest.value).split()) in drawn
