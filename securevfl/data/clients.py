"""Rows over clients with different mixes of classes, as horizontal benchmarks have them."""

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray
from securevfl.errors import ConfigError


def dirichlet_split(
    labels: NDArray[np.int64], clients: int, concentration: float, generator: np.random.Generator
) -> list[IntArray]:
    """Every row at one client, as many at each; how often which class, by a Dirichlet draw.

    Every client draws a mix of classes from Dir(D, …, D); small D: few classes a client. Then all
    clients in turn, in an order drawn anew for each turn, take a row of a class drawn from their
    mix, until no rows are left; of classes that have run out nobody draws any more. That is the
    split of Hsu, Qi, Brown (arXiv:1909.06335), which FedDyn's and FedDC's code has too; sizes that
    differ between clients would be another kind of difference beside that of classes.

    Args:
        labels: shape (N,), classes.
        clients: M.
        concentration: D.
        generator: draws mixes, turns and rows.

    Returns:
        The rows of each client, ascending; numbers of rows differ by one at most.

    Raises:
        ConfigError: more clients than rows, none, or D that is not positive.
    """
    if not 1 <= clients <= len(labels):
        raise ConfigError(f"clients = {clients}: expected 1 to {len(labels)}, a row for each")
    if not concentration > 0:
        raise ConfigError(f"dirichlet = {concentration}: expected a positive number")
    classes, places = np.unique(labels, return_inverse=True)
    mixes = generator.dirichlet(np.full(len(classes), concentration), clients)
    left = [
        generator.permutation(np.flatnonzero(places == number)).tolist()
        for number in range(len(classes))
    ]
    taken: list[list[int]] = [[] for _ in range(clients)]
    while any(left):
        for client in generator.permutation(clients):
            there = np.array([len(rows) > 0 for rows in left])
            if not there.any():
                break
            mix = np.where(there, mixes[client], 0.0)
            # A mix of nothing but what has run out: whatever there is.
            mix = mix / mix.sum() if mix.sum() > 0 else there / there.sum()
            taken[client].append(left[generator.choice(len(classes), p=mix)].pop())
    return [np.array(sorted(rows), dtype=np.int64) for rows in taken]
