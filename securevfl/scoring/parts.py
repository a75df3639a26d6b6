"""The parties' parts of one model, from their files, and whether they belong together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from securevfl.errors import DataError
from securevfl.models.local_model import MakeModule
from securevfl.models.storage import SavedModel, load_model


def load_parts(
    directory: Path,
    names: Sequence[str] = (),
    *,
    l1: float | None = None,
    modules: Mapping[str, MakeModule] | None = None,
) -> dict[str, SavedModel]:
    """The parts of so many parties, each from `<party>.safetensors`.

    Args:
        directory: where they lie.
        names: of the parties; of all whose files lie there where not given.
        l1: the point of an L1 path, whose files are `<party>-l1-<λ₁>.safetensors`.
        modules: by party, what makes its custom network.

    Raises:
        DataError: a file that is missing or another party's, or parts of different models.
    """
    suffix = "" if l1 is None else f"-l1-{l1}"
    names = names or _parties_in(directory, suffix)
    parts = {}
    for name in names:
        path = directory / f"{name}{suffix}.safetensors"
        if not path.exists():
            raise DataError(f"no model file {path}: `securevfl train` writes one for each party")
        parts[name] = load_model(path, (modules or {}).get(name))
        if parts[name].header.party != name:
            raise DataError(
                f"model file {path}: the part of {parts[name].header.party!r}, not of {name!r}"
            )
    require_together(parts)
    return parts


def _parties_in(directory: Path, suffix: str) -> list[str]:
    stems = sorted(path.stem for path in directory.glob(f"*{suffix}.safetensors"))
    names = [stem.removesuffix(suffix) for stem in stems if suffix or "-l1-" not in stem]
    if len(names) < 2:  # noqa: PLR2004
        raise DataError(
            f"{directory}: {len(names)} model files *{suffix}.safetensors, expected those of all "
            "parties, as `securevfl train` writes them"
        )
    return names


def require_together(parts: Mapping[str, SavedModel]) -> None:
    """Check that parts are of one model.

    Raises:
        DataError: two are of different jobs or rounds, or not exactly one is the label party's.
    """
    (first, one), *others = parts.items()
    for name, each in others:
        for what, ours, theirs in (
            ("job", one.header.job_hash[:16], each.header.job_hash[:16]),
            ("rounds", one.header.rounds, each.header.rounds),
        ):
            if ours != theirs:
                raise DataError(
                    f"parts of different models: {first!r} is of {what} {ours}, {name!r} of "
                    f"{what} {theirs}"
                )
    holders = [name for name, each in parts.items() if each.header.holds_labels]
    if len(holders) != 1:
        raise DataError(
            f"{len(holders)} of the parts {', '.join(parts)} are a label party's, expected 1"
        )


def label_party_of(parts: Mapping[str, SavedModel]) -> str:
    """Who holds the labels, of parts that belong together."""
    return next(name for name, each in parts.items() if each.header.holds_labels)
