"""Pads of coming rounds, made while a party waits in earlier ones, a block at a time."""

from collections.abc import AsyncIterator, Sequence

from securevfl.protocols.blind.ahead import Links, Pads
from securevfl.protocols.blind.pads import OwnerPads
from securevfl.protocols.blind.residuals import ResidualShares
from securevfl.protocols.blind.schedule import Round


class Coming:
    """What a party has still to make.

    All parties do as many pieces of it in a round, so that nobody waits for what another would
    make in a later one.

    Args:
        links: its own.
        residuals: its side of residuals, where it is one of the two that compute them.
        blocks: all rounds that are to come, by what is made together.
    """

    def __init__(
        self,
        links: Links,
        residuals: ResidualShares | None,
        blocks: Sequence[Sequence[Round]],
    ) -> None:
        self._links, self._residuals, self._blocks = links, residuals, list(blocks)
        self._making: AsyncIterator[None] | None = None
        self._own = OwnerPads()
        self._pieces = 0

    async def first(self) -> Pads:
        """Make all of the first block, and begin with the next.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """
        return await self._end(self._blocks[0])

    async def meanwhile(self) -> None:
        """Do a round's part of the next block.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """
        if self._making is not None:
            for _ in range(self._pieces):
                await anext(self._making, None)

    async def after(self, each: Round, pads: Pads) -> None:
        """Once a block is used up, finish the next and add it.

        Args:
            each: the round that is over.
            pads: of this party.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """
        if len(self._blocks) > 1 and each.index == self._blocks[0][-1].index:
            del self._blocks[0]
            pads.add(await self._end(self._blocks[0]))

    async def _end(self, block: Sequence[Round]) -> Pads:
        making = self._making or self._links.making(block, self._own)
        async for _ in making:
            pass
        made = await self._links.end(self._own, block)
        if self._residuals is not None:
            await self._residuals.make_ahead(sum(each.rows for each in block))
        self._making = None
        if len(self._blocks) > 1:
            coming = self._blocks[1]
            self._own = OwnerPads()
            self._making = self._links.making(coming, self._own)
            self._pieces = -(-self._links.pieces(coming) // len(block))
        return made
