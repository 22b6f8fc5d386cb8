"""Records without their content: what may be published, and that nothing is in both parts or in neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.journal.redacted import SHOWN, parted

CONTEXT = (
    "limits usage iteration base recalled next wrapping_up degraded refinements rubric number plan_status "
    "plan_number expires_at previewed config shown again confirmed consent.plan_id consent.version "
    "consent.digest consent.by consent.at spent.usage spent.below spent.seconds spent.tool_calls "
    "spent.retries spent.restarts spent.compactions"
)
USAGE = (
    "input_tokens output_tokens cached_input_tokens cache_write_tokens reasoning_tokens cost_micros "
    "cost_max_micros estimated_input_tokens estimated_output_tokens estimated_cost_micros"
)


def inside(name: str, members: str) -> str:
    return " ".join(f"{name}.{member}" for member in members.split())


MEMBERS = {
    "created": (
        "schema graph fingerprint table_changes at parent_run_id conversation_id agent agent_version definition "
        "tags currency " + inside("context", CONTEXT)
    ),
    "transition": (
        "seq event source dest at t internal iteration guard tokens reason dwell guards attempts fingerprint "
        "table_changes error.type error.reason error.state error.hook error.where error.fields.kind "
        "error.fields.status error.fields.request_id"
    ),
    "context": CONTEXT + " messages.keep",
    "answer": "iteration model finish_reason seconds retries offered usage at t tool_calls attempts",
    "intent": (
        "effect turn key step change path mode at calls.key calls.position calls.tool calls.effect "
        "calls.digest calls.registered calls.agent calls.timeout calls.total_timeout"
    ),
    "step": "step status at",
    "done": "effect key step exit tool registered outcome seconds queued cut at whole returned.type",
    "memory": "stored",
    "stage": "seq state tokens counts at error made.score",
    "program": "mark call name host",
    "program_ended": "mark",
    "coding_agent": "call agent model session " + inside("usage", USAGE),
    "rolled_back": "effect key step outcome at",
    "fan": "state visit items join concurrency at",
    "joined": "state visit ok observed limit detail branches completed agree ended at",
    "asked": (
        "key tool digest version why expires_at epoch effect at verdict.ok verdict.guard verdict.observed "
        "verdict.limit"
    ),
    "approval": "key digest decision by why at id number end",
    "control": "id key kind by why at number refused",
    "started": "id agent run_id by at number refused",
    "claimed": "at by",
    "reserved": "usage sub_calls",
    "unparked": "at",
    "parked": "reason before at t calls tools by why programs guards attempts fingerprint table_changes",
    "resumed": (
        "at by limits charged ended agent from_agent agent_version definition " + inside("context", CONTEXT)
    ),
    "migrated": "from to table_changes at by state next " + inside("context", CONTEXT),
    "recovered": "from to state why at " + inside("context", CONTEXT),
    "ended": "outcome reason at t returned.type",
}
"""Kind -> the members that readers of records without content rely on, those of inner objects after a dot."""
HIDDEN = "hunter2"
WORDS = {"finish_reason": "stop", "tool": "look"}
"""Members that are shown only if they are known words."""


def names(spec: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, inner in spec.items():
        yield from [f"{before}{name}"] if inner is None else names(inner, f"{before}{name}.")


def nested(path: str, value: object) -> dict[str, Any]:
    name, _, rest = path.partition(".")
    return {name: nested(rest, value) if rest else value}


def test_the_members_that_are_no_content_are_these() -> None:
    assert {kind: sorted(names(spec)) for kind, spec in SHOWN.items()} == {
        kind: sorted(text.split()) for kind, text in MEMBERS.items()
    }


@pytest.mark.parametrize("kind", MEMBERS)
def test_the_members_that_are_no_content_are_shown(kind: str) -> None:
    for path in MEMBERS[kind].split():
        body = nested(path, WORDS.get(path.rpartition(".")[2], 5))
        assert parted(kind, body) == (body, {}), path
        assert parted(kind, body).left_out == []


@pytest.mark.parametrize("kind", [*SHOWN, "unknown"])
def test_every_other_member_is_content(kind: str) -> None:
    body = {"text": HIDDEN, "arguments": {"a": HIDDEN}, "output": [HIDDEN]}
    assert parted(kind, body) == ({}, body)
    assert parted(kind, body).left_out == ["arguments", "output", "text"]


def test_an_inner_object_and_each_of_a_list_is_split_too() -> None:
    calls = [{"key": "1:0", "arguments": HIDDEN}, {"key": "1:1"}]
    error = {"type": "ValueError", "message": HIDDEN}
    assert parted("intent", {"effect": "tool", "calls": calls}) == (
        {"effect": "tool", "calls": [{"key": "1:0"}, {"key": "1:1"}]},
        {"calls": [{"arguments": HIDDEN}, {}]},
    )
    assert parted("intent", {"calls": [{"key": "1:1"}]}).content == {}
    assert parted("transition", {"seq": 1, "error": error}) == (
        {"seq": 1, "error": {"type": "ValueError"}},
        {"error": {"message": HIDDEN}},
    )
    assert parted("transition", {"error": None}) == ({"error": None}, {})
    assert parted("transition", {"error": HIDDEN}) == ({}, {"error": HIDDEN}), "an object was expected"
    assert parted("intent", {"calls": [HIDDEN]}) == ({}, {"calls": [HIDDEN]})


def test_words_that_a_model_invented_are_not_shown() -> None:
    invented = {"tool": HIDDEN, "registered": False}
    assert parted("done", invented) == ({"tool": "_unregistered", "registered": False}, {"tool": HIDDEN})
    assert parted("answer", {"finish_reason": HIDDEN}) == (
        {"finish_reason": "_other"},
        {"finish_reason": HIDDEN},
    )


def test_what_is_left_out_is_named_by_its_parts() -> None:
    body = {
        "seq": 1,
        "error": {"type": "ValueError", "message": HIDDEN, "other": {"a": HIDDEN}},
        "text": HIDDEN,
    }
    assert parted("transition", body).left_out == ["error.message", "error.other", "text"]
    spent = {"context": {"messages": [HIDDEN], "spent": {"by_tool": {HIDDEN: 1}, "seconds": 1.0}}}
    assert parted("created", spent).left_out == ["context.messages", "context.spent.by_tool"]


def test_a_change_of_a_part_is_shown_like_the_part() -> None:
    assert parted(
        "context", {"spent.seconds": 1.5, "spent.by_tool": {HIDDEN: 1}, "spent": {"seconds": 2}}
    ) == (
        {"spent.seconds": 1.5, "spent": {"seconds": 2}},
        {"spent.by_tool": {HIDDEN: 1}},
    )


bodies = st.dictionaries(
    st.sampled_from(sorted({path.partition(".")[0] for text in MEMBERS.values() for path in text.split()}))
    | st.text(max_size=5),
    st.recursive(
        st.none() | st.integers() | st.just(HIDDEN),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=5,
)


@given(kind=st.sampled_from(sorted(SHOWN)), body=bodies)
def test_each_member_is_shown_or_content_and_the_body_is_not_changed(kind: str, body: dict[str, Any]) -> None:
    before = repr(body)
    shown, content = parted(kind, body)
    assert repr(body) == before
    assert shown.keys() | content.keys() == body.keys()
    for name in shown.keys() - content.keys():
        assert shown[name] == body[name]
