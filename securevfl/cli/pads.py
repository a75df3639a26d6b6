"""`securevfl train --ahead` makes pads and writes them; the next `securevfl train` uses them."""

import sys
from collections.abc import Iterable
from pathlib import Path

from securevfl.errors import ConfigError, DataError
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.pad_store import PadPlaces, PadStore
from securevfl.training.offline import Made, require_ahead


def pad_places(folder: Path) -> PadPlaces:
    """Pads in a job's output folder, and their keys in the user's state."""
    import platformdirs

    return PadPlaces(folder / "pads", platformdirs.user_state_path("securevfl") / "pad-keys")


def require_only_ahead(plan: Plan, *, resume: bool, results: Iterable[Path | None]) -> None:
    """Check what `--ahead` is asked for with.

    Raises:
        ConfigError: a job without pads, or an option that has no meaning then.
    """
    require_ahead(plan)
    if resume:
        raise ConfigError(
            "--ahead makes pads for a job that starts; one that goes on makes its own"
        )
    if any(path is not None for path in results):
        raise ConfigError("--ahead trains nothing: --json and --html are for the run that does")


def settle_pads(
    plan: Plan, places: PadPlaces, *, ahead: bool, resume: bool, force: bool
) -> str | None:
    """Before any work: what becomes of pads that are there. A line on it, if there is one.

    Raises:
        ConfigError: they would be replaced.
        DataError: they are not of this job, not whole, not all of one batch, or taken already.
    """
    if not plan.exchange.shares_parameters:
        return None
    stores = [places.of(name) for name in plan.facts.names]
    there = [store for store in stores if store.there]
    if not there:
        return None
    if resume:  # the parties do
        return "drops the pads that were made ahead: a job that goes on makes new ones"
    if ahead and not force:
        raise ConfigError(
            f"{there[0].path}: pads are there already: securevfl train without --ahead uses them, "
            "--force makes new ones"
        )
    if ahead:
        _discard(there)
        return None
    try:
        rounds = _rounds_of(plan, stores)
    except DataError as error:
        if not force:
            raise DataError(
                f"{error}; --force goes on without, --ahead --force makes new ones"
            ) from error
        _discard(there)
        return f"drops pads: {error}"
    return f"uses the pads that were made ahead for {rounds} rounds, and deletes them"


def show_made(made: Made, *, quiet: bool) -> None:
    """Say what was written, how large it is and what it took."""
    if quiet:
        return
    from securevfl.reports.training import wrapped

    rounds = next(iter(made.parts.values())).rounds
    costs = made.costs
    sizes = ", ".join(f"{name} {part.size / 1e6:.3g} MB" for name, part in made.parts.items())
    told = (
        f"pads for {rounds} rounds: {sizes}",
        f"made in {costs.ahead_s:.3g} s ({costs.ahead_compute_s:.3g} s of it computation), "
        f"{costs.ahead_bytes / 1e6:.3g} MB sent; the job that uses them counts all of it",
        f"pads: {', '.join(str(part.path) for part in made.parts.values())}",
    )
    sys.stdout.write("".join(f"{line}\n" for text in told for line in wrapped(text)))


def forget_states(plan: Plan, places: PadPlaces) -> None:
    """Destroy the keys of states of shares: the job has ended, and no copy is of use any more.

    Raises:
        DataError: a key cannot be destroyed.
    """
    for name in plan.facts.names:
        places.of(name).state_seal(plan.hash.hex()).destroy()


def _rounds_of(plan: Plan, stores: list[PadStore]) -> int:
    """For how many rounds the pads of all parties are.

    Raises:
        DataError: see `settle_pads`.
    """
    headers = {store.path: store.usable(plan.hash.hex(), plan.facts.names) for store in stores}
    (first, one), *others = headers.items()
    for path, header in others:
        if header.batch != one.batch:
            raise DataError(f"pads {path}: not made together with {first}")
    return one.rounds


def _discard(stores: list[PadStore]) -> None:
    for store in stores:
        store.discard()
