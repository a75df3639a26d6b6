"""Every key of a job file as an option: `--local-steps 1,5` is `--vary local_steps=1,5`."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.job.keys import full_key, is_key, job_keys, parted, values_of

if TYPE_CHECKING:
    import click

Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="Values of a key of the job file, by commas, as in local_steps=1,5,exact. May be "
        "given several times.",
    ),
]


def varied(vary: Sequence[str] | None) -> dict[str, tuple[Any, ...]]:
    """The values of each key that is given, with its section; the last ones of a key given twice.

    Raises:
        ConfigError: no such key, or no value.
    """
    return {full_key(key): values_of(text) for key, text in map(parted, vary or ())}


class JobKeysAreOptions(TyperCommand):
    """Takes every key of a job file, with its section or without, as an option."""

    @override
    def parse_args(self, ctx: "click.Context", args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        given, words = iter(args), []
        for word in given:
            option, equals, value = word.partition("=")
            key = option.removeprefix("--").replace("-", "_")
            if option == word[:2] or option in own or not option.startswith("--"):
                words.append(word)
            elif not is_key(key):
                near = get_close_matches(option, (*own, *map(_option, job_keys())), n=1, cutoff=0)
                raise ConfigError(f"no such option {option}: the nearest is {near[0]}")
            else:
                value = value if equals else next(given, "")
                if not value or value.startswith("--"):
                    raise ConfigError(f"{option}: expected values, as in {option} VALUE,VALUE")
                words += ["--vary", f"{key}={value}"]
        return super().parse_args(ctx, words)


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"
