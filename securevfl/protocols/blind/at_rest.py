"""What a party has made ahead, as named arrays for the run that uses it.

The matrices that pads were multiplied with lie beside them, with the basis that they are in:
another run could compute them otherwise in the last bit, and a pad times that would be anything.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.errors import DataError
from securevfl.protocols.blind.ahead import Pads
from securevfl.protocols.blind.block import Block, Whitening
from securevfl.protocols.blind.links import computing_parties, owners_held_by
from securevfl.protocols.blind.pads import HolderPads, OwnerPads
from securevfl.protocols.blind.schedule import Matrices, Scales

OWN, HELD, STEPS, FEATURES, SCALES, INTO, OUT = (
    *("own", "held", "steps", "features", "scales"),
    *("into", "out"),
)
# A word of the ring; what a tensor's name, type and shape take in a file.
WORD, NAME_BYTES = 8, 90
Arrays = Mapping[str, NDArray[Any]]
P = TypeVar("P", OwnerPads, HolderPads)


def foundation(block: Block) -> str:
    """Names what pads stand on beside the job: rounds, fixed point, rows and this party's data.

    SHA-256 as hex.
    """
    training, schedule = block.training, block.schedule
    what = [astuple(each) for each in schedule.rounds], block.widths, block.series
    digest = hashlib.sha256(repr((what, training.workplace.data.fingerprint)).encode())
    digest.update(training.plan.facts.row_digests.astype("<u8").tobytes())
    return digest.hexdigest()


def expected_bytes(block: Block) -> int:
    """About how much a party will write of a job's pads."""
    party, columns, phases = block.training.party, block.agreement.columns, block.phases
    held = [columns[name] for name in owners_held_by(party)]
    rows, rounds = sum(each.rows for each in block.schedule.rounds), len(block.schedule.rounds)
    computes = phases is not None and party.name in computing_parties(party)
    tables = 2 + WORD * 2 * phases.terms if phases is not None and computes else 0
    of_rows = rows * (WORD * (1 + 2 * len(held)) + tables)
    of_rounds = rounds * WORD * (3 * block.agreement.own_columns + 2 * sum(held))
    names = rounds * NAME_BYTES * (len(fields(OwnerPads)) + len(held) * len(fields(HolderPads)))
    matrices = [m for each in block.matrices.values() for m in (each.steps, each.features)]
    return of_rows + of_rounds + names + sum(m.nbytes for m in (*matrices, *block.whitening))


def arrays_of(
    pads: Pads, matrices: Mapping[int, Matrices], scales: Scales, whitening: Whitening
) -> Arrays:
    """All that a later run needs of this party's links, by name."""
    return {
        **_named(OWN, pads.own),
        **{
            name: values
            for owner, held in pads.held.items()
            for name, values in _named(f"{HELD}/{owner}", held).items()
        },
        **{f"{STEPS}/{group}": each.steps for group, each in matrices.items()},
        **{f"{FEATURES}/{group}": each.features for group, each in matrices.items()},
        SCALES: np.array([scales.step_bits, scales.entry_bits], np.int64),
        INTO: whitening[0],
        OUT: whitening[1],
    }


def pads_from(arrays: Arrays, owners: Sequence[str]) -> Pads:
    """The pads of what `arrays_of` gave.

    Args:
        arrays: as it gave them.
        owners: whose links this party holds.

    Raises:
        DataError: something is missing.
    """
    try:
        return Pads(
            _from_names(OwnerPads, OWN, arrays),
            {name: _from_names(HolderPads, f"{HELD}/{name}", arrays) for name in owners},
        )
    except KeyError as error:
        raise DataError(f"pads made ahead lack {error}") from error


def matrices_from(
    arrays: Arrays, groups: Sequence[int]
) -> tuple[dict[int, Matrices], Scales, Whitening]:
    """The rest of it.

    Args:
        arrays: as `arrays_of` gave them.
        groups: of the job's rounds.

    Raises:
        DataError: something is missing.
    """
    try:
        return (
            {
                group: Matrices(arrays[f"{STEPS}/{group}"], arrays[f"{FEATURES}/{group}"])
                for group in groups
            },
            Scales(*map(int, arrays[SCALES])),
            (arrays[INTO], arrays[OUT]),
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
