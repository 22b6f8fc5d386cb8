"""The ledger of a stored run is what its records about calls say, one after the other."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

from orchestrator.journal.ledger import EffectEntry
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Draft
from orchestrator.testing.journal_contract import BODY
from tests.tiers import examples

TOOLS = {"pay": "d1", "Search": "d2"}
KEYS = ("1:0", "1:1", "2:0", "10:0")


def about_a_call(draw: random.Random) -> Draft:
    """Return a record about a call, of a tool or of a file."""
    key, tool, effect = (
        draw.choice(KEYS),
        draw.choice(("pay", "search", "none")),
        draw.choice(("tool", "file")),
    )
    kind = draw.choice(("intent", "done", "rolled_back", "asked", "approval"))
    body: dict[str, Any] = {"key": key, "tool": tool, "n": draw.random()}
    match kind:
        case "intent":
            call = {"key": key, "tool": tool, "effect": draw.choice(("pure", "irreversible"))}
            more: dict[str, Any] = {"arguments": "{}", "digest": 7, "registered": False}
            kept = {name: value for name, value in more.items() if draw.random() < 0.5}
            return Draft(kind, {"effect": effect, "calls": [call | kept][: draw.randint(0, 2)]})
        case "asked":
            return Draft(kind, body | draw.choice(({}, {"arguments": "{}", "input": {"state": 1}})))
        case "approval":
            return Draft(kind, body | draw.choice(({}, {"decision": "approve", "input": {"a": 1}})))
        case _:
            return Draft(kind, body | {"effect": effect})


def expected(drafts: list[Draft], tools: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return what the entries must have, by key: the rules of the ledger, one record after the other."""
    found: dict[str, dict[str, Any]] = {}

    def entry(key: str) -> dict[str, Any]:
        blank = EffectEntry(key)
        return found.setdefault(key, {one.name: getattr(blank, one.name) for one in fields(EffectEntry)})

    def word(of: Any) -> str:
        return "_unregistered" if of.get("registered") is False else of["tool"]

    folded = {name.casefold(): digest for name, digest in tools.items()}
    for kind, body in drafts:
        if kind in {"intent", "done", "rolled_back"} and body["effect"] != "tool":
            continue
        for call in body["calls"] if kind == "intent" else ():
            told = {"tool": word(call), "effect": call["effect"], "arguments": call.get("arguments")}
            entry(call["key"]).update(told, open=True, digest=str(call.get("digest", "")))
            if tools:
                entry(call["key"])["declared"] = folded.get(word(call).casefold(), "")
        if kind == "done":
            entry(body["key"]).update(tool=word(body), open=False, done=body, asked=None)
        elif kind == "rolled_back":
            entry(body["key"])["open"] = False
        elif kind == "asked":
            entry(body["key"]).update(tool=body["tool"], asked=body, arguments=body.get("arguments"))
        elif kind == "approval":
            one = entry(body["key"])
            asked = one["asked"] or {}
            if asked.get("input") and body.get("input"):
                one["inputs"] = (*one["inputs"], {"input": asked["input"], "answer": body})
            elif one["inputs"] and body.get("decision") == "approve" and asked.get("why") != "approval":
                one["inputs"] = (*one["inputs"], {"again": True})
            one.update(asked=None, answer=body)
    return found


def test_the_ledger_follows_the_records_about_calls_in_their_order(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(examples(200)):
        tools = draw.choice((TOOLS, {}))
        drafts = [about_a_call(draw) for _ in range(draw.randrange(25))]
        stored = StoredRun("r")
        stored.fold("created", BODY | ({"definition": tools} if tools else {}))
        for kind, body in drafts:
            stored.fold(kind, body)
        found = {
            key: {one.name: getattr(entry, one.name) for one in fields(EffectEntry)}
            for key, entry in stored.ledger.entries.items()
        }
        assert found == expected(drafts, tools)
        assert [*found] == [*expected(drafts, tools)], "in the order of their first record"
