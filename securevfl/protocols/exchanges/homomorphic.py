"""The two ends of a homomorphic key: its owner, and a peer that computes under it.

All exchanges under encryption consist of four moves: send encrypted values, multiply, decrypt a
masked product, remove the mask. Every move is timed and its operations are counted.

Learns: an owner Xᵀv + r, which hides Xᵀv; a peer Xᵀv alone. What v and X are, and with which
guarantees and source: `encrypted`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.blocks import BlockedRows, block_rows
from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, MaskedReply, ProductFormat
from securevfl.errors import CryptoError, MalformedMessage, UnexpectedMessage
from securevfl.protocols.exchange import Batch
from securevfl.protocols.session.gathering import Party, Step
from securevfl.protocols.session.privacy_account import LeakageCount
from securevfl.runtime.channel import receive_values, tell
from securevfl.runtime.views import Decrypted, record
from securevfl.sparse import Matrix, dense
from securevfl.threads import by_block
from securevfl.wire.codec import Blobs, StepMessage, message_kind

P = ParamSpec("P")
T = TypeVar("T")
Share = Callable[[str, tuple[int, ...]], RingArray]


@message_kind(5, stage="round", carries="ciphertexts", shows="residuals")
class EncryptedValues(StepMessage):
    """C encrypted vectors of S values each under the sender's key."""

    vectors: Blobs


@message_kind(6, stage="round", carries="ciphertexts", shows="gradients")
class EncryptedProducts(StepMessage):
    """C masked products Enc(Xᵀv + r) under the receiver's key."""

    products: Blobs


@message_kind(8, stage="round", carries="masked", shows="gradients")
class DecryptedProducts(StepMessage):
    """The masked products in clear, shape (P, C), modulo 2^64; only their receiver knows r."""

    values: RingArray


class OwnKey:
    """A party's own key: it encrypts, peers multiply and mask, it decrypts.

    `leakage` counts what the decrypted products reveal.
    """

    def __init__(
        self,
        party: Party,
        owner: KeyOwner,
        columns: dict[str, int],
        product_format: ProductFormat,
        leakage: LeakageCount,
    ) -> None:
        self._party = party
        self.owner = owner
        self.columns = columns
        self.product_format = product_format
        self._leakage = leakage
        party.costs.idle_work.append(owner.make_blinder)

    async def send_encrypted(
        self, step: Step, values: FloatArray, receivers: Sequence[str], what: str
    ) -> None:
        """Encrypt values of shape (S, C) and send the same ciphertexts to every receiver."""
        vectors = await self.encrypted(values, what)
        await tell(self._party.channel, receivers, EncryptedValues(step.index, vectors))

    async def encrypted(self, values: FloatArray, what: str) -> tuple[bytes, ...]:
        """Every column of values, shape (S, C), encrypted; a RangeExceeded beyond the bound."""
        party, fmt = self._party, self.product_format
        async with party.costs.compute("encrypt"):
            encoded = encode(values, fmt.value_fraction_bits, fmt.value_bound, what)
        vectors = []
        for vector in np.ascontiguousarray(encoded.T):
            while self.owner.lacks_blinders():
                async with party.costs.compute("offline"):
                    self.owner.make_blinder()
            async with party.costs.compute("encrypt"):
                vectors.append(self.owner.encrypt(vector))
        party.costs.count("encryptions", values.size)
        return tuple(vectors)

    async def decrypt_products(
        self, step: Step, batch: Batch, receivers: Sequence[str], share: Share | None = None
    ) -> None:
        """Decrypt every receiver's masked products and return them, as they arrive.

        `share` gives this party's zero share for a receiver, which is added.
        """
        pending, channel = list(receivers), self._party.channel
        while pending:
            sender, message = await channel.receive(pending, EncryptedProducts, step.index)
            pending.remove(sender)
            values = await self.decrypted(sender, message.products, self.columns[sender])
            await self.return_products(step, batch, sender, values, share)

    async def decrypted(self, sender: str, products: Sequence[bytes], columns: int) -> RingArray:
        """A peer's products in clear, shape (columns, C)."""
        party = self._party
        expect_count(sender, products, self.product_format.vectors, "products")
        async with party.costs.compute("decrypt"):
            values = np.stack(
                [checked(sender, self.owner.decrypt, p, columns) for p in products], axis=1
            )
            party.costs.count("decryptions", values.size)
        return values

    async def return_products(
        self, step: Step, batch: Batch, receiver: str, values: RingArray, share: Share | None = None
    ) -> None:
        """Record a peer's masked products, count what they reveal and return them."""
        record(self._party.channel, Decrypted(receiver, step.index, values))
        self._leakage.add(receiver, batch.rows)
        if share is not None:
            values = values + share(receiver, values.shape)
        await self._party.channel.send(receiver, DecryptedProducts(step.index, values))


class PeerKey:
    """Another party's key: this party multiplies under it and removes its own masks."""

    def __init__(
        self, party: Party, owner_name: str, evaluator: Evaluator, product_format: ProductFormat
    ) -> None:
        self._party = party
        self.owner_name = owner_name
        self.evaluator = evaluator
        self.product_format = product_format
        self._prepared: dict[int, object] = {}
        self._vectors: tuple[bytes, ...] = ()
        party.costs.idle_work.append(evaluator.make_blinder)

    def within_bound(self, batch: Batch) -> tuple[Batch, IntArray]:
        """Scale each column of a Jacobian by the power of two 2^e that brings it to the bound.

        Returns the scaled batch, whose products are Jᵀv·2^e, and e, shape (p,). No other party
        learns e, as products leave under masks only.
        """
        scaled, exponents = within_bound(batch.tangent, self.product_format.matrix_bound)
        return replace(batch, jacobian=lambda: scaled), exponents

    async def multiply(
        self, step: Step, batch: Batch, outputs: int, *, again: bool = False
    ) -> RingArray:
        """Receive Enc(v) and send Enc(Xᵀv + r); returns r as `answer` does.

        `again` reuses the last Enc(v), with a fresh r.
        """
        # X is known before Enc(v) is here.
        async with self._party.costs.compute("evaluate"):
            prepared = self._prepared.get(batch.key)
            if prepared is None:
                prepared = self.prepared(batch.matrix)
                if batch.repeats:
                    self._prepared[batch.key] = prepared
        if not again:
            self._vectors = await self.take_encrypted(step, outputs)
        return await self.answer(step, self._vectors, [prepared] * outputs)

    async def answer(
        self, step: Step, vectors: Sequence[bytes], prepared: Sequence[object]
    ) -> RingArray:
        """Send Enc(Xᵀv + r) for each v and its X; returns r modulo 2^64, shape (P, C)."""
        products, masks = await self.products(vectors, prepared)
        await self._party.channel.send(self.owner_name, EncryptedProducts(step.index, products))
        return masks

    async def products(
        self, vectors: Sequence[bytes], prepared: Sequence[object]
    ) -> tuple[tuple[bytes, ...], RingArray]:
        """Enc(Xᵀv + r) for each v and its X, and r modulo 2^64, shape (P, C)."""
        pairs = zip(vectors, prepared, strict=True)
        replies = [await self._product(vector, each) for vector, each in pairs]
        masks = np.stack([reply.mask for reply in replies], axis=1)
        return tuple(reply.ciphertext for reply in replies), masks

    async def take_encrypted(self, step: Step, outputs: int) -> tuple[bytes, ...]:
        """Receive Enc(v), one per output."""
        channel = self._party.channel
        _, message = await channel.receive([self.owner_name], EncryptedValues, step.index)
        expect_count(self.owner_name, message.vectors, outputs, "vectors")
        return message.vectors

    async def _product(self, vector: bytes, prepared: object) -> MaskedReply:
        """One product, after making blinders that are not in stock."""
        costs = self._party.costs
        while self.evaluator.lacks_blinders(prepared):
            async with costs.compute("offline"):
                self.evaluator.make_blinder()
        async with costs.compute("evaluate"):
            reply = checked(self.owner_name, self.evaluator.masked_product, vector, prepared)
        costs.count("products", reply.mask.size)
        return reply

    async def take_decrypted(self, step: Step, shape: tuple[int, ...]) -> RingArray:
        """Receive the masked products in clear."""
        channel, owner = self._party.channel, self.owner_name
        return await receive_values(channel, owner, DecryptedProducts, step.index, shape)

    def unmasked(self, masked: RingArray, mask: RingArray) -> FloatArray:
        """Xᵀv from Xᵀv + r and r."""
        product = unmask(masked, mask, self.evaluator.modulus_bits)
        return decode(product, self.product_format.product_fraction_bits)

    def prepared(self, matrix: Matrix) -> object:
        """X, shape (S, P), in the scheme's form; a RangeExceeded beyond the bound."""
        fmt = self.product_format
        if isinstance(matrix, BlockedRows) and (found := self.evaluator.prepare_table(matrix)):
            return found
        encoded: IntArray = np.empty(matrix.shape, np.int64)

        def fill(rows: slice) -> None:
            some = dense(matrix[rows])
            encoded[rows] = encode(some, fmt.matrix_fraction_bits, fmt.matrix_bound, "features")

        by_block(fill, len(encoded), block_rows(encoded.shape[1]))
        return self.evaluator.prepare(encoded)


def within_bound(matrix: FloatArray, bound: float) -> tuple[FloatArray, IntArray]:
    """Each column times the power of two that brings it to a bound, and the exponents, (P,)."""
    largest = np.max(np.abs(matrix), axis=0)
    fractions, above = np.frexp(largest / bound)
    # 0.5·2^e is the bound itself where e is 1 more than needed; zero columns stay.
    exponents = np.where(largest > 0, (fractions == 0.5) - above, 0)  # noqa: PLR2004
    return np.ldexp(matrix, exponents), exponents


def expect_count(sender: str, found: Sequence[bytes], due: int, what: str) -> None:
    """Check how many ciphertexts a peer sent."""
    if len(found) != due:
        raise UnexpectedMessage(f"{sender} sent {len(found)} {what} where {due} are expected")


def checked(peer: str, work: Callable[P, T], *arguments: P.args, **others: P.kwargs) -> T:
    """Apply a scheme to a peer's bytes; a MalformedMessage if it rejects them."""
    try:
        return work(*arguments, **others)
    except CryptoError as error:
        raise MalformedMessage(f"from {peer}: {error}") from error
