"""Keys of a job file as a command line gives them: `local_steps=1,5` or `exchange.scheme=bfv`."""

import contextlib
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from securevfl.errors import ConfigError
from securevfl.files import toml_tables
from securevfl.job import Job, NetworkSettings, check_network, section_kinds

SCHEME, STEPS, PER_STEP = "exchange.scheme", "job.local_steps", "exchange.he_per_step"
NETWORK = "network"
ALIASES = {
    "exchange": SCHEME,
    "max_rounds": "job.rounds",
    "gradient_noise": "privacy.gradient_noise_multiplier",
}
NOT_VARIED = ("party", "audit", "links", "output", NETWORK)
"""Sections whose keys have no name without the section, or change nothing in a training."""


def full_key(key: str) -> str:
    """A key with its section: of "local_steps" "job.local_steps", of "network" itself.

    Raises:
        ConfigError: no section has the key.
    """
    key = ALIASES.get(key, key)
    section, _, name = key.rpartition(".")
    if key == NETWORK or (section == NETWORK and name in NetworkSettings.model_fields):
        return key
    for home, kind in _sections().items():
        if section in ("", home) and name in kind.model_fields:
            return f"{home}.{name}"
    raise ConfigError(f"--vary {key}: no such key in a job file; keys are as in exchange.scheme")


def is_key(key: str) -> bool:
    """Whether a job file has the key."""
    try:
        full_key(key)
    except ConfigError:
        return False
    return True


def job_keys() -> list[str]:
    """The keys that need no section."""
    return [*ALIASES, NETWORK, *(key for kind in _sections().values() for key in kind.model_fields)]


def parted(text: str) -> tuple[str, str]:
    """The key and the values in "KEY=VALUES".

    Raises:
        ConfigError: there is no "=".
    """
    key, equals, values = text.partition("=")
    if not equals:
        raise ConfigError(f"--vary {text}: expected KEY=VALUES, as in local_steps=1,5")
    return key.strip(), values


def values_of(text: str) -> tuple[Any, ...]:
    """The values in "1,5,exact", each a number, a truth value, a list in brackets, or a word.

    Raises:
        ConfigError: a value is empty.
    """
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise ConfigError(f"--vary …={text}: expected values separated by commas")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return tuple(toml_tables(f"values = [{text}]")["values"])
    found = []
    for part in parts:
        try:
            found.append(toml_tables(f"value = {part}")["value"])
        except tomllib.TOMLDecodeError:
            found.append(part)
    return tuple(found)


def with_keys(job: Job, values: Mapping[str, Any]) -> Job:
    """A job with other values of some keys, each named with its section.

    Raises:
        ConfigError: a value out of range.
    """
    sections: dict[str, Any] = {**dict(job), **job.own, "own": {}}
    changed: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if key == NETWORK:
            sections[NETWORK] = NetworkSettings.of(str(value))
        else:
            changed.setdefault(section, {})[name] = value
    for section, keys in changed.items():
        # A latency takes the place of a preset.
        given = {} if section == NETWORK else set_keys(sections.get(section))
        sections[section] = {**given, **keys}
    found = Job.of(**sections)
    check_network(found)
    return found


def set_keys(section: BaseModel | None) -> dict[str, Any]:
    """What a section sets itself, apart from defaults."""
    return (
        {} if section is None else {key: getattr(section, key) for key in section.model_fields_set}
    )


def _sections() -> dict[str, type[BaseModel]]:
    """The sections whose keys need no section before them."""
    return {name: kind for name, kind in section_kinds().items() if name not in NOT_VARIED}
