"""Model specs: `provider:rest`. Vendors join this table together with their extras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from orchestrator.cli.load import imported
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
from orchestrator.llm.port import LLM

_FORMS = (
    "openai:NAME, openai-responses:NAME, anthropic:NAME, pydantic-ai:PROVIDER:NAME, python:MODULE:ATTRIBUTE, "
    "replay:FILE[#ID]"
)
_SHOWN = 5


class ModelChoice(NamedTuple):
    """A model, and the tools that came with it."""

    llm: LLM
    tools: Any = ()


class ModelForm(NamedTuple):
    """The form of requests to a vendor's model."""

    base_url: str | None = None
    structured: str = "native"
    """`prompt` puts an output schema into the prompt, for servers without a mode of their own for it."""
    reasoning_field: str | None = None
    """Name under which a model of `openai:` receives its reasoning back; None is the name that its vendor requires."""


def model_of(spec: str | None, form: ModelForm = ModelForm()) -> ModelChoice:  # noqa: B008 - frozen
    """Return the model that a spec names; `form` is the address of a vendor's server and the form of its requests.

    Raises ConfigError, ReplayError, ImportError or OSError with one sentence.
    """
    if not spec:
        raise ConfigError(f"no model: give --model or set ORCHESTRATOR_MODEL; known: {_FORMS}")
    provider, _, rest = spec.partition(":")
    if provider not in _VENDORS and provider not in _OURS:
        raise ConfigError(f"unknown model {spec!r}; known: {_FORMS}")
    if not rest:
        raise ConfigError(f"model {spec!r} names nothing after the colon; known: {_FORMS}")
    if provider in _VENDORS:
        return _VENDORS[provider](rest, form)
    if form.base_url is not None:
        raise ConfigError(f"a base URL goes with {', '.join(_VENDORS)}, not with {spec!r}")
    return _OURS[provider](rest)


def _openai(rest: str, form: ModelForm, api: Literal["chat", "responses"] = "chat") -> ModelChoice:
    from orchestrator.providers.openai import OpenAI

    settings, how = project_settings(), cast("Any", form._asdict())
    most = settings.max_response_bytes
    return ModelChoice(OpenAI(rest, api=api, api_key=settings.openai_api_key, max_response_bytes=most, **how))


def _openai_responses(rest: str, form: ModelForm) -> ModelChoice:
    return _openai(rest, form, "responses")


def _anthropic(rest: str, form: ModelForm) -> ModelChoice:
    from orchestrator.providers.anthropic import Anthropic

    settings, how = project_settings(), cast("Any", form._asdict())
    most = settings.max_response_bytes
    del how["reasoning_field"]  # thinking has its own blocks in this API
    return ModelChoice(Anthropic(rest, api_key=settings.anthropic_api_key, max_response_bytes=most, **how))


def _pydantic_ai(rest: str, form: ModelForm) -> ModelChoice:
    from orchestrator.providers.pydantic_ai import PydanticAIModel

    how = cast("Any", form._asdict())
    del how["reasoning_field"]  # the profile of the model decides
    return ModelChoice(PydanticAIModel(rest, **how))


def _python(rest: str) -> ModelChoice:
    found = imported(rest, "model")
    if _answers(found):
        return ModelChoice(found)
    needed = _needed(found)
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


def _needed(found: object) -> int | None:
    """Return how many positional arguments a callable requires; None if it is not callable."""
    if not callable(found):
        return None
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters)


def _replay(rest: str) -> ModelChoice:
    from orchestrator.providers.replay import ReplayLLM, ReplayTools, load

    file, options = _file_and_id(rest)
    records = list(load(file))
    ids = [record.id for record in records]
    if options is None and len(records) == 1:
        options = ids[0]
    if options not in ids:
        known = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
        problem = "holds several conversations" if options is None else f"has no conversation {options!r}"
        raise ConfigError(f"{file} {problem}; choose one with replay:FILE#ID: {known}")
    record = records[ids.index(options)]
    return ModelChoice(ReplayLLM(record, strict=False), ReplayTools(record))


def _file_and_id(rest: str) -> tuple[str, str | None]:
    file, mark, options = rest.rpartition("#")
    return (rest, None) if not mark or Path(rest).exists() else (file, options)


_OURS: Mapping[str, Callable[[str], ModelChoice]] = {"python": _python, "replay": _replay}
_VENDORS: Mapping[str, Callable[[str, ModelForm], ModelChoice]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "pydantic-ai": _pydantic_ai,
}
