import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy.stats import kstest

import securevfl
from securevfl.arrays import FloatArray
from securevfl.privacy.mechanisms import GRID, GradientNoise, Mechanism
from securevfl.privacy.streams import NoiseKey, NoiseStream, Purpose, signs_and_tails
from tests.unit.crypto.test_randomness import other_generators

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "noise.json").read_text("utf-8"))
KEY = bytes.fromhex(VECTORS["key"])
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
LAST_BITS = 2e-15
"""Of Φ⁻¹ and log, which are not the same on every machine."""

PACKAGE = Path(securevfl.__path__[0])
DRAWS_NOISE = [
    *sorted((PACKAGE / "privacy").glob("*.py")),
    PACKAGE / "protocols/session/privacy_account.py",
    PACKAGE / "protocols/exchanges/noisy.py",
    PACKAGE / "protocols/vertical/private_gradients.py",
    PACKAGE / "protocols/vertical/runner.py",
    PACKAGE / "protocols/vertical/fdml.py",
]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_streams_and_draws_are_those_of_the_vectors(purpose: Purpose) -> None:
    expected = VECTORS["purposes"][purpose]
    by_key = NoiseStream(bytes.fromhex(expected["key"])).words(8)
    assert by_key.astype("<u8").tobytes().hex() == expected["stream"]
    np.testing.assert_array_equal(NoiseKey(KEY).stream(purpose).words(8), by_key)
    signs, tails = signs_and_tails(by_key)
    np.testing.assert_array_equal(signs * tails, expected["uniforms"])
    gaussian = NoiseKey(KEY).stream(purpose).gaussian((4, 2))
    laplace = NoiseKey(KEY).stream(purpose).laplace((8,))
    np.testing.assert_allclose(gaussian.ravel(), expected["gaussian"], rtol=LAST_BITS)
    np.testing.assert_allclose(laplace, expected["laplace"], rtol=LAST_BITS)


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_releases_are_those_of_the_vectors_to_the_last_bit(name: str, purpose: Purpose) -> None:
    mechanism = Mechanism(name, 1.0, clip=1.0)  # type: ignore[arg-type]
    released = mechanism.release(np.zeros(8), NoiseKey(KEY).stream(purpose))
    expected = VECTORS["purposes"][purpose][f"{name}_grid"]
    np.testing.assert_array_equal(released * GRID, expected)


@pytest.mark.parametrize("vector", VECTORS["words"], ids=lambda vector: vector["word"])
def test_any_word_makes_a_finite_draw(
    vector: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    word = np.array([int(str(vector["word"]), 16)], np.uint64)
    monkeypatch.setattr(NoiseStream, "words", lambda _, count: np.repeat(word, count))
    stream = NoiseStream(KEY)
    for found, name in ((stream.gaussian((1,)), "gaussian"), (stream.laplace((1,)), "laplace")):
        # Near p = 1 both functions lose digits of what is next to nothing.
        np.testing.assert_allclose(found, [vector[name]], rtol=LAST_BITS, atol=1e-15)


@pytest.mark.parametrize(
    ("draw", "distribution"), [(NoiseStream.gaussian, "norm"), (NoiseStream.laplace, "laplace")]
)
def test_draws_have_the_distribution_they_are_named_for(
    draw: Callable[[NoiseStream, tuple[int, ...]], FloatArray], distribution: str
) -> None:
    draws = draw(NoiseKey(KEY).stream("gradients"), (100_000,))
    # The key is fixed: this is one outcome, which a wrong distribution would not pass.
    assert kstest(draws, distribution).pvalue > 0.01
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 4 / np.sqrt(len(draws))
    assert kstest(1.03 * draws, distribution).pvalue < 0.01


def test_a_stream_goes_on_where_it_stands() -> None:
    key = NoiseKey(KEY)
    drawn = [key.stream("residuals").words(3), key.stream("residuals").words(5)]
    np.testing.assert_array_equal(np.concatenate(drawn), NoiseKey(KEY).stream("residuals").words(8))


def test_every_purpose_has_a_stream_of_its_own() -> None:
    key = NoiseKey(KEY)
    words = np.concatenate([key.stream(purpose).words(1000) for purpose in PURPOSES])
    assert len(np.unique(words)) == 1000 * len(PURPOSES)


def test_keys_differ_by_run_party_and_seed() -> None:
    keys = [
        NoiseKey.generate(),
        NoiseKey.generate(),
        NoiseKey.of_experiment(0, 1),
        NoiseKey.of_experiment(1, 0),
        NoiseKey.of_experiment(0, 0),
    ]
    words = np.concatenate([key.stream("predictions").words(100) for key in keys])
    assert len(np.unique(words)) == 500
    again = NoiseKey.of_experiment(0, 0).stream("predictions").words(100)
    np.testing.assert_array_equal(again, words[400:])
    ours = VECTORS["experiment"]
    np.testing.assert_array_equal(
        NoiseKey.of_experiment(ours["seed"], ours["party"]).stream("gradients").words(9),
        NoiseKey(bytes.fromhex(ours["key"])).stream("gradients").words(9),
    )


def test_gradient_noise_is_of_the_stream() -> None:
    found = GradientNoise(3.0, 0.5).noise((4, 2), NoiseStream(KEY))
    np.testing.assert_array_equal(found, 3.0 * NoiseStream(KEY).gaussian((4, 2)))


@pytest.mark.parametrize("path", DRAWS_NOISE, ids=lambda path: path.name)
def test_no_other_generator_is_named_where_noise_is_drawn(path: Path) -> None:
    """NumPy's generators can be predicted from what they gave."""
    assert other_generators(path.read_text("utf-8")) == []
