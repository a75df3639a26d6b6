"""The interface of all homomorphic schemes, and what they have in common.

A *key owner* encrypts a vector v of fixed-point numbers. An *evaluator*, who holds a matrix X in
clear, computes the *masked product* Enc(Xᵀv + r) with a fresh r that only it knows. The owner
decrypts Xᵀv + r and returns it; the evaluator subtracts r. Or the evaluator sends r as well, if the
owner is to learn the product. Callers see no polynomials or big
integers: ciphertexts are bytes, and decrypted products are integers modulo 2^`modulus_bits` in
uint64.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import Generic, Protocol, TypeVar

from securevfl.arrays import IntArray, RingArray
from securevfl.blocks import BlockedRows
from securevfl.errors import RangeExceeded

MODULUS_BITS = 64
PAILLIER_KEY_SIZES = (3072, 2048)
KEY_SEED_BYTES = 32  # at the start of a lattice scheme's public key, see seeded_keys
T = TypeVar("T")


@dataclass(frozen=True)
class ProductFormat:
    """Fixed-point format and public bounds of a job's products Xᵀv.

    Attributes:
        rows: the most rows S that one product sums over.
        value_bound: public bound on |v_i| before scaling.
        matrix_bound: public bound on |X_ip| before scaling.
        value_fraction_bits: v is encoded as the integer nearest to v·2^value_fraction_bits.
        matrix_fraction_bits: the same for X.
        summands: number of products added before masks are removed (K − 1 senders if both sides are
            hidden, otherwise 1).
        columns: the most columns P of any evaluator.
        vectors: products per round: C, one vector per output.
        rounds: the most rounds of the job. Together with the other numbers it gives the number of
            decrypted values that a scheme's noise or rounding has to tell nothing in.
        bandwidth_mbit: of the parties' lines, for schemes that can trade inputs for replies.
        latency_ms: one-way latency of the same lines; waits hide offline work.
        evaluators: parties that multiply under one key; the owner's line carries the traffic of all
            of them.
        opened: the key's owner learns products, as their masks are sent to it.
    """

    rows: int
    value_bound: float
    matrix_bound: float
    value_fraction_bits: int = 24
    matrix_fraction_bits: int = 16
    summands: int = 1
    columns: int = 1
    vectors: int = 1
    rounds: int = 1
    bandwidth_mbit: float = 1000.0
    latency_ms: float = 0.5
    evaluators: int = 1
    opened: bool = False

    @property
    def largest_value(self) -> int:
        """Bound on |v_i| as an integer."""
        return ceil(self.value_bound * (1 << self.value_fraction_bits))

    @property
    def largest_entry(self) -> int:
        """Bound on |X_ip| as an integer."""
        return ceil(self.matrix_bound * (1 << self.matrix_fraction_bits))

    @property
    def largest_product(self) -> int:
        """Bound on |Σ Xᵀv| over all summands, as an integer."""
        return self.summands * self.rows * self.largest_value * self.largest_entry

    @property
    def product_fraction_bits(self) -> int:
        """Fraction bits of a product: those of v and of X together."""
        return self.value_fraction_bits + self.matrix_fraction_bits

    def require_room(self, modulus_bits: int) -> None:
        """Refuse a format whose largest product does not stay under half of 2^modulus_bits."""
        if self.largest_product >= 1 << (modulus_bits - 1):
            raise RangeExceeded(
                f"{self.summands} x {self.rows} rows x |v| <= {self.value_bound:g} "
                f"({self.value_fraction_bits} fraction bits) x |x| <= {self.matrix_bound:g} "
                f"({self.matrix_fraction_bits} fraction bits) needs "
                f"{self.largest_product.bit_length() + 1} bits, more than the {modulus_bits} of "
                "the plaintext space; use fewer fraction bits, a smaller batch or scaled features"
            )


@dataclass(frozen=True)
class MaskedReply:
    """Enc(Xᵀv + r) for the key owner, and r, shape (P,), which must not leave the evaluator."""

    ciphertext: bytes
    mask: RingArray


class BlinderPool(Generic[T]):
    """A stock of one-time items, made offline while a party waits for the network.

    Items are never returned to the pool. A pool exists as long as its key and is never stored.
    `make_one` fills it up to its capacity, which is one round's demand.
    """

    def __init__(self, make: Callable[[], T], capacity: int) -> None:
        self._make = make
        self._capacity = capacity
        self._stock: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._stock)

    def make_one(self) -> bool:
        """Add an item; False if the pool is full."""
        if len(self._stock) >= self._capacity:
            return False
        self._stock.append(self._make())
        return True

    def take(self) -> T:
        """The oldest item, or a new one if the pool is empty."""
        return self._stock.popleft() if self._stock else self._make()


class KeyOwner(Protocol):
    """The party with the secret key of one job."""

    @property
    def public_bytes(self) -> bytes:
        """What evaluators need, sent once in the set-up."""

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of SHA-256 of `public_bytes`; identifies a key in results."""
        return sha256(self.public_bytes).hexdigest()[:16]

    @property
    def key_bits(self) -> int | None:
        """Modulus size of Paillier; None for lattice schemes, which have 128-bit security."""
        return None

    @property
    def modulus_bits(self) -> int:
        """Products are integers modulo 2^modulus_bits, times 2^(MODULUS_BITS − modulus_bits).

        Masked products and masks may have lower bits as well, which `unmask` rounds off.
        """
        return MODULUS_BITS

    def make_blinder(self) -> bool:
        """Make offline what an encryption needs besides values; False if nothing is missing."""
        return False

    def lacks_blinders(self) -> bool:
        """Whether the stock is too small for the next vector."""
        return False

    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt (S,) integers, S ≤ rows, |v| ≤ largest_value; a RangeExceeded for others."""

    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        """Decrypt a masked product: (columns,) integers modulo 2^64; a CryptoError if invalid."""


class Evaluator(Protocol):
    """A party that multiplies under another party's key.

    Replies are re-randomized with *blinders* that depend on neither X nor v. They can be made
    offline, while the party waits; each is used once.
    """

    @property
    def modulus_bits(self) -> int:
        """See `KeyOwner.modulus_bits`."""
        return MODULUS_BITS

    def prepare(self, matrix: IntArray) -> object:
        """Convert X, (S, P), to the scheme's form; a RangeExceeded if it is beyond the format."""

    def prepare_table(self, table: BlockedRows) -> object | None:
        """The same of a long table that the scheme encodes by block; None if it cannot."""
        del table
        return None

    def make_blinder(self) -> bool:
        """Make a blinder offline; False if there is nothing to make."""
        return False

    def lacks_blinders(self, prepared: object) -> bool:
        """Whether the stock is too small for the next product of this X."""
        del prepared
        return False

    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        """Enc(Xᵀv + r), re-randomized, with a fresh mask r; a CryptoError for invalid bytes."""
