"""Engines on the masked product Xᵀv, beside phe and NumPy, in one process.

Every row times one whole product: encrypt v, multiply and mask, decrypt. What would take phe
longer than `PATIENCE_SECONDS` is timed on a stated part of the work and scaled up.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.benchmarks.progress import Report, silent
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import make_evaluator, make_owner

Row = dict[str, Any]
PATIENCE_SECONDS = 60.0
PHASES = ("encrypt", "evaluate", "decrypt")


@dataclass(frozen=True)
class CryptoSettings:
    """What to measure: every shape by every scheme.

    Attributes:
        shapes: pairs (S, P).
        paillier_bits: key sizes.
        repeats: timed runs of a product; one for what takes longer than a second.
        seed: of the values, not of any key.
    """

    shapes: tuple[tuple[int, int], ...] = ((64, 15), (256, 64))
    paillier_bits: tuple[int, ...] = (2048, 3072)
    repeats: int = 5
    seed: int = 0


@dataclass(frozen=True)
class _Work:
    values: NDArray[np.int64]
    matrix: NDArray[np.int64]
    format: ProductFormat

    def part(self, rows: int, columns: int) -> "_Work":
        return _Work(self.values[:rows], self.matrix[:rows, :columns], self.format)


def crypto(settings: CryptoSettings, report: Report = silent) -> Iterator[Row]:
    """Measure; yields rows shape by shape, with their ratios to phe."""
    for samples, features in settings.shapes:
        work = _work(samples, features, settings.seed)
        rows = []
        for bits in settings.paillier_bits:
            report(f"phe, {bits} bits, {samples} x {features}")
            rows.append(_measure("paillier", "phe", bits, work, settings.repeats))
        report(f"ckks, {samples} x {features}")
        rows.append(_measure("ckks", None, None, work, settings.repeats))
        rows.append(_numpy(work, settings.repeats))
        by_bits = {row["key_bits"]: row["seconds_median"] for row in rows if row["key_bits"]}
        for row in rows:
            for bits in (2048, 3072):
                baseline = by_bits.get(bits)
                ratio = baseline / row["seconds_median"] if baseline else None
                row[f"ratio_to_phe_{bits}"] = ratio
        yield from rows


def _work(samples: int, features: int, seed: int) -> _Work:
    generator = np.random.default_rng(seed)
    product_format = ProductFormat(rows=samples, value_bound=1.0, matrix_bound=8.0)
    scaled = generator.standard_normal((samples, features)).clip(-8, 8)
    matrix = np.rint(scaled * 2**product_format.matrix_fraction_bits).astype(np.int64)
    drawn = generator.uniform(-1, 1, samples)
    values = np.rint(drawn * 2**product_format.value_fraction_bits).astype(np.int64)
    return _Work(values, matrix, product_format)


def _measure(scheme: str, engine: str | None, bits: int | None, work: _Work, repeats: int) -> Row:
    owner = make_owner(scheme, work.format, key_bits=bits, engine=engine)
    evaluator = make_evaluator(
        scheme, owner.public_bytes, work.format, key_bits=bits, engine=engine
    )
    samples, features = work.matrix.shape
    rows, columns = _affordable(owner, evaluator, work)
    part = work.part(rows, columns)
    runs = [_run(owner, evaluator, part)]
    while len(runs) < repeats and runs[0]["total"] < 1.0:
        runs.append(_run(owner, evaluator, part))
    whole = [_scaled(run, rows / samples, columns / features, samples) for run in runs]
    totals = [sum(phases.values()) for phases in whole]
    return {
        "operation": "masked_product",
        "scheme": scheme,
        "engine": engine,
        "key_bits": bits,
        "samples": samples,
        "features": features,
        "seconds_median": statistics.median(totals),
        "seconds_min": min(totals),
        **{
            f"seconds_{phase}": statistics.median(phases[phase] for phases in whole)
            for phase in PHASES
        },
        "extrapolated": (rows, columns) != (samples, features),
        "timed_part": [rows, columns],
        "bytes_up": round(runs[0]["bytes_up"] * samples / rows),
        "bytes_down": round(runs[0]["bytes_down"] * features / columns),
        "exact": runs[0]["exact"],
        "largest_error": runs[0]["largest_error"],
        "runs": len(runs),
    }


def _affordable(owner: KeyOwner, evaluator: Evaluator, work: _Work) -> tuple[int, int]:
    """All of the work, or a part that fits the patience, judged from a probe."""
    samples, features = work.matrix.shape
    rows, columns = min(samples, 16), min(features, 2)
    probe = _run(owner, evaluator, work.part(rows, columns))
    if sum(_scaled(probe, rows / samples, columns / features, samples).values()) > PATIENCE_SECONDS:
        return min(samples, 256), min(features, 16)
    return samples, features


def _scaled(
    run: dict[str, Any], row_share: float, column_share: float, samples: int
) -> dict[str, float]:
    """Seconds of the whole work from those of a part.

    Evaluating costs one encryption a column (the mask) besides the products.
    """
    rows = samples * row_share
    masks = min(run["encrypt"] / rows * run["columns"], run["evaluate"])
    return {
        "encrypt": run["encrypt"] / row_share,
        "evaluate": (run["evaluate"] - masks) / (row_share * column_share) + masks / column_share,
        "decrypt": run["decrypt"] / column_share,
    }


def _run(owner: KeyOwner, evaluator: Evaluator, work: _Work) -> dict[str, Any]:
    prepared = evaluator.prepare(work.matrix)
    features = work.matrix.shape[1]
    started = time.perf_counter()
    encrypted = owner.encrypt(work.values)
    encrypted_at = time.perf_counter()
    reply = evaluator.masked_product(encrypted, prepared)
    evaluated_at = time.perf_counter()
    masked = owner.decrypt(reply.ciphertext, features)
    ended = time.perf_counter()
    product = unmask(masked, reply.mask)
    error = np.abs(product - work.matrix.T @ work.values)
    return {
        "encrypt": encrypted_at - started,
        "evaluate": evaluated_at - encrypted_at,
        "decrypt": ended - evaluated_at,
        "total": ended - started,
        "columns": features,
        "bytes_up": len(encrypted),
        "bytes_down": len(reply.ciphertext),
        "exact": bool((error == 0).all()),
        "largest_error": float(error.max()) / 2**work.format.product_fraction_bits,
    }


def _numpy(work: _Work, repeats: int) -> Row:
    matrix, values = work.matrix.astype(float), work.values.astype(float)
    seconds = []
    for _ in range(max(repeats, 20)):
        started = time.perf_counter()
        matrix.T @ values
        seconds.append(time.perf_counter() - started)
    samples, features = work.matrix.shape
    return {
        "operation": "masked_product",
        "scheme": "none",
        "engine": "numpy",
        "key_bits": None,
        "samples": samples,
        "features": features,
        "seconds_median": statistics.median(seconds),
        "seconds_min": min(seconds),
        "extrapolated": False,
        "bytes_up": values.nbytes,
        "bytes_down": features * 8,
        "exact": True,
        "runs": len(seconds),
    }
