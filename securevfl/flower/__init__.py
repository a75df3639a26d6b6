"""FedBCGD, FedBCGD+ and what they are held against on Flower (extra `securevfl[flower]`).

`FederationStrategy` says who uploads which block and averages, `client_app` trains: both call the
functions of `protocols.horizontal`, as the project's own simulation does. `UploadsBlock` is a mod
for other people's clients, which train as ever and upload no more than their block.

Learns:
    SuperLink and ServerApp: what `Method.learns` says of a server: every upload singly. Masks are
        not on Flower; TLS between SuperLink and SuperNodes is Flower's own.
    clients: as `Method.learns` says.
"""

from securevfl.flower.client import UploadsBlock, client_app
from securevfl.flower.records import arrays_of, sizes_of, vector_of
from securevfl.flower.strategy import FederationStrategy

__all__ = [
    "FederationStrategy",
    "UploadsBlock",
    "arrays_of",
    "client_app",
    "sizes_of",
    "vector_of",
]
