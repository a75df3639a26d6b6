"""The two ends of a homomorphic key: its owner, and a peer that computes under it.

Both modes of hiding are made of these four moves: send encrypted values, multiply, decrypt a
masked product, take the mask off. Every move is one timed section and counts its operations.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.fixed_point import decode, encode, unmask
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.errors import CryptoError, MalformedMessage, UnexpectedMessage
from securevfl.messages import DecryptedProducts, EncryptedProducts, EncryptedValues
from securevfl.protocols.exchange import Batch, Party, Step
from securevfl.protocols.label_guard import LeakageCount
from securevfl.runtime.channel import expect_shape

T = TypeVar("T")
FloatArray = NDArray[np.float64]
RingArray = NDArray[np.uint64]
Share = Callable[[str, tuple[int, ...]], RingArray]


class OwnKey:
    """A party's own key: it encrypts, its peers multiply, it decrypts what they masked.

    Args:
        party: who it is.
        owner: the key.
        columns: P of every peer.
        product_format: fixed point and bounds.
        leakage: counts what the decrypted products reveal.
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
        self._columns = columns
        self._format = product_format
        self._leakage = leakage

    async def send_encrypted(
        self, step: Step, values: FloatArray, receivers: Sequence[str], what: str
    ) -> None:
        """Encrypt values of shape (S, C) once and send the ciphertexts to every receiver.

        Raises:
            RangeExceeded: a value beyond the agreed bound.
        """
        party, fmt = self._party, self._format
        async with party.costs.compute("encrypt"):
            encoded = encode(values, fmt.value_fraction_bits, fmt.value_bound, what)
            vectors = tuple(self.owner.encrypt(np.ascontiguousarray(v)) for v in encoded.T)
            party.costs.count("encryptions", values.size)
        for name in receivers:
            await party.channel.send(name, EncryptedValues(step.index, vectors))

    async def decrypt_products(
        self, step: Step, batch: Batch, receivers: Sequence[str], share: Share | None = None
    ) -> None:
        """Decrypt every receiver's masked products and return them, as they arrive.

        Args:
            step: the exchange.
            batch: the rows, for the leakage count.
            receivers: who multiplies.
            share: adds this party's zero share for a receiver before it leaves.

        Raises:
            MalformedMessage: a reply that is no ciphertext of this key.
        """
        party = self._party
        pending = list(receivers)
        while pending:
            sender, message = await party.channel.receive(pending, EncryptedProducts, step.index)
            pending.remove(sender)
            if len(message.products) != party.loss.outputs:
                raise UnexpectedMessage(
                    f"{sender} sent {len(message.products)} products, {party.loss.outputs} due"
                )
            columns = self._columns[sender]
            async with party.costs.compute("decrypt"):
                values = np.stack(
                    [_checked(sender, self.owner.decrypt, p, columns) for p in message.products],
                    axis=1,
                )
                party.costs.count("decryptions", values.size)
            party.channel.record_decrypted(sender, step.index, values)
            self._leakage.add(sender, batch)
            if share is not None:
                values = values + share(sender, values.shape)
            await party.channel.send(sender, DecryptedProducts(step.index, values))


class PeerKey:
    """Another party's key: this party multiplies under it and takes its own masks off."""

    def __init__(
        self, party: Party, owner_name: str, evaluator: Evaluator, product_format: ProductFormat
    ) -> None:
        self._party = party
        self._owner = owner_name
        self._evaluator = evaluator
        self._format = product_format
        self._prepared: dict[int, object] = {}
        party.costs.ahead.append(evaluator.make_blinder)

    async def multiply(self, step: Step, batch: Batch, outputs: int) -> RingArray:
        """Receive Enc(v), send Enc(Xᵀv + r), keep r.

        Returns:
            r modulo 2^64, shape (P, C).

        Raises:
            MalformedMessage: bytes that are no encryption of S values.
        """
        party = self._party
        # X is known before Enc(v) is here.
        async with party.costs.compute("evaluate"):
            prepared = self._prepare(batch)
        _, message = await party.channel.receive([self._owner], EncryptedValues, step.index)
        if len(message.vectors) != outputs:
            raise UnexpectedMessage(
                f"{self._owner} sent {len(message.vectors)} vectors where {outputs} are due"
            )
        replies = []
        for vector in message.vectors:
            while self._evaluator.lacks_blinders(prepared):
                async with party.costs.compute("offline"):
                    self._evaluator.make_blinder()
            async with party.costs.compute("evaluate"):
                product = self._evaluator.masked_product
                replies.append(_checked(self._owner, product, vector, prepared))
        mask = np.stack([reply.mask for reply in replies], axis=1)
        party.costs.count("products", mask.size)
        products = tuple(reply.ciphertext for reply in replies)
        await party.channel.send(self._owner, EncryptedProducts(step.index, products))
        return mask

    async def take_decrypted(self, step: Step, shape: tuple[int, ...]) -> RingArray:
        """Receive the masked products in clear."""
        sender, message = await self._party.channel.receive(
            [self._owner], DecryptedProducts, step.index
        )
        expect_shape(sender, message.values, shape)
        return message.values

    def unmasked(self, masked: RingArray, mask: RingArray) -> FloatArray:
        """Xᵀv from Xᵀv + r and r."""
        product = unmask(masked, mask, self._evaluator.modulus_bits)
        return decode(product, self._format.product_fraction_bits)

    def _prepare(self, batch: Batch) -> object:
        if batch.key in self._prepared:
            return self._prepared[batch.key]
        fmt = self._format
        encoded = encode(batch.inputs, fmt.matrix_fraction_bits, fmt.matrix_bound, "features")
        prepared = self._evaluator.prepare(encoded)
        if batch.repeats:
            self._prepared[batch.key] = prepared
        return prepared


def _checked(peer: str, work: Callable[..., T], data: bytes, argument: object) -> T:
    try:
        return work(data, argument)
    except CryptoError as error:
        raise MalformedMessage(f"from {peer}: {error}") from error
