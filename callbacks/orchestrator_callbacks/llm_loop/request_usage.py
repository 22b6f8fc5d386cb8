"""Cost of model requests: the actual cost after an answer, and the maximum before it, in micro-units.

The maximum cost of a request is known if its output is bounded (`max_tokens` or a synonym among the parameters, else
`max_output_tokens` of the model), its input is text, and the price of the model is known. The input counts the tokens
that the last answer reported, and one token per byte of text since: no tokenizer makes more tokens than bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from orchestrator.errors import ConfigError
from orchestrator.llm.message import (
    NO_USAGE,
    Request,
    Response,
    Transcript,
    Usage,
    input_bound,
    input_most,
    output_estimate,
    output_limit,
)
from orchestrator.llm.port import LLM, Price, common_currency
from orchestrator.llm.usage import is_amount
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.telemetry.scope import logger_from_context
from orchestrator.tools.spec import MAX_RESULT_CHARS
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import Verdict, cost_unknown, request_cost, reserve
from orchestrator_guards.evaluation import given, row_of
from orchestrator_guards.money import cost_micros

_UNKNOWN_OUTPUT = 4096
"""Tokens of a lost answer without any other estimate."""


class Pricing(NamedTuple):
    """Information about the cost of one model."""

    price: Price | None
    llm: LLM | None
    """The model, for what it says about its costs; None if another program calls it."""
    model: str
    """The configured name."""

    @property
    def known(self) -> bool:
        """Return whether answers have a known cost: from the provider, or from a price of each of the models."""
        if getattr(self.llm, "reports_cost", False):
            return True
        one = Usage(1, 1)
        return all(self._priced(name, one) is not None for name in self._names)

    @property
    def most_output(self) -> int:
        """Maximum tokens of an answer if the request does not limit them; 0 if unknown."""
        return int(getattr(self.llm, "max_output_tokens", 0) or 0)

    @property
    def _names(self) -> Sequence[str]:
        return tuple(getattr(self.llm, "models", None) or (self.model,))

    def cost(self, usage: Usage, model: str | None) -> int | None:
        """Return the cost that the provider reports for an answer, else its price; None if both are unknown.

        The price is looked up by the name in the answer, then by the configured name, which a host's own table may
        have. The second lookup is skipped if the name stands for several models, because it could give the price of
        another one.
        """
        if usage.cost_micros is not None:
            return usage.cost_micros
        cost = self._priced(model or self.model, usage)
        if cost is None and model not in (None, self.model) and not getattr(self.llm, "models", None):
            cost = self._priced(self.model, usage)
        return cost

    def max_request_cost(self, request: Request, known: int = 0, start: int = 0) -> int | None:
        """Return the maximum cost of a request, whichever model answers; None if it is unknown.

        `known` is an upper bound of the input tokens of the first `start` messages and of the tools.
        """
        output = output_limit(request.params) or self.most_output
        if not output or not _UNBOUNDED.isdisjoint(request.params):
            return None
        several = getattr(self.llm, "models", None)  # each model has its own tokenizer
        read = input_most(request) if several else input_most(request, known, start)
        if read is None:
            return None
        # All of the input may be written into a cache, which costs more than reading it.
        costs = [self._priced(name, Usage(read, output, cache_write_tokens=read)) for name in self._names]
        return None if None in costs else max(one for one in costs if one is not None)

    def _priced(self, name: str, usage: Usage) -> int | None:
        if self.price is None:
            return None
        tokens = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        }
        cost: object = self.price(name, tokens)
        if cost is None and (provider := getattr(self.llm, "provider", None)):
            cost = self.price(f"{provider}:{name}", tokens)  # several providers may sell the model
        if cost is None:
            return None
        if not isinstance(cost, int | float) or not is_amount(cost):
            raise ConfigError(f"the price of {self.model!r} is {cost!r}; {_MONEY}")
        return cost_micros(cost)


_UNBOUNDED = frozenset(("n", "tools"))
"""Parameters with which the provider may bill more than one answer of the bounded length."""


class _Limits(Protocol):
    @property
    def max_cost(self) -> float: ...
    @property
    def on_unknown_cost(self) -> str: ...


def requires_price(limits: _Limits) -> bool:
    """Return whether a cost limit ends a run when the cost of an answer is unknown."""
    return bool(limits.max_cost) and limits.on_unknown_cost == "stop"


def refuse_unpriced(limits: _Limits, models: Iterable[Pricing]) -> None:
    """Raise ConfigError if `limits` bound the cost and the price of a model is unknown."""
    if not requires_price(limits):
        return
    for one in models:
        if not one.known:
            raise ConfigError(
                f"max_cost is {limits.max_cost:g}, but the price of model {one.model!r} is unknown, so the limit "
                f"cannot hold: give price=price_table({{{one.model!r}: (input, output)}}) or genai_prices() (on the "
                "command line [prices] in orchestrator.toml, or the extra prices), or limit on_unknown_cost='ignore'"
            )


def refuse_two_currencies(models: Iterable[Pricing]) -> None:
    """Raise ConfigError if the costs of the models are in several currencies."""
    each = list(models)
    common_currency([one.price for one in each], [one.llm for one in each])


def pricing(run: LoopRun) -> Pricing:
    """Return the cost information about a run's model."""
    deps = run.deps
    return Pricing(deps.price, deps.llm, deps.model)


def _stops_unpriced(run: LoopRun) -> bool:
    """Return whether a limit on cost ends a run when the cost of an answer is unknown: its own, or one above it."""
    account = run.deps.account
    return requires_price(run.ctx.limits) or (
        account is not None and any(requires_price(one.limits) for one in account.ancestors)
    )


def max_request_cost(run: LoopRun, request: Request) -> int | None:
    """Return the maximum cost of the next request of a run; None if it is unknown."""
    known, start = _reported(run.ctx, request)
    return pricing(run).max_request_cost(request, known, start)


def cost_refusal(run: LoopRun, request: Request) -> Verdict | None:
    """Return the refusal of a request by the run's cost limits, or None. Shared budgets are not checked here."""
    ctx = run.ctx
    limits = ctx.limits
    if not limits.max_cost and run.deps.account is None:
        return None
    if _stops_unpriced(run) and not (price := pricing(run)).known:
        unknown = cost_unknown(1, model=price.model)
        run.attach_guards((row_of(unknown),))
        return unknown
    if not limits.max_cost or (cost := max_request_cost(run, request)) is None:
        return None
    share = limits.wrap_up_share if limits.wrap_up_turns and not ctx.wrapping_up else 0.0
    inputs = ctx.spent.total.cost_for_limits, cost, reserve(limits.max_cost_micros, share)
    verdict = request_cost(*inputs)
    run.attach_guards((given(verdict, request_cost, *inputs),))
    return None if verdict else verdict


def _reported(ctx: LoopContext, request: Request) -> tuple[int, int]:
    """Return the tokens that the last answer reported and the number of messages that they cover; (0, 0) if unknown."""
    messages = request.messages
    last = None if ctx.response is None else ctx.response.usage
    if last is not None and last.estimated_input_tokens:
        return 0, 0  # the server did not report them
    if not ctx.context.tokens or not isinstance(messages, Transcript) or not messages.views(ctx.messages):
        return 0, 0
    return ctx.context.tokens, _answered(ctx)


def _answered(ctx: LoopContext) -> int:
    """Return the number of messages up to the last answer."""
    places = range(len(ctx.messages), 0, -1)
    return next((at for at in places if ctx.messages[at - 1].role == "assistant"), 0)


def lost_answer_usage(run: LoopRun) -> Usage:
    """Return the charge for a lost answer, marked as an estimate.

    Its input is what the last answer reported, plus a token for every two bytes since. A result that no record has
    counts as long as its tool may make it, and as the default if there is no limit. Before the first answer, and after
    a compaction, the tools and all messages are counted. Its output is `max_tokens` of the request, else the largest
    answer of the run so far, else the model's maximum, else 4,096 tokens.
    """
    ctx, price = run.ctx, pricing(run)
    # Records of earlier versions have no largest answer.
    last = ctx.response.usage.output_tokens if ctx.response and ctx.response.usage else 0
    output = lost_output(run.deps.params, max(ctx.spent.largest_answer, last), price)
    return estimated(Usage(_input(run), output), price, ctx.spent.largest_cost)


def _input(run: LoopRun) -> int:
    """Return the estimated input of the run's request: see `lost_answer_usage`."""
    ctx = run.ctx
    known = _answered(ctx) if ctx.context.tokens else 0
    offers = () if ctx.context.tokens else run.deps.tools.offers
    return ctx.context.tokens + input_bound(ctx.messages[known:], offers) + _open_results(run)


def _open_results(run: LoopRun) -> int:
    """Return the estimated tokens of the results of an open turn, which are not among the messages yet."""
    ctx, response = run.ctx, run.ctx.response
    if not ctx.results or response is None or ctx.messages[-1].role != "assistant":
        return 0
    length = 0
    for call, result in zip(response.tool_calls, ctx.results, strict=True):
        spec = run.deps.tools.find(call.name)
        most = MAX_RESULT_CHARS if spec is None else spec.max_result_chars or MAX_RESULT_CHARS
        length += most if result is None else len(result.content.encode(errors="replace"))
    return (length + 1) // 2


def charge_interrupted(run: LoopRun, seconds: float | None, arrived: int) -> int:
    """Add the range of the run's request, of whose answer `arrived` tokens came in, to its usage: see `interrupted`.

    Return its least cost in millionths.
    """
    ctx, price = run.ctx, pricing(run)
    charged = interrupted(
        Usage(_input(run), arrived),
        seconds,
        price,
        limit=output_limit(run.deps.params) or price.most_output,
        rate=ctx.spent.fastest_rate,
        largest=ctx.spent.largest_cost,
    )
    ctx.spent.usage = ctx.spent.usage + charged
    return charged.cost_micros or 0


def lost_output(params: Any, largest: int, price: Pricing) -> int:
    """Return the tokens of a lost answer: the request's limit, the largest so far, or the model's maximum."""
    return output_limit(params) or largest or price.most_output or _UNKNOWN_OUTPUT


def estimated(usage: Usage, price: Pricing, largest: int, model: str | None = None) -> Usage:
    """Return an unreported usage as an estimate. Its cost is its price, else that of the most expensive answer."""
    cost = price.cost(usage, model)
    return replace(usage, cost_micros=cost if cost is not None else largest or None).as_estimate()


def interrupted(
    sent: Usage, seconds: float | None, price: Pricing, *, limit: int, rate: float, largest: int
) -> Usage:
    """Return the range of a request that was cancelled, timed out or broke off, marked as an estimate.

    Args:
        sent: Its estimated input, and the output that arrived: the minimum.
        seconds: Time since it was sent; None if it was not, which costs nothing.
        price: The cost of the model.
        limit: Maximum tokens of its output; 0 if there is none.
        rate: Output tokens a second of the fastest answer of the run; 0 if there is none.
        largest: Cost of the most expensive answer, for a model without a price.
    """
    if seconds is None:
        return NO_USAGE
    output = math.ceil(seconds * (rate or _RATE))
    output = max(sent.output_tokens, min(output, limit or output))
    most = estimated(replace(sent, output_tokens=output), price, largest)
    if most.cost_micros is None:
        return most
    least = price.cost(sent, None) or 0
    return replace(most, cost_micros=least, estimated_cost_micros=least, cost_max_micros=most.cost_micros)


_RATE = 200
"""Output tokens a second, before the first answer."""


def uncountable(usage: object) -> str | None:
    """Return why an answer's usage is invalid for budgets and journals, or None."""
    if usage is None:  # not reported
        return None
    if not isinstance(usage, Usage):
        return f"usage of type {type(usage).__name__}, not a Usage"
    sent, answer, cached = usage.input_tokens, usage.output_tokens, usage.cached_input_tokens
    thought, written = usage.reasoning_tokens, usage.cache_write_tokens
    # All are whole numbers and in bounds, as in nearly every answer: a bit outside of the bounds is in their union.
    whole = int is type(sent) is type(answer) is type(cached) is type(thought) is type(written)
    if not (whole and 0 <= sent | answer | cached | thought | written < _ENDLESS):
        for name in _COUNTS:
            if (fault := _count_fault(name, getattr(usage, name))) is not None:
                return fault
    cost: object = usage.cost_micros
    if cost is None or (isinstance(cost, int) and is_amount(cost)):
        return None
    return f"usage with cost {str(cost)[:40]}; {_MONEY}"


def _count_fault(name: str, count: object) -> str | None:
    if not isinstance(count, int) or isinstance(count, bool):
        return f"usage with {name} {str(count)[:40]!r}; it must be a whole number, 0 or more"
    if not 0 <= count < _ENDLESS:
        return f"usage with {name} {'below 0' if count < 0 else 'of 2**53 or more'}"
    return None


_COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens", "cache_write_tokens")
_ENDLESS = 2**53
"""A number of tokens that is never reached; every journal can store sums of smaller ones."""
_MONEY = "it must be None or a number, 0 or more"


def usage_with_cost(run: LoopRun, response: Response) -> Usage:
    """Return the usage of an answer with its cost; a marked estimate if the server reported none."""
    if response.usage is None:
        accounts = () if run.deps.account is None else run.deps.account.ancestors
        limits = run.ctx.limits, *(one.limits for one in accounts)
        return unreported(response, _input(run), pricing(run), run.ctx.spent.largest_cost, limits)
    if run.deps.price is None:
        return response.usage
    return with_cost(pricing(run), response.usage, response.model)


def with_cost(price: Pricing, usage: Usage, model: str | None) -> Usage:
    """Return the usage of an answer with its cost, for one model."""
    cost = price.cost(usage, model)
    return usage if cost == usage.cost_micros else replace(usage, cost_micros=cost)


def unreported(
    response: Response, input_tokens: int, price: Pricing, largest: int, limits: Sequence[_Limits]
) -> Usage:
    """Return the estimated usage of an answer whose server reported none.

    Its output is what arrived. Its cost is unknown if `limits` (of the run and those above it) have
    `on_unknown_cost="ignore"`: of those that bound the cost, else of the run itself.
    """
    usage = Usage(input_tokens, output_estimate(response))
    bounds = [one for one in limits if one.max_cost] or limits[:1]
    if all(one.on_unknown_cost == "ignore" for one in bounds):
        return usage.as_estimate()
    return estimated(usage, price, largest, response.model)


def unknown_cost_refusal(run: LoopRun, response: Response) -> Verdict | None:
    """Log that the cost of an answer is unknown; return the verdict that ends the run if a limit bounds the cost."""
    note_unpriced(run, response)
    if not _stops_unpriced(run):
        return None
    return cost_unknown(1, model=(response.model or run.deps.model)[:_LONGEST])


def note_unpriced(run: LoopRun, response: Response) -> None:
    """Log that the cost of an answer is unknown, if the agent has prices or a `max_cost`.

    Logged once for each model and limit; `limit` is the `max_cost` that does not count this answer, or 0.
    """
    deps, limit = run.deps, run.ctx.limits.max_cost
    if deps.price is None and not limit:
        return
    model = (response.model or deps.model)[:_LONGEST] if getattr(deps.llm, "models", None) else deps.model
    if (model, limit) in deps.unpriced or len(deps.unpriced) >= _MOST:
        return
    deps.unpriced.add((model, limit))
    logger_from_context().warning(
        "cost.unknown",
        iteration=run.ctx.iteration,
        state=run.cursor.state,
        model=model,
        limit=limit,
        cost=None,
    )


_LONGEST, _MOST = 120, 64
"""Maximum characters of a name from outside; maximum number of names that are remembered and logged."""
