"""The arithmetic of BFV products in C, by cffi: the library beside this file, where there is one.

`build` makes it when the package is installed and a C compiler is there. Calls release the
interpreter's lock. Arrays are C's arguments as they are, never copies of temporaries.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto.native import build
from securevfl.errors import CryptoError, RangeExceeded

DEGREE = 8192
MOST_PRIMES = 3
LARGEST_ENTRY = (1 << 31) - 1
TRANSFORM_PRIMES = (0xFFFFFFFFC001, 0xFFFFFFFD8001, 0xFFFFFFFA0001)
_TOP, _LARGEST = (1 << 64) - 1, (1 << 61) - 1
LARGEST_PLAIN = 1 << 59
LARGEST_WIDE = 1 << 47
_TOGETHER = 8  # as in products.c
_KINDS = {name: f"{name}_t" for name in ("uint8", "int32", "int64", "uint64")} | {
    "float64": "double"
}
_DECLARATIONS = """
const char *svfl_sources(void);
void svfl_start(void);
int svfl_has_vector(void);
void *svfl_new(int, int, const uint64_t *, int, uint64_t, int);
void svfl_free(void *);
void svfl_cells(const void *, const uint64_t *, uint64_t *);
int svfl_intake(const void *, const uint8_t *, const uint8_t *, const int32_t *, uint64_t *);
int svfl_multiply(const void *, const int32_t *, int64_t, int64_t, int64_t, int64_t,
                  const uint64_t *, int64_t, uint64_t *);
int svfl_add(const void *, const int64_t *, int64_t, const uint64_t *, uint64_t *);
int svfl_reply(const void *, uint64_t *, const int32_t *, const uint64_t *, const int64_t *,
               int64_t, const int32_t *, uint8_t *);
void svfl_ternary(const uint64_t *, int64_t, int32_t *);
void svfl_noise(const uint64_t *, int64_t, int32_t *);
void svfl_rounded(const void *, const uint64_t *, int64_t, uint64_t *);
void svfl_key(const void *, const int32_t *, uint64_t *);
int svfl_zero(const void *, const uint64_t *, const uint8_t *, const int32_t *, uint64_t *);
int svfl_open(const void *, const uint64_t *, const uint8_t *, const int32_t *, const int64_t *,
              int64_t, uint64_t *);
int svfl_of_slots(int, const uint64_t *, const int64_t *, uint64_t *);
int svfl_to_slots(int, const uint64_t *, const int64_t *, uint64_t *);
int svfl_encode(const double *, int64_t, int64_t, const double *, const double *, double, int64_t,
                int32_t *);
void svfl_transform(int, int, const int32_t *, uint64_t *, uint64_t *, uint64_t *);
void svfl_combined(const uint64_t *, int, int64_t, const uint64_t *, uint64_t, uint64_t,
                   uint64_t *);
void svfl_expand(const uint8_t *, const uint64_t *, int, int, uint64_t *);
"""


class Missing(Exception):
    """There is no library that can be used; the text says why."""


class Library:
    """The functions of the library, which take arrays."""

    def __init__(self) -> None:
        if not build.LIBRARY.exists():
            raise Missing(f"{build.LIBRARY.name} was not compiled when this was installed")
        try:
            import cffi  # noqa: PLC0415  # parsing declarations takes a while

            self._ffi = cffi.FFI()
            self._ffi.cdef(_DECLARATIONS)
            self._functions = self._ffi.dlopen(str(build.LIBRARY))
            sources = self._ffi.string(self._functions.svfl_sources())
        except (ImportError, OSError, AttributeError) as error:
            raise Missing(str(error)) from error
        if sources != build.digest().encode():
            raise Missing(f"{build.LIBRARY} was made of other sources or flags: install again")
        self._functions.svfl_start()
        self.has_vector = bool(self._functions.svfl_has_vector())
        words = np.array([[_TOP, 0], [_TOP, 1]], np.uint64)
        factors, prime = [_LARGEST - 2, 3], _LARGEST
        expected = [(_TOP * sum(factors) - 1) % prime, 2]
        if self.combined(words, factors, prime - 1, prime).tolist() != expected:
            raise Missing("a self-test failed: sums of words")

    def of(self, kind: str, array: NDArray[Any] | bytes | memoryview, *, out: bool = False) -> Any:  # noqa: ANN401
        """A pointer to an array of this kind, or to bytes, which it keeps alive."""
        if isinstance(array, np.ndarray):
            _require("an array", _KINDS.get(array.dtype.name), kind)
        return self._ffi.from_buffer(f"{kind}[]", array, require_writable=out)

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function; a MemoryError if it had no room."""
        found = getattr(self._functions, f"svfl_{name}")(*arguments)
        if found == 2:  # noqa: PLR2004
            raise MemoryError(f"no memory for {name}")
        return found

    def engine(self, *arguments: Any) -> Any:  # noqa: ANN401
        """An engine, freed with the last reference to it."""
        made = self._functions.svfl_new(*arguments)
        if made == self._ffi.NULL:
            raise MemoryError("no memory for an engine")
        return self._ffi.gc(made, self._functions.svfl_free)

    def combined(
        self, words: RingArray, factors: Sequence[int], offset: int, prime: int
    ) -> RingArray:
        """See `residues.combined`; factors and offset are residues."""
        _require("factors", len(factors), len(words))
        of, out = self.of, np.empty(words.shape[1], np.uint64)
        self.call(
            "combined",
            of("uint64_t", np.ascontiguousarray(words, np.uint64)),
            *words.shape,
            of("uint64_t", np.array(factors, np.uint64)),
            offset,
            prime,
            of("uint64_t", out, out=True),
        )
        return out

    def encode(
        self,
        values: FloatArray,
        scaling: tuple[FloatArray, FloatArray],
        fraction_bits: int,
        out: NDArray[np.int32],
        first: int,
    ) -> bool:
        """Rows of X as columns of `out`, Xᵀ·2^fraction_bits, from `first` on; whether all fit.

        X is (values − shift)/scale; `scaling` are the two, shape (P,), and `values` (rows, P).
        """
        rows, columns = values.shape
        fits = 0 <= first <= out.shape[1] - rows
        _require("encoded", (len(out), *map(len, scaling), fits), (*[columns] * 3, True))
        of = self.of
        return not self.call(
            "encode",
            of("double", np.ascontiguousarray(values, np.float64)),
            rows,
            columns,
            *(of("double", each) for each in scaling),
            2.0**fraction_bits,
            out.shape[1],
            of("int32_t", out, out=True) + first,
        )


def _require(what: str, found: object, expected: object) -> None:
    """C would read or write elsewhere."""
    if found != expected:
        raise CryptoError(f"{what}: {found}, {expected} expected")


def _require_positions(positions: NDArray[np.int64]) -> None:
    count = len(positions)
    if count % 2 or count > DEGREE or np.any(positions.astype(np.uint64) >= DEGREE):
        raise CryptoError(f"{count} positions: an even number below {DEGREE} expected")


def ternary(words: RingArray) -> NDArray[np.int32]:
    """−1, 0 or 1 from each uniform word, with probabilities within 2^−64 of 1/3."""
    return _sampled("ternary", words)


def noise(words: RingArray) -> NDArray[np.int32]:
    """SEAL's centred binomial noise of uniform words: 21 bits less 21 others, variance 10.5."""
    return _sampled("noise", words)


def _sampled(kind: str, words: RingArray) -> NDArray[np.int32]:
    of, out = library().of, np.empty(words.shape, np.int32)
    library().call(kind, of("uint64_t", words), words.size, of("int32_t", out, out=True))
    return out


@cache
def _places() -> NDArray[np.int64]:
    """Where SEAL's transform has the value of each slot (batchencoder.cpp)."""
    bits = DEGREE.bit_length() - 1
    powers = [pow(3, each, 2 * DEGREE) for each in range(DEGREE // 2)]
    at = [(each - 1) // 2 for each in (*powers, *(2 * DEGREE - each for each in powers))]
    return np.array([int(f"{each:0{bits}b}"[::-1], 2) for each in at], np.int64)


def of_slots(slots: RingArray, *, vector: bool) -> RingArray:
    """The polynomial modulo `TRANSFORM_PRIMES[0]` with these slots, (DEGREE,), as SEAL encodes."""
    return _slots("of_slots", slots, vector=vector)


def to_slots(polynomial: RingArray, *, vector: bool) -> RingArray:
    """The inverse of `of_slots`."""
    return _slots("to_slots", polynomial, vector=vector)


def _slots(name: str, residues: RingArray, *, vector: bool) -> RingArray:
    _require("slots", residues.shape, (DEGREE,))
    if residues.max() >= TRANSFORM_PRIMES[0]:
        raise CryptoError("slots that are no residues")
    of, out = library().of, np.empty(DEGREE, np.uint64)
    library().call(
        name,
        vector,
        of("uint64_t", np.ascontiguousarray(residues)),
        of("int64_t", _places()),
        of("uint64_t", out, out=True),
    )
    return out


@cache
def found() -> Library | Missing:
    """The library, loaded once, or why there is none."""
    try:
        return Library()
    except Missing as missing:
        return missing


def library() -> Library:
    """The library; a Missing if there is none."""
    known = found()
    if isinstance(known, Missing):
        raise known
    return known


def cells(*shape: int, of: Callable[..., RingArray] = np.empty) -> RingArray:
    """An array that begins on a cache line; what is in it is undefined unless `of` makes zeros."""
    count = prod(shape)
    room = of(count + 7, np.uint64)
    start = (-room.ctypes.data % 64) // 8
    return room[start : start + count].reshape(shape)


class Arithmetic:
    """Products of one job: primes of ciphertexts, and how they are computed.

    Args:
        primes: of ciphertexts, up to three, and how many of them a reply keeps.
        prime_bits: their sizes on the wire, 32 to 60 and multiples of 4.
        largest: bound on a sum's coefficients as integers, residues being between 0 and p.
        vector: the path of AVX2 and FMA.
        plain: the plaintext modulus t ≤ 2^59, where replies are decrypted.

    Raises:
        Missing: there is no library.
        CryptoError: primes of other sizes, here; arrays and bytes of other sizes, in every call.
        RangeExceeded: sums that all transforms together cannot hold.
    """

    def __init__(
        self,
        primes: Sequence[int],
        kept: int,
        prime_bits: Sequence[int],
        largest: int,
        *,
        vector: bool,
        plain: int = 0,
    ) -> None:
        self._library = library()
        sizes = [bits for bits in prime_bits if bits in range(32, 61, 4)]
        if not 1 <= kept <= len(primes) == len(sizes) == len(prime_bits) <= MOST_PRIMES or any(
            prime >> bits for prime, bits in zip(primes, sizes, strict=True)
        ):
            raise CryptoError(f"{len(primes)} primes of {prime_bits} bits, {kept} kept")
        if not 0 <= plain <= LARGEST_PLAIN:
            raise CryptoError(f"a plaintext modulus of {plain.bit_length()} bits")
        fitting = (count for count in (2, 3) if 2 * largest < prod(TRANSFORM_PRIMES[:count]))
        transforms = next(fitting, None)
        if transforms is None:
            raise RangeExceeded(f"sums of {largest.bit_length()} bits")
        self._own = (len(primes), transforms, 2)
        self._kept, self._bits = kept, np.array(prime_bits, np.int32)
        self._input = (DEGREE * sum(prime_bits) // 8, 64), (*self._own, DEGREE)
        moduli = np.array(primes, np.uint64)
        self._engine = self._library.engine(
            len(primes), kept, self._library.of("uint64_t", moduli), transforms, plain, vector
        )
        self._opens = plain > 0
        self._width = DEGREE if vector else 2 * DEGREE

    def inputs(self, count: int) -> RingArray:
        """Room for the cells of inputs."""
        return cells(count, *self._own, DEGREE)

    def sums(self, groups: int) -> RingArray:
        """Sums of nothing, one for each group."""
        return cells(groups, *self._own, self._width, of=np.zeros)

    def take_in(self, c0: bytes | memoryview, seed: bytes | memoryview, out: RingArray) -> bool:
        """An input's cells, from c₀ as it travels and the 64 bytes of c₁; False for no residues."""
        _require("an input", ((len(c0), len(seed)), out.shape), self._input)
        of = self._library.of
        return not self._library.call(
            "intake",
            self._engine,
            of("uint8_t", c0),
            of("uint8_t", seed),
            of("int32_t", self._bits),
            of("uint64_t", out, out=True),
        )

    def take_words(self, words: RingArray, out: RingArray) -> None:
        """A ciphertext's cells, from its words, (2, primes, DEGREE)."""
        expected = (2, self._own[0], DEGREE), self._input[1]
        _require("words", (words.shape, out.shape), expected)
        of = self._library.of
        self._library.call(
            "cells", self._engine, of("uint64_t", words), of("uint64_t", out, out=True)
        )

    def multiply(
        self, rows: NDArray[np.int32], chunk: int, inputs: RingArray, sums: RingArray
    ) -> None:
        """Add rows of M, (rows, inner), times inputs, (chunks, groups, …)."""
        expected = self._input[1], (inputs.shape[1], *self._own, self._width)
        _require("inputs and sums", (inputs.shape[2:], sums.shape), expected)
        if not 0 < chunk * len(rows) <= DEGREE:
            raise CryptoError(f"{len(rows)} rows of {chunk} entries")
        of = self._library.of
        self._library.call(
            "multiply",
            self._engine,
            of("int32_t", rows),
            *rows.shape,
            chunk,
            len(inputs),
            of("uint64_t", inputs),
            inputs.shape[1],
            of("uint64_t", sums, out=True),
        )

    def add(self, polynomials: IntArray, inputs: RingArray, sums: RingArray) -> None:
        """Add products of polynomials, (inputs, DEGREE) within 2^47, and inputs of one group."""
        count = len(inputs)
        found = polynomials.shape, inputs.shape[1:], sums.shape
        expected = (count, DEGREE), self._input[1], (*self._own, self._width)
        _require("polynomials, inputs and sums", found, expected)
        if count > _TOGETHER or max(int(polynomials.max()), -int(polynomials.min())) > LARGEST_WIDE:
            raise CryptoError(f"{count} polynomials, or an entry beyond {LARGEST_WIDE}")
        of = self._library.of
        self._library.call(
            "add",
            self._engine,
            of("int64_t", polynomials),
            count,
            of("uint64_t", inputs),
            of("uint64_t", sums, out=True),
        )

    def reply(
        self,
        sums: RingArray,
        noise: NDArray[np.int32],
        masks: RingArray,
        positions: NDArray[np.int64],
    ) -> bytes:
        """A group's reply: its sums plus noise, masked. The sums are used up.

        Args:
            sums: of one group.
            noise: of both polynomials, (2, DEGREE).
            masks: modulo the primes that are kept, (kept, positions).
            positions: which coefficients of c₀ are sent.
        """
        of, count = self._library.of, len(positions)
        expected = (*self._own, self._width), (2, DEGREE), (self._kept, count)
        _require("sums, noise and masks", (sums.shape, noise.shape, masks.shape), expected)
        _require_positions(positions)
        sizes = self._bits[: self._kept].astype(np.int64)
        out = np.empty(int(sizes.sum()) * (DEGREE + count) // 8, np.uint8)
        self._library.call(
            "reply",
            self._engine,
            of("uint64_t", sums, out=True),
            of("int32_t", noise),
            of("uint64_t", np.ascontiguousarray(masks)),
            of("int64_t", positions),
            count,
            of("int32_t", self._bits),
            of("uint8_t", out, out=True),
        )
        return out.tobytes()

    def key(self, secret: NDArray[np.int32]) -> RingArray:
        """A secret key's cells, from its coefficients, (DEGREE,)."""
        _require("a key", secret.shape, (DEGREE,))
        of, out = self._library.of, cells(self._own[1], DEGREE)
        self._library.call(
            "key", self._engine, of("int32_t", secret), of("uint64_t", out, out=True)
        )
        return out

    def zero(self, key: RingArray, seed: bytes, noise: NDArray[np.int32]) -> RingArray:
        """c₀ = −(c₁·s + noise), (primes, DEGREE), for the c₁ of the seed's 64 bytes."""
        found = key.shape, len(seed), noise.shape, self._kept
        expected = (self._own[1], DEGREE), 64, (DEGREE,), self._own[0]
        _require("a key, a seed and noise", found, expected)
        of, out = self._library.of, np.empty((self._own[0], DEGREE), np.uint64)
        self._library.call(
            "zero",
            self._engine,
            of("uint64_t", key),
            of("uint8_t", seed),
            of("int32_t", noise),
            of("uint64_t", out, out=True),
        )
        return out

    def opened(
        self, key: RingArray, reply: bytes | memoryview, positions: NDArray[np.int64]
    ) -> RingArray | None:
        """round(t·(c₀ + c₁·s)/q) modulo t at the positions of a reply, (positions,).

        None if a word is no residue, or c₁ is 0.
        """
        size = int(self._bits.sum()) * (DEGREE + len(positions)) // 8
        found = key.shape, len(reply), self._opens, self._kept
        _require("a key and a reply", found, ((self._own[1], DEGREE), size, True, self._own[0]))
        _require_positions(positions)
        of, out = self._library.of, np.empty(len(positions), np.uint64)
        refused = self._library.call(
            "open",
            self._engine,
            of("uint64_t", key),
            of("uint8_t", reply),
            of("int32_t", self._bits),
            of("int64_t", positions),
            len(positions),
            of("uint64_t", out, out=True),
        )
        return None if refused else out

    def rounded(self, residues: RingArray) -> RingArray:
        """round(t·x/q) modulo t, (count,), of x modulo the primes, (primes, count)."""
        _require("residues", (len(residues), self._opens), (self._own[0], True))
        of, out = self._library.of, np.empty(residues.shape[1], np.uint64)
        self._library.call(
            "rounded",
            self._engine,
            of("uint64_t", np.ascontiguousarray(residues)),
            len(out),
            of("uint64_t", out, out=True),
        )
        return out
