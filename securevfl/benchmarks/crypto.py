"""Engines on the masked product Xᵀv, beside phe and NumPy, in one process.

Every row times one whole product on the same integers: encrypt v, multiply and mask, decrypt.
Keys, and bringing X into the scheme's form, which is done once for batches that come again, have
columns of their own.
Blinders of both ends are made before, as parties make them while they wait, and have a column of
their own.
What would take phe longer than `PATIENCE_SECONDS` is timed on a stated part of the work and scaled
up.
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
from securevfl.crypto.schemes import (
    SCHEMES,
    make_evaluator,
    make_owner,
    running_engine,
    with_fraction_bits,
)
from securevfl.errors import ConfigError
from securevfl.job import NetworkSettings
from securevfl.reports.benchmarks import CryptoRow
from securevfl.threads import spread_over

PATIENCE_SECONDS = 60.0
ONLINE = ("encrypt", "evaluate", "decrypt")
# No repeats of what took this long together.
ENOUGH_SECONDS = 10.0
# Not measured unless they are named: what is slower, and another name of bfv's seal.
VARIANTS = (("paillier", "fast-full"), ("bfv", "seal"), ("bfv", "tenseal"))


@dataclass(frozen=True)
class _Products:
    values: NDArray[np.int64]
    matrix: NDArray[np.int64]
    format: ProductFormat

    def part(self, rows: int, columns: int) -> "_Products":
        return _Products(self.values[:rows], self.matrix[:rows, :columns], self.format)


@dataclass(frozen=True)
class CryptoSettings:
    """Every shape by every scheme.

    Attributes:
        samples: batch sizes S.
        features: columns P, one for each S.
        schemes: names.
        paillier_bits: sizes of Paillier's modulus.
        zero_one: X of 0 and 1, which is exact without fraction bits.
        rounds: of the job, which primes are sized for.
        network: between the parties.
        engines: names; by default all but variants of another.
        workers: measure engines that spread over so many processes or threads as well.
        repeats: runs of each, for medians.
        seed: of the numbers, never of keys.

    Raises:
        ConfigError: not as many S as P, an unknown scheme, or engines of none of the schemes.
    """

    samples: tuple[int, ...]
    features: tuple[int, ...]
    schemes: tuple[str, ...]
    paillier_bits: tuple[int, ...]
    zero_one: bool
    rounds: int
    network: NetworkSettings
    workers: int
    repeats: int
    seed: int
    engines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.features):
            raise ConfigError(
                f"--samples has {len(self.samples)} values, --features {len(self.features)}: "
                "expected one each"
            )
        for name in self.schemes:
            if name not in SCHEMES:
                raise ConfigError(f"--scheme has {name!r}, some of {', '.join(SCHEMES)} expected")
        known = [engine for name in self.schemes for engine in SCHEMES[name].engines]
        for name in self.engines:
            if name not in known:
                raise ConfigError(f"--engine has {name!r}, some of {', '.join(known)} expected")

    def measures(self, scheme: str, engine: str) -> bool:
        """Whether this engine is asked for."""
        return engine in self.engines or (not self.engines and (scheme, engine) not in VARIANTS)


def crypto(settings: CryptoSettings, report: Report = silent) -> Iterator[CryptoRow]:
    """Measure; yields rows shape by shape, with their ratios to phe."""
    contenders = [
        (scheme, engine, bits, workers)
        for scheme in settings.schemes
        for engine in SCHEMES[scheme].engines
        if settings.measures(scheme, engine)
        for bits in (settings.paillier_bits if SCHEMES[scheme].key_sizes else (None,))
        for workers in ({1, settings.workers} if engine in ("fast", "native") else {1})
    ]
    for samples, features in zip(settings.samples, settings.features, strict=True):
        work = _work(settings, samples, features)
        rows = []
        for scheme, engine, bits, workers in contenders:
            report(f"{scheme} {engine} {bits or ''}, {samples} x {features}")
            with spread_over(workers):
                rows.append(
                    _measure(scheme, engine, bits, work, repeats=settings.repeats, workers=workers)
                )
        rows.append(_numpy(work, settings.repeats))
        baseline = {
            row["key_bits"]: row["seconds_median"] for row in rows if row["engine"] == "phe"
        }
        for row in rows:
            row["ratio_to_phe_2048"] = _ratio(baseline.get(2048), row)
            row["ratio_to_phe_3072"] = _ratio(baseline.get(3072), row)
        yield from rows


def _ratio(baseline: float | None, row: CryptoRow) -> float | None:
    return None if baseline is None else baseline / row["seconds_median"]


def _work(settings: CryptoSettings, samples: int, features: int) -> _Products:
    generator = np.random.default_rng(settings.seed)
    network = settings.network.resolve()
    product_format = with_fraction_bits(
        "bfv",
        ProductFormat(
            rows=samples,
            value_bound=1.0,
            matrix_bound=1.0 if settings.zero_one else 8.0,
            columns=features,
            rounds=settings.rounds,
            bandwidth_mbit=network.bandwidth_mbit,
            latency_ms=network.latency_ms,
        ),
        exact_bits=0 if settings.zero_one else None,
    )
    scaled = generator.standard_normal((samples, features)).clip(-8, 8)
    if settings.zero_one:
        scaled = (scaled > 0).astype(float)
    matrix = np.rint(scaled * 2**product_format.matrix_fraction_bits).astype(np.int64)
    drawn = generator.uniform(-1, 1, samples)
    values = np.rint(drawn * 2**product_format.value_fraction_bits).astype(np.int64)
    return _Products(values, matrix, product_format)


def _measure(
    scheme: str, engine: str, bits: int | None, work: _Products, *, repeats: int, workers: int
) -> CryptoRow:
    started = time.perf_counter()
    owner = make_owner(scheme, work.format, key_bits=bits, engine=engine)
    processes = workers if engine == "fast" else 1
    evaluator = make_evaluator(
        scheme, owner.public_bytes, work.format, key_bits=bits, engine=engine, workers=processes
    )
    keys_made = time.perf_counter()
    if processes > 1:
        _run(owner, evaluator, work.part(workers, 1))  # processes take half a second to start
    samples, features = work.matrix.shape
    rows, columns = samples, features
    if engine == "phe":
        rows, columns = _affordable(owner, evaluator, work)
    part = work.part(rows, columns)
    runs = [_run(owner, evaluator, part)]
    while len(runs) < repeats and sum(run["total"] for run in runs) < ENOUGH_SECONDS:
        runs.append(_run(owner, evaluator, part))
    whole = [_scaled(run, rows / samples, columns / features, samples) for run in runs]
    totals = [sum(phases[phase] for phase in ONLINE) for phases in whole]
    return {
        "operation": "masked_product",
        "scheme": scheme,
        "engine": running_engine(scheme, engine),
        "key_bits": bits,
        "workers": workers,
        "samples": samples,
        "features": features,
        "seconds_median": statistics.median(totals),
        "seconds_min": min(totals),
        "seconds_encrypt": statistics.median(phases["encrypt"] for phases in whole),
        "seconds_evaluate": statistics.median(phases["evaluate"] for phases in whole),
        "seconds_decrypt": statistics.median(phases["decrypt"] for phases in whole),
        "seconds_offline": statistics.median(phases["offline"] for phases in whole),
        "seconds_keys": keys_made - started,
        "seconds_prepare": runs[0]["prepare"] * samples / rows * features / columns,
        "extrapolated": (rows, columns) != (samples, features),
        "timed_part": (rows, columns),
        "bytes_up": round(runs[0]["bytes_up"] * samples / rows),
        "bytes_down": round(runs[0]["bytes_down"] * features / columns),
        "bytes_key": len(owner.public_bytes),
        "exact": runs[0]["exact"],
        "largest_error": runs[0]["largest_error"],
        "value_fraction_bits": work.format.value_fraction_bits,
        "matrix_fraction_bits": work.format.matrix_fraction_bits,
        "rounds": work.format.rounds,
        "runs": len(runs),
        "ratio_to_phe_2048": None,
        "ratio_to_phe_3072": None,
    }


def _affordable(owner: KeyOwner, evaluator: Evaluator, work: _Products) -> tuple[int, int]:
    """All of the work, or a part that fits the patience, judged from a probe."""
    samples, features = work.matrix.shape
    rows, columns = min(samples, 16), min(features, 2)
    probe = _run(owner, evaluator, work.part(rows, columns))
    whole = _scaled(probe, rows / samples, columns / features, samples)
    if sum(whole.values()) > PATIENCE_SECONDS:
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
        "offline": run["offline"],
    }


def _run(owner: KeyOwner, evaluator: Evaluator, work: _Products) -> dict[str, Any]:
    unprepared = time.perf_counter()
    prepared = evaluator.prepare(work.matrix)
    features = work.matrix.shape[1]
    began = time.perf_counter()
    while owner.lacks_blinders():
        owner.make_blinder()
    while evaluator.lacks_blinders(prepared):
        evaluator.make_blinder()
    started = time.perf_counter()
    encrypted = owner.encrypt(work.values)
    encrypted_at = time.perf_counter()
    reply = evaluator.masked_product(encrypted, prepared)
    evaluated_at = time.perf_counter()
    masked = owner.decrypt(reply.ciphertext, features)
    ended = time.perf_counter()
    product = unmask(masked, reply.mask, evaluator.modulus_bits)
    error = np.abs(product - work.matrix.T @ work.values)
    return {
        "prepare": began - unprepared,
        "encrypt": encrypted_at - started,
        "evaluate": evaluated_at - encrypted_at,
        "decrypt": ended - evaluated_at,
        "offline": started - began,
        "total": ended - began,
        "columns": features,
        "bytes_up": len(encrypted),
        "bytes_down": len(reply.ciphertext),
        "exact": bool((error == 0).all()),
        "largest_error": float(error.max()) / 2**work.format.product_fraction_bits,
    }


def _numpy(work: _Products, repeats: int) -> CryptoRow:
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
        "workers": 1,
        "samples": samples,
        "features": features,
        "seconds_median": statistics.median(seconds),
        "seconds_min": min(seconds),
        "extrapolated": False,
        "bytes_up": values.nbytes,
        "bytes_down": features * 8,
        "exact": True,
        "runs": len(seconds),
        "ratio_to_phe_2048": None,
        "ratio_to_phe_3072": None,
    }
