"""Models by their names, as the command line and `Agent("openai:gpt-5-mini")` spell them: `provider:rest`.

Vendors join the tables together with their extras. A model is made when it is named, its server is not asked.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from orchestrator.errors import ConfigError
from orchestrator.files.named_object import imported
from orchestrator.llm.port import LLM

if TYPE_CHECKING:
    from pydantic import SecretStr

SPELLINGS = (
    "known: openai:NAME, openai-responses:NAME, anthropic:NAME, pydantic-ai:PROVIDER:NAME, python:MODULE:ATTRIBUTE, "
    "replay:FILE[#ID], demo"
)
_MOST_IDS = 5


class ModelChoice(NamedTuple):
    """A model, and the tools that came with it."""

    llm: LLM
    tools: Any = ()


Options: TypeAlias = Mapping[str, Any]
"""Options of the model of a vendor besides its form."""


class ModelForm(NamedTuple):
    """The form of requests to a vendor's model."""

    base_url: str | None = None
    structured: str = "native"
    """`prompt` puts an output schema into the prompt, for servers without a mode of their own for it."""
    reasoning_field: str | None = None
    """Name under which a model of `openai:` receives its reasoning back; None is the name that its vendor requires."""


def model_of(
    spec: str,
    form: ModelForm = ModelForm(),  # noqa: B008 - frozen
    *,
    keys: Mapping[str, SecretStr | None] = MappingProxyType({}),
    max_response_bytes: int | None = None,
) -> ModelChoice:
    """Return the model that a spec names.

    Args:
        spec: `openai:gpt-5-mini` and so on, as SPELLINGS has them.
        form: The address of a vendor's server and the form of its requests.
        keys: Keys of the vendors; those of their own variables by default.
        max_response_bytes: Most bytes of an answer.

    Raises:
        ConfigError: The spec names no model.
        MissingKey: There is no key for its vendor.
        ReplayError, MissingExtra, OSError: The model cannot be made.

    Example:
        >>> model_of("demo").llm.model
        'demo'
    """
    provider, colon, rest = spec.partition(":")
    if spec in _WHOLE:
        return _WHOLE[spec]()
    if provider not in _VENDORS and provider not in _OURS:
        meant = _meant(provider, rest if colon else None)
        raise ConfigError(f"unknown model {spec!r}; {meant and f'did you mean {meant!r}? '}{SPELLINGS}")
    if not rest:
        raise ConfigError(f"model {spec!r} names nothing after the colon; {SPELLINGS}")
    if provider in _VENDORS:
        options = {} if max_response_bytes is None else {"max_response_bytes": max_response_bytes}
        return _VENDORS[provider](rest, form, {"api_key": keys.get(provider.partition("-")[0]), **options})
    if form.base_url is not None:
        raise ConfigError(f"a base URL goes with {', '.join(_VENDORS)}, not with {spec!r}")
    return _OURS[provider](rest)


def _meant(provider: str, rest: str | None) -> str:
    """Return the spec that a wrong one probably means; "" for none. Without `rest` it has no colon."""
    if rest is None:
        vendor = next((vendor for start, vendor in _NAMED_LIKE.items() if provider.startswith(start)), None)
        return "" if vendor is None else f"{vendor}:{provider}"
    near = difflib.get_close_matches(provider.casefold(), [*_VENDORS, *_OURS], n=1)
    if not near and provider.replace("-", "_") in sys.modules.keys() | {
        one.stem for one in Path().glob("*.py")
    }:
        near = [f"python:{provider}"]
    return f"{near[0]}:{rest}" if near else ""


_NAMED_LIKE = {"gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "claude": "anthropic"}
"""Start of the name of a model -> its vendor."""


def _openai(
    rest: str, form: ModelForm, options: Options, api: Literal["chat", "responses"] = "chat"
) -> ModelChoice:
    from orchestrator.providers.openai import OpenAI

    how = cast("Any", form._asdict())
    return ModelChoice(OpenAI(rest, api=api, **options, **how))


def _anthropic(rest: str, form: ModelForm, options: Options) -> ModelChoice:
    from orchestrator.providers.anthropic import Anthropic

    how = cast("Any", form._asdict())
    del how["reasoning_field"]  # thinking has its own blocks in this API
    return ModelChoice(Anthropic(rest, **options, **how))


def _pydantic_ai(rest: str, form: ModelForm, _: Options) -> ModelChoice:
    from orchestrator.providers.pydantic_ai import PydanticAIModel

    how = cast("Any", form._asdict())
    del how["reasoning_field"]  # the profile of the model decides
    return ModelChoice(PydanticAIModel(rest, **how))


def _demo() -> ModelChoice:
    from orchestrator.providers.schema_model import SchemaLLM

    return ModelChoice(SchemaLLM(model="demo"))


def _python(rest: str) -> ModelChoice:
    found = imported(rest, "model")
    if _answers(found):
        return ModelChoice(found)
    needed = None  # how many positional arguments it requires
    if callable(found):
        with contextlib.suppress(ValueError):
            positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            parameters = inspect.signature(found).parameters.values()
            needed = sum(one.kind in positional and one.default is one.empty for one in parameters)
    if needed == 1:
        from orchestrator.providers.scripted import FunctionLLM

        return ModelChoice(FunctionLLM(found, model=rest.rpartition(":")[2]))
    if needed == 0:
        try:
            built = found()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ConfigError(f"model {rest!r}: the factory raised {said}") from error
        if _answers(built):
            return ModelChoice(built)
        raise ConfigError(f"model {rest!r}: the factory returned a {type(built).__name__}; {_EXPECTED}")
    raise ConfigError(f"model {rest!r} is a {type(found).__name__}; {_EXPECTED}")


_EXPECTED = "a model is an object with `async complete(request)`, a function of the request, or a factory"


def _answers(found: object) -> bool:
    return not isinstance(found, type) and callable(getattr(found, "complete", None))


def _replay(rest: str) -> ModelChoice:
    from orchestrator.providers.replay import ReplayLLM, ReplayTools, load

    file, mark, after = rest.rpartition("#")
    chosen: str | None = after
    if not mark or Path(rest).exists():  # no id, or a file whose name has a `#`
        file, chosen = rest, None
    records = list(load(file))
    ids = [record.id for record in records]
    if chosen is None and len(records) == 1:
        chosen = ids[0]
    if chosen not in ids:
        known = ", ".join(ids[:_MOST_IDS]) + (", …" if len(ids) > _MOST_IDS else "")
        problem = "holds several conversations" if chosen is None else f"has no conversation {chosen!r}"
        raise ConfigError(f"{file} {problem}; choose one with replay:FILE#ID: {known}")
    record = records[ids.index(chosen)]
    return ModelChoice(ReplayLLM(record, strict=False), ReplayTools(record))


_OURS: Mapping[str, Callable[[str], ModelChoice]] = {"python": _python, "replay": _replay}
_WHOLE: Mapping[str, Callable[[], ModelChoice]] = {"demo": _demo}
_VENDORS: Mapping[str, Callable[..., ModelChoice]] = {
    "openai": _openai,
    "openai-responses": partial(_openai, api="responses"),
    "anthropic": _anthropic,
    "pydantic-ai": _pydantic_ai,
}
