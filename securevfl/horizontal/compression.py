"""Uploads in fewer bytes: the largest entries, or stochastic levels; with error feedback.

- `TopK` keeps the k entries of largest magnitude. It is biased, so what it left out is kept at
  the client and added to its next upload: *error feedback* (Stich, Cordonnier, Jaggi, NeurIPS
  2018, algorithm 1).
- `Quantizer` is QSGD's Q_s (Alistarh et al., NeurIPS 2017, section 3.1): entry v_i becomes
  ‖v‖ · sign(v_i) · ℓ/s, where ℓ is one of the two integers beside s·|v_i|/‖v‖, drawn so that the
  mean is v_i. E‖Q_s(v) − v‖² ≤ min(n/s², √n/s)·‖v‖² (lemma 3.1), for every bucket of n entries
  with a norm of its own (section 4). FedPAQ's low-precision quantizer (Reisizadeh et al., AISTATS
  2020, example 1) is the same one, applied to x_i − x, what local training changed in the whole
  model: FedPAQ is FedAvg under a `Quantizer`. QSGD on blocks is FedBCGD under one.

`Compressed` applies either to a federation: the change of θ in the uploaded entries, the shared
block's included, is encoded as one vector, and that of κ_j as another.

Encoded bytes have no header: both ends know how many entries an upload has. Norms and values
travel as float32; integers below 2^b take b bits each, packed from the lowest bit on. Bytes from a
client are hostile: `decode` accepts exactly what `encode` can write.

Learns:
    server, and anyone who sees an upload: every single upload in clear, see `Method.learns`,
        except what encoding leaves out. Compression protects nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.errors import ConfigError, DataError, MalformedMessage
from securevfl.horizontal.client import Broadcast, ClientState, Upload
from securevfl.horizontal.codings import Coding, state_after_sending
from securevfl.horizontal.federation import Federation, Method
from securevfl.wire.codec import StepMessage, message_kind

_ERROR = "left out by compression"
_DRAWS = 1
_FLOAT = np.dtype("<f4")
_INFINITE = np.float32(np.inf)
MAX_LEVELS = 2**15


@dataclass(frozen=True)
class TopK:
    """Top-k sparsification: the positions, ascending, and values of the largest entries.

    Like `Quantizer`, it makes bytes of an upload of shape (n,), n >= 1, and refuses NaN, infinities
    and values beyond float32 with a DataError; what `encode` does not write, `decode` refuses with
    MalformedMessage. The repr says what both ends agree on.

    Attributes:
        share: of the entries, in (0, 1]; at least one is kept.

    Raises:
        ConfigError: a share that cannot be.
    """

    share: float
    unbiased = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share = {self.share}: expected more than 0 and at most 1")

    def kept(self, size: int) -> int:
        """The number k of entries kept of a vector of this size."""
        return max(1, round(self.share * size))

    def encode(self, values: RealArray, draws: np.random.Generator) -> bytes:
        """Positions of ⌈log2 n⌉ bits, then float32 values."""
        size, kept = len(values), self.kept(len(values))
        _require_finite(values)
        largest = np.argpartition(np.abs(values), size - kept)[size - kept :]
        positions = np.sort(largest)
        return _packed(positions, _bits(size - 1)) + _as_float32(values[positions]).tobytes()

    def decode(self, data: bytes, size: int) -> FloatArray:
        """The sent entries; all others are zero."""
        kept, bits = self.kept(size), _bits(size - 1)
        positions_bytes = _packed_size(kept, bits)
        _require_bytes(data, positions_bytes + kept * _FLOAT.itemsize)
        positions = _unpacked(data[:positions_bytes], kept, bits)
        if positions[-1] >= size or np.any(np.diff(positions) <= 0):
            raise MalformedMessage(f"positions are not ascending below {size}")
        values = np.zeros(size)
        values[positions] = _floats(data[positions_bytes:])
        return values


@dataclass(frozen=True)
class Quantizer:
    """Stochastic levels of a norm.

    Attributes:
        levels: s: 2s + 1 values an entry, so s = 1, 3, 7 or 127 fill 2, 3, 4 or 8 bits.
        bucket: entries that share a norm; None is the whole upload.

    Raises:
        ConfigError: no level, more than MAX_LEVELS, or an empty bucket.
    """

    levels: int
    bucket: int | None = None
    unbiased = True

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise ConfigError(f"levels = {self.levels}: expected 1 to {MAX_LEVELS}")
        if self.bucket is not None and self.bucket < 1:
            raise ConfigError(f"bucket = {self.bucket}: expected at least 1")

    def encode(self, values: RealArray, draws: np.random.Generator) -> bytes:
        """One float32 norm per bucket, then levels −s to s coded as 0 to 2s."""
        _require_finite(values)
        norms = self._norms(values)
        each = self._each(norms, len(values))
        # Where a norm is 0 so are its entries.
        exact = np.abs(values) * (self.levels / np.where(each > 0, each, 1.0))
        below = np.floor(exact)
        levels = below + (draws.random(len(values)) < exact - below)
        # A quotient may pass s by its last bit, and s is what it stands for.
        signed = np.copysign(np.minimum(levels, self.levels), values).astype(np.int64)
        return norms.tobytes() + _packed(signed + self.levels, _bits(2 * self.levels))

    def decode(self, data: bytes, size: int) -> FloatArray:
        """Levels times their norm over s."""
        bits = _bits(2 * self.levels)
        norms_bytes = _FLOAT.itemsize * self._buckets(size)
        _require_bytes(data, norms_bytes + _packed_size(size, bits))
        norms = _floats(data[:norms_bytes])
        if np.any(np.signbit(norms)):
            raise MalformedMessage("a norm is negative")
        levels = _unpacked(data[norms_bytes:], size, bits) - self.levels
        each = self._each(norms, size)
        if np.any(np.abs(levels) > self.levels) or np.any(levels[each == 0]):
            raise MalformedMessage(f"a level is beyond {self.levels}, or of a norm that is 0")
        return levels * (each / self.levels)

    def _buckets(self, size: int) -> int:
        return 1 if self.bucket is None else -(-size // self.bucket)

    def _each(self, of_buckets: NDArray[np.floating[Any]], size: int) -> FloatArray:
        return np.repeat(of_buckets.astype(np.float64), self.bucket or size)[:size]

    def _norms(self, values: RealArray) -> NDArray[np.float32]:
        starts = np.arange(0, len(values), self.bucket or len(values))
        largest = np.maximum.reduceat(np.abs(values), starts).astype(np.float64)
        # Relative to the largest, as squares of very small or large numbers would be 0 or infinite.
        scale = np.where(largest > 0, largest, 1.0)
        exact = scale * np.sqrt(
            np.add.reduceat((values / self._each(scale, len(values))) ** 2, starts)
        )
        exact = np.where(largest > 0, exact, 0.0)
        norms = _as_float32(exact)
        # Never below the exact norm: the largest level would pass s.
        return _as_float32(np.where(norms < exact, np.nextafter(norms, _INFINITE), norms))


Compressor = TopK | Quantizer


def compress(
    compressor: Compressor,
    values: RealArray,
    draws: np.random.Generator,
    error: RealArray | None = None,
) -> tuple[bytes, RealArray | None]:
    """An upload's bytes, with error feedback where the compressor is biased.

    Returns:
        The bytes, and what they leave out, which is `error` of the next upload of the same entries;
        None of an unbiased compressor.

    Raises:
        DataError: NaN, an infinity, or a value beyond float32.
    """
    if compressor.unbiased:
        return compressor.encode(values, draws), None
    due = values if error is None else values + error
    data = compressor.encode(due, draws)
    return data, due - compressor.decode(data, len(due))


@message_kind(94, stage="round", carries="values", shows="updates")
class CompressedUpload(StepMessage):
    """From a client to the server: the compressed changes of its blocks, and those of κ_j."""

    changes: bytes
    controls: bytes


class Compressed(Coding):
    """Uploads whose vectors both go through a compressor."""

    kind = CompressedUpload

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self.terms = f"compressed by {compressor!r}"

    @override
    def learns(self, method: Method) -> Mapping[str, str]:
        return {**method.learns, "server": f"coarsely, {method.learns['server']}"}

    @override
    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[CompressedUpload, ClientState]:
        entries, seed = federation.blocks.uploaded(upload.block), federation.settings.seed
        draws = np.random.default_rng((seed, broadcast.round_index, upload.client, _DRAWS))
        errors = state.memory.get(_ERROR, np.zeros_like(broadcast.weights))
        changes, left_out = compress(self._compressor, upload.changes, draws, errors[entries])
        if left_out is not None:
            errors = errors.copy()
            errors[entries] = left_out
            state = replace(state, memory={**state.memory, _ERROR: errors})
        # No error feedback here: the next difference from κ_j holds what this one leaves out.
        controls = b""
        if upload.controls.size:
            controls = self._compressor.encode(upload.controls, draws)
        message = CompressedUpload(broadcast.round_index, changes, controls)
        sent = self.read(federation, upload.client, upload.block, message, broadcast.weights)
        return message, state_after_sending(federation, state, upload, sent)

    @override
    def read(
        self, federation: Federation, client: int, block: int, message: StepMessage, like: RealArray
    ) -> Upload:
        assert isinstance(message, CompressedUpload)  # noqa: S101
        size, corrects = len(federation.blocks.uploaded(block)), federation.method.corrects
        try:
            changes = self._compressor.decode(message.changes, size)
            controls = self._compressor.decode(message.controls, size) if corrects else changes[:0]
        except MalformedMessage as error:
            raise MalformedMessage(f"client {client}: {error}") from error
        if message.controls and not corrects:
            raise MalformedMessage(f"client {client}: control variates where the method has none")
        return Upload(client, block, changes.astype(like.dtype), controls.astype(like.dtype))


def _require_finite(values: RealArray) -> None:
    if not np.isfinite(values).all():
        raise DataError("an upload holds NaN or infinite values, finite ones expected")


def _as_float32(values: RealArray) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # refused below
        rounded = values.astype(_FLOAT)
    if not np.isfinite(rounded).all():
        raise DataError("an upload holds values beyond float32")
    return rounded


def _floats(data: bytes) -> FloatArray:
    values = np.frombuffer(data, _FLOAT)
    if not np.isfinite(values).all():
        raise MalformedMessage("an upload holds NaN or infinite values")
    return values.astype(np.float64)


def _bits(largest: int) -> int:
    return max(1, largest.bit_length())


def _packed_size(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _packed(integers: IntArray, bits: int) -> bytes:
    digits = (integers[:, None] >> np.arange(bits)) & 1
    return np.packbits(digits.astype(np.uint8), bitorder="little").tobytes()


def _unpacked(data: bytes, count: int, bits: int) -> IntArray:
    digits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if np.any(digits[count * bits :]):
        raise MalformedMessage("bits after the last integer are set")
    integers: IntArray = digits[: count * bits].reshape(count, bits) @ (1 << np.arange(bits))
    return integers


def _require_bytes(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise MalformedMessage(f"upload of {len(data)} bytes, {expected} expected")
