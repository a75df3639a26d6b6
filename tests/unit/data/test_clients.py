import numpy as np
import pytest

from securevfl.data.clients import dirichlet_split
from securevfl.errors import ConfigError

LABELS = np.repeat(np.arange(10), 63)


def split(concentration: float, seed: int = 0, clients: int = 20) -> list[np.ndarray]:
    return dirichlet_split(LABELS, clients, concentration, np.random.default_rng(seed))


@pytest.mark.parametrize("concentration", [1e-3, 0.1, 0.6, 1e4])
def test_every_row_is_at_one_client_and_clients_hold_as_many(concentration: float) -> None:
    held = split(concentration)
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(len(LABELS)))
    assert {len(rows) for rows in held} == {31, 32}
    assert all(np.all(np.diff(rows) > 0) for rows in held)


def test_the_smaller_the_concentration_the_fewer_classes_a_client() -> None:
    def largest_share(concentration: float) -> float:
        counts = [np.bincount(LABELS[rows], minlength=10) for rows in split(concentration)]
        return float(np.mean([each.max() / each.sum() for each in counts]))

    shares = [largest_share(each) for each in (0.01, 0.3, 1e4)]
    assert shares[0] > shares[1] + 0.1 > shares[2] + 0.2
    assert shares[2] < 0.3


def test_a_seed_decides_the_split() -> None:
    one, again, other = split(0.6), split(0.6), split(0.6, seed=1)
    assert all(np.array_equal(*pair) for pair in zip(one, again, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients = 0: expected 1 to 630"):
        split(0.6, clients=0)
    with pytest.raises(ConfigError, match="clients = 631"):
        split(0.6, clients=631)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="dirichlet"):
            split(wrong)
