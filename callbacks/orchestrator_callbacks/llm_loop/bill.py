"""What an answer costs, and a word in the log where nobody knows."""

from __future__ import annotations

import math
from dataclasses import replace

from orchestrator.errors import ConfigError
from orchestrator.messages import Response, Usage
from orchestrator.scope import logger_from_context
from orchestrator_callbacks.llm_loop.deps import LoopRun


def cost_of(run: LoopRun, usage: Usage, model: str | None) -> float | None:
    """Return what the provider says that it costs, else its price; None where neither is known.

    The price is looked up by the name in the answer, then by the configured one, which a host's own table may have.
    Where there are several models behind one name, that would be the price of another.
    """
    deps = run.deps
    if usage.cost is not None or deps.price is None:
        return usage.cost
    tokens = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
    }
    cost = deps.price(model or deps.model, tokens)
    if cost is None and model not in (None, deps.model) and not getattr(deps.llm, "models", None):
        cost = deps.price(deps.model, tokens)
    if not _is_money(cost):
        raise ConfigError(f"the price of {deps.model!r} came out as {cost!r}; {_MONEY}")
    return cost


def uncountable(usage: object) -> str | None:
    """Say why an answer's usage is none: no budget could be held with it, and no journal would keep it."""
    if not isinstance(usage, Usage):
        return f"usage of type {type(usage).__name__}, not a Usage"
    for name in _COUNTS:
        count: object = getattr(usage, name)
        if not isinstance(count, int) or isinstance(count, bool):
            return f"usage with {name} {str(count)[:40]!r}; it must be a whole number, 0 or more"
        if not 0 <= count < _ENDLESS:
            return f"usage with {name} {'below 0' if count < 0 else 'beyond all counting'}"
    return None if _is_money(usage.cost) else f"usage with cost {str(usage.cost)[:40]}; {_MONEY}"


def _is_money(cost: object) -> bool:
    return cost is None or (isinstance(cost, int | float) and 0 <= cost < math.inf)


_COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
_ENDLESS = 2**53
"""A number of tokens that nobody ever used; sums of those below it are kept by every journal."""
_MONEY = "it must be None or a number, 0 or more"


def priced(run: LoopRun, response: Response) -> Usage:
    """Return the usage of an answer with what it costs."""
    usage = response.usage
    cost = cost_of(run, usage, response.model)
    return usage if cost == usage.cost else replace(usage, cost=cost)


def note_unpriced(run: LoopRun, response: Response) -> None:
    """Log that an answer has no known cost, where somebody wants to know it: the agent has prices, or a `max_cost`.

    Once for each model and limit; `limit` is the `max_cost` that counts this answer as 0 and so cannot hold, or 0.
    """
    deps, limit = run.deps, run.ctx.limits.max_cost
    if deps.price is None and not limit:
        return
    model = (response.model or deps.model)[:_LONGEST] if getattr(deps.llm, "models", None) else deps.model
    if (model, limit) in deps.unpriced or len(deps.unpriced) >= _MOST:
        return
    deps.unpriced.add((model, limit))
    logger_from_context().warning(
        "cost.unknown", iteration=run.ctx.iteration, state=run.cursor, model=model, limit=limit, cost=None
    )


_LONGEST, _MOST = 120, 64
"""Characters of a name that may come from outside; how many names are remembered, and so logged."""
