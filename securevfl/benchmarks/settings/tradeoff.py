"""What `bench tradeoff` takes beside keys of a job file."""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import typer
from pydantic import BaseModel

from securevfl.benchmarks.settings import shared
from securevfl.errors import ConfigError
from securevfl.job import OWN_SECTIONS, ExchangeSettings, Job, JobSettings

SCHEME, STEPS, PER_STEP = "exchange.scheme", "job.local_steps", "exchange.he_per_step"
ALIASES = {"exchange": SCHEME, "max_rounds": "job.rounds"}


def full_key(key: str) -> str:
    """A key with its section: of "local_steps" "job.local_steps", of "network" itself.

    Raises:
        ConfigError: no section has the key.
    """
    key = ALIASES.get(key, key)
    section, _, name = key.rpartition(".")
    sections = _sections()
    if section:
        kind = sections.get(section)
        if section in Job.model_fields or (kind and name in kind.model_fields):
            return key
    elif key == "network":
        return key
    else:
        for home, kind in sections.items():
            if name in kind.model_fields:
                return f"{home}.{name}"
    raise ConfigError(f"--vary {key}: no such key in a job file; keys are as in exchange.scheme")


def _sections() -> dict[str, type[BaseModel]]:
    return {"job": JobSettings, "exchange": ExchangeSettings, **OWN_SECTIONS}


def job_keys() -> list[str]:
    """The keys that stand for themselves, without a section."""
    return [*ALIASES, *(key for kind in _sections().values() for key in kind.model_fields)]


def parted(text: str) -> tuple[str, str]:
    """The key and the values in "KEY=VALUES".

    Raises:
        ConfigError: there is no "=".
    """
    key, equals, values = text.partition("=")
    if not equals:
        raise ConfigError(f"--vary {text}: expected KEY=VALUES, as in local_steps=1,5")
    return key.strip(), values


def is_key(key: str) -> bool:
    """Whether a job file has the key."""
    try:
        full_key(key)
    except ConfigError:
        return False
    return True


def values_of(text: str) -> tuple[Any, ...]:
    """The values in "1,5,exact", each a number, a truth value, a list in brackets, or a word.

    Raises:
        ConfigError: a value is empty.
    """
    try:
        return tuple(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise ConfigError(f"--vary …={text}: expected values separated by commas")
    found = []
    for part in parts:
        try:
            found.append(tomllib.loads(f"value = {part}")["value"])
        except tomllib.TOMLDecodeError:
            found.append(part)
    return tuple(found)


@dataclass(frozen=True)
class TradeoffSettings:
    """What cells of the grid differ in, and how they are compared."""

    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a key of the job file, by commas: local_steps=1,5,exact or "
            "exchange.scheme=plain,bfv. May be given several times.",
        ),
    ] = None
    target_aucs: Annotated[
        tuple[float, ...],
        typer.Option("--target-auc", help="Held-out AUCs to reach, by commas; a row each."),
    ] = ()
    tuning: Annotated[
        Literal["none", "shared", "per-q"] | None,
        typer.Option(
            help="Tune one step size at the largest Q for all, one for each Q, or none; shared "
            "where neither a job file nor an option has a learning rate."
        ),
    ] = None
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs with seeds of their own; medians. 1 if absent.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of batches and starts (never of keys).")
    ] = None
    quick: shared.Quick = False

    def quickly(self, typed_in: Collection[str]) -> Self:
        """The same for a first look: one run of each cell.

        Raises:
            ConfigError: it should be more.
        """
        if "repeats" in typed_in:
            raise ConfigError("--quick is one run of each: drop --repeats")
        return replace(self, repeats=1)
