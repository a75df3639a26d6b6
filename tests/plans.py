"""Plans of small jobs, as tests ask for them."""

from collections.abc import Sequence
from typing import Any

from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.data.tables import row_digests
from securevfl.job import Job
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.resolving import resolve
from securevfl.protocols.session.agreement import MOST_FRACTION_BITS, Agreement

NAMES = ("shop", "bank", "lab")


def plan_of(
    *,
    parties: int = 2,
    rows: int = 64,
    classes: int = 2,
    test_rows: int = 8,
    **sections: Any,  # noqa: ANN401
) -> Plan:
    """A job resolved for so many parties; batches are full unless it says other."""
    job = {"rounds": 10, "batch_size": "full", **sections.pop("job", {})}
    names = (*NAMES, "more", "most")[:parties]
    digests = row_digests(range(rows))
    facts = Facts(
        names, "bank", rows=rows, test_rows=test_rows, classes=classes, row_digests=digests
    )
    return resolve(Job.of(job=job, **sections), facts)


def agreement_of(
    *columns: int, feature_bound: float = 1.0, fraction_bits: int = MOST_FRACTION_BITS
) -> Agreement:
    """What parties with so many columns each agree on, as the first of them has it."""
    others = {f"party {number}": count for number, count in enumerate(columns[1:])}
    masks = MaskKey.generate().agree("first", {}, b"job")
    return Agreement(
        columns[0], others, feature_bound, fraction_bits, masks, dict.fromkeys(others, b""), b""
    )


def agreed_masks(names: Sequence[str]) -> dict[str, PairwiseMasks]:
    keys = {name: MaskKey.generate() for name in names}
    public = {name: key.public_bytes for name, key in keys.items()}
    return {
        name: key.agree(name, {n: b for n, b in public.items() if n != name}, b"job")
        for name, key in keys.items()
    }
