"""What a client keeps after an upload that said something else than what it computed.

Compression rounds and clipping shortens. The server's κ is the mean of all κ_j, and FedDC's drift
that of all h_j, only while every client moves its own by what the server was told.
"""

from dataclasses import replace

import numpy as np

from securevfl.arrays import IntArray, RealArray
from securevfl.protocols.horizontal.local import ClientState, Upload


def changes_of(upload: Upload) -> RealArray:
    """The change of θ in all uploaded entries: the block's, then the shared."""
    return np.concatenate([upload.own, upload.shared])


def controls_of(upload: Upload) -> RealArray:
    """The change of κ_j in the same entries; empty without control variates."""
    return np.concatenate([upload.own_control, upload.shared_control])


def upload_of(client: int, block: int, own: int, changes: RealArray, controls: RealArray) -> Upload:
    """The inverse of both, with so many numbers in the block."""
    return Upload(client, block, *np.split(changes, [own]), *np.split(controls, [own]))


def after_telling(
    state: ClientState, entries: IntArray, upload: Upload, told: Upload
) -> ClientState:
    """κ_j and h_j moved by what was told in the uploaded entries, not by what was computed.

    Args:
        state: after local training.
        entries: that are uploaded, in the order of `changes_of`.
        upload: what was computed.
        told: what the server will read.
    """
    for name, off in [
        ("drift", changes_of(told) - changes_of(upload)),
        ("control", controls_of(told) - controls_of(upload)),
    ]:
        computed: RealArray | None = getattr(state, name)
        if computed is not None:
            moved = computed.copy()
            moved[entries] += off
            state = replace(state, **{name: moved})  # type: ignore[arg-type]  # of these two alone
    return state
