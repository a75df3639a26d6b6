"""The `securevfl` command and how it ends: one line and exit status 2 for every known error."""

import sys
from typing import Annotated, NoReturn

import typer
import typer.core
from click.exceptions import Abort, ClickException

from securevfl import __version__
from securevfl.cli.audit import audit
from securevfl.cli.bench import bench
from securevfl.cli.data import data
from securevfl.cli.model import model
from securevfl.cli.predict import predict
from securevfl.cli.sweep import sweep
from securevfl.cli.train import train
from securevfl.errors import SecureVFLError
from securevfl.interrupts import INTERRUPTED

# Help is plain (below), and Rich would still put a backslash before every bracket.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="securevfl",
    help="Vertical federated learning with the exchanges protected.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
)
app.add_typer(bench, name="bench")
app.add_typer(sweep, name="sweep")
app.add_typer(data, name="data")
app.add_typer(model, name="model")
app.command()(train)
app.command()(audit)
app.command()(predict)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"securevfl {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Vertical federated learning with the exchanges protected."""


def main() -> None:
    """Run the command line."""
    try:
        status = app(standalone_mode=False)
    except SecureVFLError as error:
        _fail(str(error))
    except ClickException as error:
        if not error.format_message():  # no command was given: help has been printed
            sys.exit(2)
        _fail(error.format_message())
    except Abort:
        status = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    if status == INTERRUPTED:  # what Typer makes of KeyboardInterrupt
        sys.stderr.write("securevfl: interrupted\n")
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    sys.stderr.write(f"securevfl: error: {line}\n")
    sys.exit(2)
