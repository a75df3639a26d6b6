"""Products of a dry run's keys: what their samples charge, beside what the whole products take.

    python -m bench.growth.samples

CPU seconds of encryption, product and decryption, of both keys in turns in one process.
Source: docs/decisions/0062-forecasts.md.
"""

import secrets
import sys
import time

import numpy as np

from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.protocols.session.keys import KeyMaker
from securevfl.runtime.costs import Stopwatch
from securevfl.training.sampled_keys import Charges, SampledKeys

STEPS, FEATURES = 1 << 12, 1 << 16
FORMATS = [
    RingProductFormat(*sizes)
    for sizes in (
        (50_000, 40, 28, STEPS),
        (40, 50_000, 28, FEATURES),
        (12_000, 300, 18, STEPS),
        (300, 12_000, 18, FEATURES),
        (150_000, 8, 28, STEPS),
        (8, 150_000, 28, FEATURES),
    )
]
"""Not those by which relative costs were chosen."""


def spent(fmt: RingProductFormat, keys: KeyMaker, stopwatch: Stopwatch) -> list[float]:
    """CPU seconds of encryption, product and decryption."""
    owner = keys.ring_owner(fmt, secrets.token_bytes(KEY_SEED_BYTES))
    evaluator = keys.ring_evaluator(owner.public_bytes, fmt)
    drawn, bound = np.random.default_rng(0), fmt.matrix_bound
    matrix = drawn.integers(-bound, bound + 1, (fmt.outputs, fmt.inner))
    values = ring.uniform(fmt.inner, fmt.columns)
    stopwatch.start()
    encrypted = owner.encrypt(values)
    found = [stopwatch.stop("encrypt")]
    stopwatch.start()
    reply, _ = evaluator.product(encrypted, matrix)
    found.append(stopwatch.stop("evaluate"))
    stopwatch.start()
    owner.decrypt(reply)
    return [*found, stopwatch.stop("decrypt")]


def main(formats: list[RingProductFormat]) -> None:
    """Write a line for each format."""
    for fmt in formats:
        whole, charges = Stopwatch(time.process_time), Charges(Stopwatch(time.process_time))
        took, charged = spent(fmt, KeyMaker(), whole), spent(fmt, SampledKeys(charges), charges)
        shape = f"({fmt.outputs:,} x {fmt.inner:,}) ({fmt.inner:,} x {fmt.columns})"
        pairs = "  ".join(f"{c:.2f} : {t:.2f} s" for c, t in zip(charged, took, strict=True))
        sys.stdout.write(f"{shape:34} {pairs}\n")


if __name__ == "__main__":
    main(FORMATS)
