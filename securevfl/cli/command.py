"""Commands whose options are the fields of dataclasses, so that each is written once.

A field is annotated as Typer has it: `rounds: Annotated[int, typer.Option(min=1, help="…")] = 5`.
Beyond what Typer parses, a field may be a tuple, typed as values separated by commas, a union of
numbers and words, or a network. A field without such an annotation is no option.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from securevfl.cli.reporting import leave_if_cut
from securevfl.job import NetworkSettings
from securevfl.runtime.line import PRESETS

F = TypeVar("F", bound=Callable[..., None])
UNIONS = (Union, UnionType)


def command(app: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Make a function, whose parameters are dataclasses, a command of its name or another.

    The fields of all of them, whose names differ, are the options. What is not given on the
    command line has its default.
    """

    def register(function: F) -> F:
        groups = {key: kind for key, kind in get_type_hints(function).items() if key != "return"}

        def run(context: typer.Context, **given: object) -> None:
            values = {key: value for key, value in given.items() if value is not None}
            filled: dict[str, Any] = {}
            for key, group in groups.items():
                own = {each.name for each in fields(group)} & values.keys()
                filled[key] = group(**{name: values[name] for name in own})
            typed_in = _typed_in(context)
            for key, group in filled.items():
                if getattr(group, "quick", False):  # for a first look
                    filled[key] = group.quickly(typed_in)
            function(**filled)
            leave_if_cut([each for g in filled.values() for each in getattr(g, "missing", ())])

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
        options = [each for group in groups.values() for each in _options(group)]
        signature = Signature([context, *options])
        run.__signature__ = signature  # type: ignore[attr-defined]  # what Typer reads
        app.command(name)(run)
        return function

    return register


def _typed_in(context: typer.Context) -> dict[str, str]:
    """The fields that the command line says, and how their options are typed."""
    options = {str(each.name): each.opts[0] for each in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in options}
    return {
        name: options[name]
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def typed(value: object) -> str:
    """How a value is typed."""
    if isinstance(value, tuple):
        return ",".join(map(typed, value))
    if isinstance(value, NetworkSettings):
        return str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _options(group: type) -> Iterator[Parameter]:
    """The fields that are options, as Typer is told of them."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if get_origin(hints[field.name]) is not Annotated:
            continue
        kind, info = get_args(hints[field.name])
        default = Parameter.empty if field.default is MISSING else field.default
        if not _known_to_typer(kind):
            info = copy(info)
            info.parser, info.metavar = _parser(kind, info.min), "<text>"
            kind, default = str, typed(default) or None
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )


def _known_to_typer(kind: object) -> bool:
    if get_origin(kind) in UNIONS:
        return len([each for each in get_args(kind) if each is not NoneType]) == 1
    return get_origin(kind) is not tuple and kind is not NetworkSettings


def _parser(kind: Any, least: float | None) -> Callable[[str], Any]:  # noqa: ANN401
    # Not a partial: click asks a parser for its name.
    def parsed(text: str) -> Any:  # noqa: ANN401
        try:
            return _value(kind, least, text)
        except (ValueError, KeyError):
            raise typer.BadParameter(f"{text!r}: expected {_expected(kind, least)}") from None

    return parsed


def _value(kind: Any, least: float | None, text: str) -> Any:  # noqa: ANN401
    """The value that is typed so; ValueError or KeyError where it is none."""
    if get_origin(kind) is tuple:
        item, _ = get_args(kind)
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise ValueError
        return tuple(_value(item, least, part) for part in parts)
    if get_origin(kind) in UNIONS:  # of a number and words
        number, words = get_args(kind)
        return text if text in get_args(words) else _value(number, least, text)
    if get_origin(kind) is Literal:
        return {str(each): each for each in get_args(kind)}[text]
    if kind is NetworkSettings:
        return NetworkSettings.of(text)  # a ConfigError is a ValueError
    value = kind(text)
    if least is not None and not value >= least:
        raise ValueError
    return value


def _expected(kind: Any, least: float | None) -> str:  # noqa: ANN401
    if get_origin(kind) is tuple:
        return f"{_expected(get_args(kind)[0], least)}, separated by commas"
    if get_origin(kind) in UNIONS:
        number, words = get_args(kind)
        return f"{_expected(number, least)}, or {_expected(words, None)}"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if kind is NetworkSettings:
        return f"{', '.join(PRESETS)}, or LATENCY_MS:MBIT_PER_S as in 20:100"
    name = {int: "whole number", float: "number", str: "name", Path: "path"}[kind]
    return f"{name}s" + ("" if least is None else f" from {least:g} on")
