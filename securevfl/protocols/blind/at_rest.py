"""A party's pads from the run that makes them to the one that uses them.

The matrices that pads were multiplied with lie beside them: another run could compute them
otherwise in the last bit, and a pad times that bit would be anything. All else that pads stand on
is named by a digest: rounds, widths, the rows and this party's features in fixed point.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.errors import DataError
from securevfl.protocols.blind.ahead import Pads
from securevfl.protocols.blind.pads import HolderPads, OwnerPads
from securevfl.protocols.blind.schedule import Matrices, Round, Scales
from securevfl.protocols.blind.widths import Widths

OWN, HELD, STEPS, SCALES = "own", "held", "steps", "scales"
Arrays = Mapping[str, NDArray[Any]]
P = TypeVar("P", OwnerPads, HolderPads)


def foundation(
    rounds: Sequence[Round],
    widths: Widths,
    matrices: Mapping[int, Matrices],
    row_digests: NDArray[np.uint64],
) -> str:
    """Names what pads stand on beside the job: SHA-256 as hex."""
    digest = hashlib.sha256(repr((list(map(astuple, rounds)), astuple(widths))).encode())
    digest.update(row_digests.astype("<u8").tobytes())
    for group, each in matrices.items():
        digest.update(f"{group} {each.features.shape}".encode())
        digest.update(each.features.astype("<i8").tobytes())
    return digest.hexdigest()


def arrays_of(pads: Pads, matrices: Mapping[int, Matrices], scales: Scales) -> Arrays:
    """All that a later run needs, by name."""
    return {
        **_named(OWN, pads.own),
        **{
            name: values
            for owner, held in pads.held.items()
            for name, values in _named(f"{HELD}/{owner}", held).items()
        },
        **{f"{STEPS}/{group}": each.steps for group, each in matrices.items()},
        SCALES: np.array([scales.step_bits, scales.entry_bits], np.int64),
    }


def pads_from(
    arrays: Arrays, owners: Sequence[str], matrices: Mapping[int, Matrices]
) -> tuple[Pads, dict[int, Matrices], Scales]:
    """What `arrays_of` was given.

    Args:
        arrays: as it gave them.
        owners: whose links this party holds.
        matrices: of this run, whose steps give way to those that pads were made with.

    Raises:
        DataError: something is missing.
    """
    try:
        return (
            Pads(
                _from_names(OwnerPads, OWN, arrays),
                {name: _from_names(HolderPads, f"{HELD}/{name}", arrays) for name in owners},
            ),
            {
                group: replace(each, steps=arrays[f"{STEPS}/{group}"])
                for group, each in matrices.items()
            },
            Scales(*map(int, arrays[SCALES])),
        )
    except KeyError as error:
        raise DataError(f"pads made ahead lack {error}") from error


def _named(start: str, pads: OwnerPads | HolderPads) -> dict[str, RingArray]:
    found: dict[str, RingArray] = {}
    for each in fields(pads):
        value = getattr(pads, each.name)
        if isinstance(value, dict):
            found |= {f"{start}/{each.name}/{index}": values for index, values in value.items()}
        else:
            found[f"{start}/{each.name}"] = value
    return found


def _from_names(kind: type[P], start: str, arrays: Arrays) -> P:
    given: dict[str, Any] = {}
    for each in fields(kind):
        name = f"{start}/{each.name}"
        by_round = {
            int(key.removeprefix(f"{name}/")): np.array(values)
            for key, values in arrays.items()
            if key.startswith(f"{name}/")
        }
        given[each.name] = by_round or arrays[name]
    return kind(**given)
