"""Read settings: argument > environment (ORCHESTRATOR_…) > TOML file > default. Unknown keys are refused.

This module reads no file and no `.env`. The command line reads the TOML file with the user's consent and passes its
members to `Settings.load`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, PlainValidator, SecretStr, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from orchestrator.errors import ConfigError
from orchestrator.journal.address import DEFAULT_JOURNAL, Address, address_of

T = TypeVar("T")

PREFIX = "ORCHESTRATOR_"
_FILE = "members of the file"
"""Argument that carries the members of the file to their place behind the environment."""


class Settings(BaseSettings):
    """Settings of a process, for the command line. A library host passes values in code and does not need them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    model: str | None = None
    """`provider:name` of the model that `orchestrator run` asks."""
    base_url: str | None = None
    """Address of a server that speaks the provider's protocol; None is the provider's own."""
    structured: str = Field("native", pattern="^(native|prompt)$")
    """How an output schema reaches a vendor's model: by the vendor's own mode, or in the prompt."""
    reasoning_field: str | None = None
    """Name under which `openai:` models receive their reasoning back; None is the name that the vendor requires."""
    max_response_bytes: int = Field(32 * 1024 * 1024, ge=0)
    """Maximum bytes that are read of one answer of a model or one message of an MCP server; 0 is no limit."""
    openai_api_key: SecretStr | None = None
    """None: OPENAI_API_KEY."""
    anthropic_api_key: SecretStr | None = None
    """None: ANTHROPIC_API_KEY."""
    mcp_headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers for MCP servers over HTTP, e.g. ORCHESTRATOR_MCP_HEADERS__AUTHORIZATION; `_` in a name means `-`."""
    journal: Annotated[Address, PlainValidator(address_of)] = DEFAULT_JOURNAL
    """A file or a URL (postgresql://…)."""
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")
    limits: dict[str, Any] = Field(default_factory=dict)
    """Members of `Limits`, e.g. ORCHESTRATOR_LIMITS__MAX_ITERATIONS=20. Checked by `build`."""
    retry: dict[str, Any] = Field(default_factory=dict)
    """Members of `RetryPolicy`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters, passed to the provider unchanged, e.g. ORCHESTRATOR_PARAMS__TEMPERATURE=0."""
    rate_limit: dict[str, Any] = Field(default_factory=dict)
    """Members of `RateLimit`, for the model of this process."""
    prices: dict[str, Any] = Field(default_factory=dict)
    """Model -> price of a million tokens of input, of output and, if it differs, of cached input."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order of precedence: arguments, environment, file."""
        del dotenv_settings, file_secret_settings
        file = cast("InitSettingsSource", init_settings).init_kwargs.pop(_FILE, {})
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=file)

    @classmethod
    def load(cls, file: Mapping[str, Any] | None = None, **arguments: Any) -> Settings:
        """Return the settings of this process: arguments, then the environment, then the members of a TOML file.

        Raises ConfigError with one sentence for an unknown or invalid setting.
        """
        unknown = sorted(name for name in os.environ if _is_unknown(name))
        if unknown:
            known = ", ".join(sorted(PREFIX + name.upper() for name in cls.model_fields))
            raise ConfigError(f"unknown setting {unknown[0]}; known: {known} (members with __)")
        try:
            return cls(**cast("dict[str, Any]", {**arguments, _FILE: dict(file or {})}))
        except ValidationError as error:
            raise ConfigError(f"setting {_first(error)}") from None
        except ValueError as error:  # a section in the environment that is not JSON
            raise ConfigError(f"settings cannot be read: {error}") from None


def build(kind: type[T], members: Mapping[str, Any], section: str) -> T:
    """Build a dataclass such as `Limits` from the members of a section; text is converted.

    Raises ConfigError with one sentence for an unknown or invalid member. Without a section the sentence starts with
    the name of the member.
    """
    known = sorted(item.name for item in fields(kind))  # type: ignore[arg-type]
    for name in members:
        if name not in known:
            raise ConfigError(f"unknown setting {section}.{name}; known: {', '.join(known)}")
    try:
        built: T = _adapter(cast("Any", kind)).validate_python(dict(members))
    except ValidationError as error:
        raise ConfigError(f"setting {_first(error, section)}" if section else _first(error)) from None
    return built


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a dataclass. It is cached, because it takes milliseconds to build."""
    return TypeAdapter(kind)


def _first(error: ValidationError, *section: str) -> str:
    fault = error.errors()[0]
    where = ".".join(map(str, (*section, *fault["loc"])))
    what = fault.get("ctx", {}).get("error", fault["msg"])  # our own message, without a prefix
    return f"{where}: {what}" if where else str(what)


_FOREIGN = frozenset(
    f"ORCHESTRATOR_{name}"
    for name in ("SOAK", "SEED", "NO_REAL_MODELS", "CHECK_PURITY", "ON_TOOL_ERROR", "TRUST", "COMMAND")
)
"""Variables that are not settings and that no file sets: switches of the test kit, the trust of the command line, and
the mark of a program that a run started."""


def _is_unknown(name: str) -> bool:
    if not name.startswith(PREFIX) or name in _FOREIGN:
        return False
    field = name[len(PREFIX) :].partition("__")[0].lower()
    return field not in Settings.model_fields
