"""Where `securevfl train` writes: what is there already, whether it goes on, whether there is room.

All of it is asked before any work, and nothing that somebody may still want is overwritten: models,
sessions, and pads that `securevfl train --offline` made for the next run.
"""

import sys
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.files import require_room
from securevfl.models.storage import ModelHeader, load_model, tensor_shapes
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState, last_session
from securevfl.protocols.session.early_stopping import MOST_SNAPSHOTS
from securevfl.protocols.session.pad_store import PadPlaces, PadStore
from securevfl.reports.tables import wrapped
from securevfl.shown import counted
from securevfl.sparse import Matrix
from securevfl.training import Made, require_offline

HEADER_BYTES = 10_000
# Weights as they are, before the last step, of the best point and its gradient, and snapshots; two
# states and the one that takes their place.
STATE_COPIES, STATES = 5 + MOST_SNAPSHOTS, 3


def model_path(folder: Path, party: str) -> Path:
    """A party's model."""
    return folder / f"{party}.safetensors"


def session_to_go_on(
    plan: Plan, folder: Path, *, resume: bool, force: bool
) -> Mapping[str, SessionState]:
    """The states that a job goes on from; none where it starts.

    Refuses where there is nothing to go on from, and to overwrite what is there.
    """
    if resume and force:
        raise ConfigError("--resume continues, --force starts again: give only one")
    if force:
        return {}
    if resume and plan.never_resumes is not None:
        raise ConfigError(f"--resume: {plan.never_resumes}; --force starts again")
    try:
        states = last_session(folder, plan.facts.names)
    except DataError as error:
        raise DataError(f"{error}; --force starts again") from error
    one = next(iter(states.values()), None)
    if not resume:
        _require_nothing_there(plan, folder, one)
        return {}
    if one is None:
        raise ConfigError(_nothing_to_go_on(plan, folder))
    if one.job_hash != plan.hash.hex():
        raise ConfigError(
            f"--resume: the checkpoint in {folder} belongs to job {one.job_hash[:16]}, and this "
            f"is job {plan.hash.hex()[:16]}"
        )
    return states


def unfinished(plan: Plan, folder: Path) -> int | None:
    """After how many rounds the job could go on; None where nothing has been kept."""
    one = next(iter(last_session(folder, plan.facts.names).values()), None)
    return one.rounds if one is not None and one.job_hash == plan.hash.hex() else None


def forget_session(folder: Path, parties: Iterable[str]) -> None:
    """Drop what a job could have gone on from: it has ended."""
    for party in parties:
        Checkpoints(folder, party).clear()


def require_room_for(
    plan: Plan, dataset: VerticalDataset[Matrix], folder: Path, results: Iterable[Path | None]
) -> None:
    """Refuse, before training, a place where its files cannot be written or have no room.

    Models and checkpoints go into the folder.
    """
    sizes: dict[Path, int] = {}
    keeps = plan.job.output.checkpoint_every > 0 and plan.never_resumes is None
    for table in dataset.parties:
        is_label = table.name == plan.facts.label_party
        header = ModelHeader(
            party=table.name,
            columns=table.columns,
            intercept=is_label,
            classes=plan.facts.classes,
            loss=plan.loss.name,
            job_hash=plan.hash.hex(),
            rounds=0,
            network=plan.networks.get(table.name),
            representation=plan.representation,
            head=plan.facts.names if plan.representation and is_label else None,
        )
        numbers = 8 * sum(prod(shape) for shape in tensor_shapes(header).values())
        words = HEADER_BYTES + sum(map(len, table.columns))
        sizes[model_path(folder, table.name)] = 2 * (numbers + words)
        if keeps:
            offsets = 8 * plan.facts.rows * plan.loss.outputs if plan.row_offsets else 0
            state = STATE_COPIES * numbers + (offsets if is_label else 0) + words
            sizes[Checkpoints(folder, table.name).newest] = STATES * state
    require_room(sizes, "output folder")
    for path in results:
        if path is not None:
            require_room({path: HEADER_BYTES}, "result file in")


def _require_nothing_there(plan: Plan, folder: Path, state: SessionState | None) -> None:
    if state is not None and state.job_hash == plan.hash.hex():
        raise ConfigError(
            f"{folder} holds a checkpoint of this job after "
            f"{counted(state.rounds, 'round')}: --resume continues, --force starts again"
        )
    if state is not None:
        raise ConfigError(
            f"{folder} holds a checkpoint of another job after {counted(state.rounds, 'round')}: "
            "choose another [output] directory, or --force to replace it"
        )
    paths = [model_path(folder, name) for name in plan.facts.names]
    there = [str(path) for path in paths if path.exists()]
    if there:
        more = f" and {len(there) - 2} more" if len(there) > 2 else ""  # noqa: PLR2004
        raise ConfigError(
            f"{', '.join(there[:2])}{more} would be overwritten: choose another [output] "
            "directory, or --force to replace"
        )


def _nothing_to_go_on(plan: Plan, folder: Path) -> str:
    path = model_path(folder, plan.facts.label_party)
    try:
        header = load_model(path).header
    except DataError:  # none there, or another job's
        header = None
    if header is not None and header.job_hash == plan.hash.hex():
        return f"--resume: this job has finished, after {counted(header.rounds, 'round')}: {path}"
    return f"--resume: {folder} holds no checkpoint of this job; drop --resume to start it"


def pad_places(folder: Path) -> PadPlaces:
    """Pads in a job's output folder, and their keys in the user's state."""
    import platformdirs

    return PadPlaces(folder / "pads", platformdirs.user_state_path("securevfl") / "pad-keys")


def require_only_offline(plan: Plan, *, resume: bool, results: Iterable[Path | None]) -> None:
    """Refuse `--offline` of a job without pads, and options that have no meaning with it."""
    require_offline(plan.exchange)
    if resume:
        raise ConfigError("--offline makes pads for a new job; a resumed job makes its own")
    if any(path is not None for path in results):
        raise ConfigError("--offline does not train: give --json and --html to the run that does")


def settle_pads(
    plan: Plan, places: PadPlaces, *, offline: bool, resume: bool, force: bool
) -> str | None:
    """Before any work: what becomes of pads that are there. A line on it, if there is one.

    Refuses to replace them, and pads that are not of this job, not whole, not all of one batch, or
    taken already.
    """
    if not plan.exchange.shares_parameters:
        return None
    stores = [places.of(name) for name in plan.facts.names]
    there = [store for store in stores if store.there]
    if not there:
        return None
    if resume:  # the parties do
        return "discards the pads that were made offline: a resumed job makes new ones"
    if offline and not force:
        raise ConfigError(
            f"{there[0].path}: pads are there already: train without --offline uses them, "
            "--force makes new ones"
        )
    if offline:
        _discard(there)
        return None
    try:
        rounds = _rounds_of_pads(plan, stores)
    except DataError as error:
        if not force:
            raise DataError(
                f"{error}; --force trains without them, --offline --force makes new ones"
            ) from error
        _discard(there)
        return f"discards the pads: {error}"
    return f"uses up the pads that were made offline for {rounds} rounds"


def show_made(made: Made, *, quiet: bool) -> None:
    """Say what was written, how large it is and what it took."""
    if quiet:
        return
    rounds = next(iter(made.parts.values())).rounds
    costs = made.costs
    sizes = ", ".join(f"{name} {part.size / 1e6:.3g} MB" for name, part in made.parts.items())
    told = (
        f"pads for {rounds} rounds: {sizes}",
        f"made in {costs.offline_s:.3g} s ({costs.offline_compute_s:.3g} s of it computation), "
        f"{costs.offline_bytes / 1e6:.3g} MB sent; the job that uses them counts all of it",
        f"pads: {', '.join(str(part.path) for part in made.parts.values())}",
    )
    sys.stdout.write("".join(f"{line}\n" for text in told for line in wrapped(text)))


def forget_states(plan: Plan, places: PadPlaces) -> None:
    """Destroy the keys of states of shares: the job has ended, and no copy is of use any more."""
    for name in plan.facts.names:
        places.of(name).state_seal(plan.hash.hex()).destroy()


def _rounds_of_pads(plan: Plan, stores: list[PadStore]) -> int:
    """For how many rounds the pads of all parties are."""
    headers = {store.path: store.usable(plan.hash.hex(), plan.facts.names) for store in stores}
    (first, one), *others = headers.items()
    for path, header in others:
        if header.batch != one.batch:
            raise DataError(f"pads {path}: not made together with {first}")
    return one.rounds


def _discard(stores: list[PadStore]) -> None:
    for store in stores:
        store.discard()
