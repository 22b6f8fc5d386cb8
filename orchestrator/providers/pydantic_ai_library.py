"""What pydantic-ai knows about its models, and how one is built, set and closed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from orchestrator.errors import ConfigError
from orchestrator.providers.bedrock_client import prepare
from orchestrator.providers.connection import check_address

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model


_ADVERT: Final = " To try Pydantic AI without an API key"
"""Start of what the library adds to the name of the missing variable; it is about an agent of its own."""


def check_arguments(model: object, structured: str, base_url: str | None, api_key: object) -> None:
    """Raise ConfigError for arguments that no model can have."""
    from pydantic_ai.models import Model

    if structured not in ("native", "prompt"):
        raise ConfigError(f"structured is {structured!r}; possible: native, prompt")
    if not isinstance(model, str | Model):
        raise ConfigError(
            f"model is a {type(model).__name__}; possible: PROVIDER:NAME, or a model of pydantic-ai"
        )
    if not isinstance(model, str) and (base_url is not None or api_key is not None):
        raise ConfigError(
            "a model object has its own address and key: give base_url and api_key to its provider"
        )
    if base_url is not None:
        check_address(base_url)


def inferred(name: str, base_url: str | None, key: str | None) -> Model:
    """Return the model of a name. Raises ConfigError."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider_class

    given = {
        **({} if base_url is None else {"base_url": base_url}),
        **({} if key is None else {"api_key": key}),
    }
    try:
        if not given:
            return _prepared(infer_model(name))
        return _prepared(infer_model(name, lambda provider: infer_provider_class(provider)(**given)))
    except (UserError, ImportError, ValueError) as error:
        reason = str(error).partition(_ADVERT)[0]
        raise ConfigError(f"model {name!r} of pydantic-ai cannot be used: {reason}") from error
    except TypeError as error:  # from the provider's class
        shown = " and ".join(given)
        raise ConfigError(f"the provider of {name!r} takes no {shown}; set its variables: {error}") from error


async def close(model: Model) -> None:
    """Close the clients that the library opened for a model object of the host."""
    if model.provider is not None:
        async with model:  # the library closes the client of a model that is left
            pass


async def close_own(model: Model) -> None:
    """Close every client of a model that was built here."""
    await close(model)
    if _is_bedrock(model):
        await asyncio.to_thread(model.client.close)  # type: ignore[attr-defined]


def profile_of(model: Model) -> Mapping[str, Any]:
    """Return what the library knows about a model; nothing for one that only forwards to others."""
    try:
        return cast("Mapping[str, Any]", model.profile)
    except NotImplementedError:
        return {}


def setting_names(model: Model) -> frozenset[str]:
    """Return the settings of a model: those in the `…ModelSettings` of its modules, and of the models that it wraps."""
    found: set[str] = set()
    for module in {sys.modules[kind.__module__] for kind in type(model).__mro__}:
        for name in dir(module):
            settings = getattr(module, name) if name.endswith("ModelSettings") else None
            found |= getattr(settings, "__required_keys__", frozenset())
            found |= getattr(settings, "__optional_keys__", frozenset())
    inner = [*getattr(model, "models", ()), *filter(None, [getattr(model, "wrapped", None)])]
    return frozenset(found).union(*map(setting_names, inner)) - model.unsupported_settings


def default_settings(model: Model) -> dict[str, Any]:
    """Return the settings of every request: our retries are the only ones, and prompts are cached."""
    own = {"cache": True, "max_retries": 0}
    return {name: value for name, value in own.items() if name not in model.unsupported_settings}


def doubles() -> tuple[type, ...]:
    """Return the model classes that call no provider."""
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.test import TestModel

    return TestModel, FunctionModel


def is_cut(model: Model, answer: ModelResponse, *, streamed: bool) -> bool:
    """Return whether an answer stopped before its end: a provider ends one with a finish reason.

    For an OpenAI-compatible server that never gives one the library assumes `stop`. In a stream that counts as the end
    if the server reported the usage. An answer that we did not stream can be cut too, because the library streams
    long ones of Anthropic. Models without a provider, for example doubles, need give neither.
    """
    if answer.state != "complete":
        return answer.state == "incomplete"
    reported = (answer.provider_details or {}).get("finish_reason")
    assumed = answer.finish_reason and (answer.usage.has_values() or not streamed)
    return model.provider is not None and not (reported or assumed)


def _prepared(model: Model) -> Model:
    """Turn off the retries of a client whose library has no setting for them."""
    if _is_bedrock(model):
        prepare(model.client)  # type: ignore[attr-defined]
    return model


def _is_bedrock(model: Model) -> bool:
    module = sys.modules.get("pydantic_ai.models.bedrock")
    return module is not None and isinstance(model, module.BedrockConverseModel)
