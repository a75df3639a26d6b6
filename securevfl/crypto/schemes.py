"""Every homomorphic scheme by name, and how its two ends are made from a job's settings.

The properties of a scheme are known without its library, which is imported only to make keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from securevfl.crypto.bfv_parameters import HANDY_BITS, BfvParameters
from securevfl.crypto.scheme import (
    MODULUS_BITS,
    PAILLIER_KEY_SIZES,
    Evaluator,
    KeyOwner,
    ProductFormat,
)
from securevfl.errors import ConfigError
from securevfl.lazy import Lazy

if TYPE_CHECKING:
    from securevfl.crypto import bfv, ckks, native_products, paillier
    from securevfl.crypto import paillier_fast as fast
else:  # their libraries take a second to load
    bfv, ckks = Lazy("securevfl.crypto.bfv"), Lazy("securevfl.crypto.ckks")
    native_products = Lazy("securevfl.crypto.native_products")
    paillier, fast = Lazy("securevfl.crypto.paillier"), Lazy("securevfl.crypto.paillier_fast")

Ends = tuple[Callable[..., KeyOwner], Callable[..., Evaluator]]
"""Functions that make an owner from a format, and an evaluator from public bytes and a format.

If a scheme has key sizes, the size is a further argument; an owner's is the seed if it has one.
"""


@dataclass(frozen=True)
class Scheme:
    """A homomorphic scheme.

    Attributes:
        description: one line for users.
        engines: its implementations by name; the first is the default.
        key_sizes: in bits, the first is the default; empty if there is no choice.
        fraction_bits: fixed point of v and X if a job sets none, the finest first. The first whose
            products fit `handy_bits` is used, or else the last.
        handy_bits: products up to this size have the shortest ciphertexts.
        exact: integers stay integers, so features may have few fraction bits.
        seconds: estimated time of one product without latency, for schemes of which a job may take
            one round trip.
        seeded: whether public keys depend on a seed that parties draw, see seeded_keys.
        is_slow: whether a round takes seconds, so that audits use fewer and smaller ones.
    """

    description: str
    engines: Mapping[str, Callable[[], Ends]]
    key_sizes: tuple[int, ...] = ()
    fraction_bits: tuple[tuple[int, int], ...] = ((24, 16),)
    handy_bits: int = MODULUS_BITS
    exact: bool = True
    seconds: Callable[[ProductFormat], float] | None = None
    seeded: bool = False
    is_slow: bool = False


def _bfv_by_seal() -> Ends:
    return partial(bfv.BfvOwner, native=False), partial(bfv.BfvEvaluator, native=False)


SCHEMES: Mapping[str, Scheme] = {
    "bfv": Scheme(
        "BFV on TenSEAL's SEAL: exact, 128 bits, fast; the default",
        # Products in C where that was compiled; seal is named as earlier jobs did as well.
        {
            "native": lambda: (bfv.BfvOwner, bfv.BfvEvaluator),
            "seal": _bfv_by_seal,
            "tenseal": _bfv_by_seal,
        },
        # Rounding v to 13 bits weighs on a gradient as much as rounding X to 12, residuals being
        # within ±1 and features around it: large S and bounds are met by fewer bits of v alone.
        fraction_bits=((20, 14), (19, 13), *((bits, 12) for bits in range(18, 12, -1))),
        handy_bits=HANDY_BITS,
        seconds=lambda product_format: BfvParameters.of(product_format).seconds(product_format),
        seeded=True,
    ),
    "paillier": Scheme(
        "Paillier on phe's keys: exact, 3072 bits (2048 is 112-bit security); phe is the baseline",
        {
            "fast": lambda: (fast.FastPaillierOwner, fast.FastPaillierEvaluator),
            "fast-full": lambda: (fast.FullPaillierOwner, fast.FastPaillierEvaluator),
            "phe": lambda: (paillier.PaillierOwner, paillier.PaillierEvaluator),
        },
        PAILLIER_KEY_SIZES,
        is_slow=True,
    ),
    "ckks": Scheme(
        "CKKS through TenSEAL: approximate; for benchmarks only",
        {"tenseal": lambda: (ckks.CkksOwner, ckks.CkksEvaluator)},
        exact=False,
        seeded=True,
    ),
}


def with_fraction_bits(
    scheme: str,
    product_format: ProductFormat,
    *,
    value_bits: int | None = None,
    matrix_bits: int | None = None,
    exact_bits: int | None = None,
) -> ProductFormat:
    """The format with a fixed point that suits a scheme; a job may set the bits of v and of X.

    Exact schemes use at most `exact_bits` for X, if X is exact with them.
    """
    known = SCHEMES[scheme]
    limit = exact_bits if known.exact and exact_bits is not None else MODULUS_BITS
    formats = [
        replace(
            product_format,
            value_fraction_bits=value_bits or of_values,
            matrix_fraction_bits=min(matrix_bits or of_matrix, limit),
        )
        for of_values, of_matrix in known.fraction_bits
    ]
    handy = (fmt for fmt in formats if fmt.largest_product.bit_length() < known.handy_bits)
    return next(handy, formats[-1])


def make_owner(
    scheme: str,
    product_format: ProductFormat,
    *,
    key_bits: int | None = None,
    engine: str | None = None,
    seed: bytes | None = None,
) -> KeyOwner:
    """A fresh key pair; by default 3072 bits for Paillier, and the scheme's first engine.

    Seeded schemes take the `seed` that parties drew, or one of their own, which no peer accepts.

    Raises:
        ConfigError: an unknown scheme, engine or key size, or too few bits for ckks.
        RangeExceeded: a format whose products do not fit the scheme.
    """
    bits, (owner, _) = _choose(scheme, key_bits, engine)
    return owner(product_format, seed) if SCHEMES[scheme].seeded else owner(product_format, *bits)


def make_evaluator(
    scheme: str,
    public_bytes: bytes,
    product_format: ProductFormat,
    *,
    engine: str | None = None,
    key_bits: int | None = None,
    workers: int = 1,
) -> Evaluator:
    """A peer's end of another party's key of `key_bits` (3072); `workers` processes multiply.

    Raises:
        KeyMismatch: the bytes are not such a public key.
        ConfigError, RangeExceeded: see `make_owner`.
    """
    bits, (_, evaluator_of) = _choose(scheme, key_bits, engine)
    evaluator = evaluator_of(public_bytes, product_format, *bits)
    if workers > 1:
        if not isinstance(evaluator, fast.FastPaillierEvaluator):
            raise ConfigError(
                f"workers is {workers}, 1 expected: only paillier's fast engine spreads"
            )
        evaluator.spread_over(workers)
    return evaluator


def default_engine(scheme: str) -> str:
    """The default engine of a scheme."""
    return next(iter(SCHEMES[scheme].engines))


def running_engine(scheme: str, engine: str | None = None) -> str:
    """The engine that multiplies in this process: seal where native finds no library."""
    name = engine or default_engine(scheme)
    if name == "native":
        return "native" if native_products.why_not() is None else "seal"
    return name


def why_slower(scheme: str, engine: str | None = None) -> str | None:
    """One line where products are SEAL's though native ones are wanted, as by default; or None.

    `blind` makes the same products as bfv, and has no choice of engines.
    """
    if scheme not in ("bfv", "blind") or engine not in (None, "native"):
        return None
    missing = native_products.why_not()
    return missing and f"products are SEAL's, and slower than native ones: {missing}"


def require_choice(scheme: str, key_bits: int | None, engine: str | None) -> None:
    """Refuse key sizes and engines that a scheme does not have."""
    _choose(scheme, key_bits, engine)


def _choose(scheme: str, key_bits: int | None, engine: str | None) -> tuple[tuple[int, ...], Ends]:
    if scheme not in SCHEMES:
        raise ConfigError(f"scheme is {scheme!r}, one of {', '.join(SCHEMES)} expected")
    known = SCHEMES[scheme]
    if engine is None:
        engine = default_engine(scheme)
    if engine not in known.engines:
        raise ConfigError(
            f"engine is {engine!r}, one of {', '.join(known.engines)} expected for {scheme}"
        )
    if key_bits is None:
        return known.key_sizes[:1], known.engines[engine]()
    if key_bits not in known.key_sizes:
        sizes = " or ".join(map(str, known.key_sizes)) or "no choice"
        raise ConfigError(f"key_bits is {key_bits}, {sizes} expected for {scheme}")
    return (key_bits,), known.engines[engine]()
