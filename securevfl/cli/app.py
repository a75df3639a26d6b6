"""The `securevfl` command and how it ends: one line and exit status 2 for every known error."""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, NoReturn

import typer
import typer.core
from click.exceptions import Abort, ClickException, NoSuchOption

from securevfl import __version__
from securevfl.errors import SecureVFLError
from securevfl.interrupts import INTERRUPTED

# Help is plain (below), and Rich would still put a backslash before every bracket.
typer.core.HAS_RICH = False
NEAR = 0.75  # of 1: `--round` is near `rounds`, and `--out` near nothing

COMMANDS = (
    *("bench", "sweep", "data", "model", "guard", "train", "audit", "predict"),
    *("party", "relay"),
)
"""Each is a function or a group of that name in a module of that name, in the order of `--help`."""


def command_line(first: str = "") -> typer.Typer:
    """The command line with all commands, or only the one that its first word names."""
    app = typer.Typer(
        name="securevfl",
        help="Vertical federated learning with the exchanges protected.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help takes half the time
    )
    app.callback()(root)
    for name in [first] if first in COMMANDS else COMMANDS:
        command = getattr(import_module(f"securevfl.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"securevfl {__version__}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Vertical federated learning with the exchanges protected."""


def main() -> None:
    """Run the command line."""
    run_and_exit(lambda: command_line(*sys.argv[1:2])(standalone_mode=False))


def run_and_exit(command: Callable[[], object]) -> NoReturn:
    """Run a command and end the process: a known error is one line and exit status 2."""
    try:
        status = command()
    except SecureVFLError as error:
        _fail(str(error))
    except ClickException as error:
        text = error.format_message()
        if text.startswith("Usage:"):  # no command was given, and the text is the help
            sys.stderr.write(f"{text}\n")
            sys.exit(2)
        # Typer suggests commands in `message`; Click 8.4 would suggest the same ones again.
        text = error.message if hasattr(error, "command_name") else text
        _fail(_in_the_job(error) if isinstance(error, NoSuchOption) else text)
    except Abort:
        status = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    if status == INTERRUPTED:  # what Typer makes of KeyboardInterrupt
        sys.stderr.write("securevfl: interrupted\n")
    sys.exit(status if isinstance(status, int) else 0)


def _in_the_job(error: NoSuchOption) -> str:
    """Where to set what somebody took for an option, unless an option is near."""
    from securevfl.job.keys import full_key, job_keys  # slow to import

    name = error.option_name.lstrip("-").replace("-", "_")
    for each in error.possibilities or ():
        if get_close_matches(name, [each.lstrip("-").replace("-", "_")], cutoff=NEAR):
            return f"no such option {error.option_name}: the nearest is {each}"
    near = get_close_matches(name, job_keys(), n=1, cutoff=NEAR)
    if not near:
        return f"no such option {error.option_name}"
    section, _, key = full_key(near[0]).rpartition(".")
    place = f"`{key}` under [{section}]" if section else f"[{key}]"
    return f"no such option {error.option_name}: set {place} in the job file"


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    # Words of peers and of files may hold what moves a terminal's cursor.
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    sys.stderr.write(f"securevfl: error: {line}\n")
    sys.exit(2)
