"""CPU milliseconds of the evaluator's side of products, native and by SEAL, in one process.

    python -m bench.engines.evaluator [RUNS]

They take turns. Medians of process time, of one product and of what was made ahead for it, and the
least wall time. The matrix is random within its bounds, and X is prepared for every product.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from securevfl.crypto import native, ring
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import with_fraction_bits
from securevfl.threads import spread_over

BFV = ((256, 64), (4096, 128), (16384, 392))
RING = ((455, 15, 20), (24_000, 12, 100))
RUNS = 7
Product = Callable[[], object]


def bfv(rows: int, columns: int) -> Iterator[tuple[str, Product, Product]]:
    """Engine, what is made ahead and a product, with X prepared anew in each."""
    fmt = with_fraction_bits("bfv", ProductFormat(rows, 1.0, 8.0, columns=columns, rounds=100))
    owner, drawn = BfvOwner(fmt), np.random.default_rng(0)
    matrix = drawn.integers(-fmt.largest_entry, fmt.largest_entry, (rows, columns))
    encrypted = owner.encrypt(drawn.integers(-fmt.largest_value, fmt.largest_value, rows))
    for engine in ("seal", "native"):
        end = BfvEvaluator(owner.public_bytes, fmt, native=engine == "native")
        prepared = end.prepare(matrix)

        def ahead(end: BfvEvaluator = end, prepared: object = prepared) -> None:
            while end.lacks_blinders(prepared):
                end.make_blinder()

        def product(end: BfvEvaluator = end) -> None:
            end.masked_product(encrypted, end.prepare(matrix))

        yield end.engine, ahead, product


def in_ring(outputs: int, inner: int, columns: int) -> Iterator[tuple[str, Product, Product]]:
    """As above, M of shape (outputs, inner)."""
    fmt = RingProductFormat(inner, outputs, columns, 1 << 15, products=10_000)
    owner, drawn = RingProductOwner(fmt), np.random.default_rng(0)
    matrix = drawn.integers(-(1 << 15), 1 << 15, (outputs, inner))
    encrypted = owner.encrypt(ring.uniform(inner, columns))
    for engine in ("seal", "native"):
        end = RingProductEvaluator(owner.public_bytes, fmt, native=engine == "native")

        def ahead(end: RingProductEvaluator = end) -> None:
            while end.lacks_blinders():
                end.make_blinder()

        def product(end: RingProductEvaluator = end) -> None:
            end.product(encrypted, matrix)

        yield end.engine, ahead, product


def measure(name: str, ends: list[tuple[str, Product, Product]], runs: int) -> None:
    """Print a row for each engine."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    library = native.found
    for _ in range(runs):
        for engine, ahead, product in ends:
            if engine == "seal":  # masks are numpy's as well
                native.found = lambda: native.Missing("measured without")  # type: ignore[assignment]
            for threads in (1, 2) if engine == "native" else (1,):
                began = time.process_time()
                ahead()
                with spread_over(threads):
                    started, wall = time.process_time(), time.perf_counter()
                    product()
                ended, after = time.process_time(), time.perf_counter()
                seen = (1e3 * (ended - started), 1e3 * (started - began), 1e3 * (after - wall))
                found.setdefault((engine, threads), []).append(seen)
            native.found = library
    for (engine, threads), each in found.items():
        online, offline, _ = (statistics.median(column) for column in zip(*each, strict=True))
        least = min(wall for _, _, wall in each)
        print(f"| {name} | {engine}, {threads} | {online:.2f} | {offline:.1f} | {least:.1f} |")  # noqa: T201


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    print("| product | engine, threads | online, CPU ms | ahead | wall, least |")  # noqa: T201
    print("| --- | --- | ---: | ---: | ---: |")  # noqa: T201
    for shape in BFV:
        measure("bfv {} x {}".format(*shape), list(bfv(*shape)), runs)
    for sizes in RING:
        measure("blind ahead {} x {}, r = {}".format(*sizes), list(in_ring(*sizes)), runs)
