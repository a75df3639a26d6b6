"""CPU milliseconds of both ends of products, native and by SEAL, in one process.

    python -m bench.engines.products [RUNS]

They take turns. Medians of process time: of what both ends make ahead for one product, of the
evaluator's product, with X prepared anew, and of the owner's encryption and decryption; and the
least wall time of the evaluator's. The matrix is random within its bounds.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from securevfl.crypto import native, ring
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.threads import spread_over

BFV = ((256, 64), (4096, 128), (16384, 392))
RING = ((455, 15, 20), (24_000, 12, 100))
SLOTS = (8192,)
RUNS = 7
ENGINES = ("seal", "native")


@dataclass(frozen=True)
class Ends:
    """Both ends of a key: what they make ahead, and the three steps of a product."""

    engine: str
    ahead: Callable[[], None]
    encrypt: Callable[[], object]
    multiply: Callable[..., tuple[object, object]]
    decrypt: Callable[..., object]


def _filled(*ends: tuple[Callable[[], bool], Callable[[], bool]]) -> None:
    for lacks, make in ends:
        while lacks():
            make()


def bfv(rows: int, columns: int) -> Iterator[Ends]:
    """X of shape (rows, columns)."""
    fmt = with_fraction_bits("bfv", ProductFormat(rows, 1.0, 8.0, columns=columns, rounds=100))
    drawn = np.random.default_rng(0)
    matrix = drawn.integers(-fmt.largest_entry, fmt.largest_entry, (rows, columns))
    values = drawn.integers(-fmt.largest_value, fmt.largest_value, rows)
    for engine in ENGINES:
        owner = BfvOwner(fmt, native=engine == "native")
        end = BfvEvaluator(owner.public_bytes, fmt, native=engine == "native")

        def multiply(sent: bytes, end: BfvEvaluator = end) -> tuple[bytes, object]:
            reply = end.masked_product(sent, end.prepare(matrix))
            return reply.ciphertext, reply.mask

        yield Ends(
            end.engine,
            partial(
                _filled,
                (owner.lacks_blinders, owner.make_blinder),
                (partial(end.lacks_blinders, end.prepare(matrix)), end.make_blinder),
            ),
            partial(owner.encrypt, values),
            multiply,
            partial(owner.decrypt, columns=columns),
        )


def in_ring(outputs: int, inner: int, columns: int) -> Iterator[Ends]:
    """M of shape (outputs, inner) times V of shape (inner, columns)."""
    fmt = RingProductFormat(inner, outputs, columns, 1 << 15, products=10_000)
    drawn = np.random.default_rng(0)
    matrix = drawn.integers(-(1 << 15), 1 << 15, (outputs, inner))
    values = ring.uniform(inner, columns)
    for engine in ENGINES:
        owner = RingProductOwner(fmt, native=engine == "native")
        end = RingProductEvaluator(owner.public_bytes, fmt, native=engine == "native")
        yield Ends(
            end.engine,
            partial(_filled, (end.lacks_blinders, end.make_blinder)),
            partial(owner.encrypt, values),
            partial(end.product, matrix=matrix),
            owner.decrypt,
        )


def in_slots(count: int) -> Iterator[Ends]:
    """Complex products, entry by entry."""
    parameters, drawn = SlotParameters.of(100 * count), np.random.default_rng(0)
    first, second = drawn.integers(-(1 << 20), 1 << 20, (2, 2, count))
    for engine in ENGINES:
        owner = SlotOwner(parameters, native=engine == "native")
        end = SlotEvaluator(owner.public_bytes, parameters, native=engine == "native")
        yield Ends(
            end.engine,
            lambda: None,
            partial(owner.encrypt, first),
            partial(end.multiply, parts=second),
            partial(owner.decrypt, count=count),
        )


def measure(name: str, ends: list[Ends], runs: int) -> None:
    """Print a row for each engine."""
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    library = native.found
    for _ in range(runs):
        for each in ends:
            if each.engine == "seal":  # masks are numpy's as well
                native.found = lambda: native.Missing("measured without")  # type: ignore[assignment]
            for threads in (1, 2) if each.engine == "native" else (1,):
                at = [time.process_time()]
                each.ahead()
                at.append(time.process_time())
                sent = each.encrypt()
                at.append(time.process_time())
                with spread_over(threads):
                    wall = time.perf_counter()
                    reply, _ = each.multiply(sent)
                    wall = time.perf_counter() - wall
                    at.append(time.process_time())
                    each.decrypt(reply)
                    at.append(time.process_time())
                ahead, encrypting, product, decrypting = (1e3 * step for step in np.diff(at))
                found.setdefault((each.engine, threads), []).append(
                    (ahead, product, encrypting + decrypting, 1e3 * (at[-1] - at[0]), 1e3 * wall)
                )
            native.found = library
    for (engine, threads), rows in found.items():
        columns = list(zip(*rows, strict=True))
        shown = " | ".join(f"{statistics.median(column):.2f}" for column in columns[:-1])
        print(f"| {name} | {engine}, {threads} | {shown} | {min(columns[-1]):.1f} |")  # noqa: T201


def main(
    runs: int,
    bfvs: tuple[tuple[int, int], ...] = BFV,
    rings: tuple[tuple[int, int, int], ...] = RING,
    slots: tuple[int, ...] = SLOTS,
) -> None:
    """Measure these shapes."""
    print("| product | engine, threads | ahead | evaluator | owner | all | evaluator's wall |")  # noqa: T201
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")  # noqa: T201
    for shape in bfvs:
        measure("bfv {} x {}".format(*shape), list(bfv(*shape)), runs)
    for sizes in rings:
        measure("blind ahead {} x {}, r = {}".format(*sizes), list(in_ring(*sizes)), runs)
    for count in slots:
        measure(f"slots {count}", list(in_slots(count)), runs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
