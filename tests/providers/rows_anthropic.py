"""What each recorded exchange with Anthropic's Messages API comes to."""

from __future__ import annotations

from orchestrator.llm.message import Response, ToolCall, Usage
from tests.providers.exchange import Expected, Failed, Place

ROWS: dict[Place, Expected] = {
    ("03-anthropic-plain-stream", 0): Response(
        "- Captain\n- Scoop", (), "end_turn", Usage(17, 10), "claude-sonnet-4-5-20250929"
    ),
    ("07-anthropic-one-tool-stream", 0): Response(
        None,
        (ToolCall("toolu_01UmKD1vMphVCN9vw8PEMk1q", "fixed_version", "{}"),),
        "tool_use",
        Usage(563, 37),
        "claude-haiku-4-5-20251001",
    ),
    ("07-anthropic-one-tool-stream", 1): Response(
        'The version is **0.32a0**.\n\nHere\'s a joke: I guess you could say this version is still in the "alpha" '
        "stages of being useful! 😄",
        (),
        "end_turn",
        Usage(617, 41),
        "claude-haiku-4-5-20251001",
    ),
    ("12-anthropic-parallel-four", 0): Response(
        "I'll help you find out who is the youngest by retrieving information about each family member. I'll retrieve "
        "their entity information to compare their ages.",
        (
            ToolCall("toolu_0167cfEnoQaPviGdVXA95zcu", "retrieve_entity_info", '{"name": "Alice"}'),
            ToolCall("toolu_01EEe2V5HD1Ac4rKiUR4HD2T", "retrieve_entity_info", '{"name": "Bob"}'),
            ToolCall("toolu_01XFyAjstT3966qvRynZyVPo", "retrieve_entity_info", '{"name": "Charlie"}'),
            ToolCall("toolu_013mnQZbgtK2oe3Mo3XKJsx3", "retrieve_entity_info", '{"name": "Daisy"}'),
        ),
        "tool_use",
        Usage(423, 202),
        "claude-haiku-4-5-20251001",
    ),
    ("12-anthropic-parallel-four", 1): Response(
        "Based on the retrieved information, we can see the family relationships:\n- Alice and Bob are married\n"
        "- Charlie is their son\n- Daisy is their daughter and Charlie's younger sister\n\nTherefore, Daisy is the "
        "youngest in the family. She is described as Charlie's younger sister, which indicates she is the youngest "
        "among the four family members.",
        (),
        "end_turn",
        Usage(771, 77),
        "claude-haiku-4-5-20251001",
    ),
    ("13-anthropic-parallel-stream", 0): Response(
        "I'll call both tools simultaneously right now!",
        (
            ToolCall("toolu_REDACTED_1", "lookup_harbor_label", "{}"),
            ToolCall("toolu_REDACTED_2", "lookup_orchard_label", "{}"),
        ),
        "tool_use",
        Usage(700, 70),
        "claude-sonnet-4-6",
    ),
    ("23-anthropic-max-tokens-stream", 0): Response(
        "alpha\nbr", (), "max_tokens", Usage(40, 3), "claude-haiku-4-5-20251001"
    ),
    ("30-context-length-anthropic", 0): Failed("context_length", 400),
    ("32-auth-401", 0): Failed("auth", 401),
    ("36-anthropic-empty-end-turn", 0): Response(
        None,
        (ToolCall("toolu_REDACTED_1", "notify", '{"msg": "Deploy finished."}'),),
        "tool_use",
        Usage(628, 53),
        "claude-sonnet-4-6",
    ),
    ("36-anthropic-empty-end-turn", 1): Response(None, (), "end_turn", Usage(697, 2), "claude-sonnet-4-6"),
}
