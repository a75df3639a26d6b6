"""Whatever noise a job adds follows from keys of its parties' own, and from nothing else."""

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.job import Job
from securevfl.privacy.mechanisms import GradientNoise, Mechanism
from securevfl.privacy.streams import NoiseKey, NoiseStream
from securevfl.training import Environment, TrainingResult, train
from securevfl.wire.codec import encode
from tests.jobs import all_weights, breast_cancer

NOISY: dict[str, Any] = {
    "noise_multiplier": 1,
    "label_noise_multiplier": 1,
    "gradient_clip": 1,
    "gradient_noise_multiplier": 1,
}


def trained(privacy: dict[str, Any], algorithm: str = "fedbcd-p") -> TrainingResult:
    label = {"label_noise_multiplier": 0} if algorithm == "fdml" else {}
    job = Job.of(
        job={
            "algorithm": algorithm,
            "rounds": 3,
            "batch_size": "full",
            "learning_rate": 0.1,
            "local_steps": 1 if algorithm == "fdml" else 2,
        },
        exchange={"scheme": "dp"},
        privacy=privacy | label,
    )
    return train(job, breast_cancer(3), Environment(record_views=True))


def messages(result: TrainingResult) -> list[bytes]:
    """In an order of their own: when they come follows from the clock of this machine."""
    received = [entry.message for view in result.views.values() for entry in view.received()]
    return sorted(encode(message) for message in received if message.stage != "setup")


@pytest.fixture
def from_system(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the operating system give known bytes from here on."""

    def start(name: str) -> None:
        asked = iter(range(1000))

        def known(count: int) -> bytes:
            return hashlib.shake_256(f"{name} {next(asked)}".encode()).digest(count)

        # In this module alone: Hello's secrets come from the same function, in any order.
        system = SimpleNamespace(token_bytes=known)
        monkeypatch.setattr("securevfl.privacy.streams.secrets", system)

    return start


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fdml"])
def test_all_noise_follows_from_the_operating_system(
    algorithm: str, from_system: Callable[[str], None]
) -> None:
    results = []
    for name in ("one", "one", "other"):
        from_system(name)
        results.append(trained(NOISY, algorithm))
    one, same, other = results
    assert messages(one) == messages(same)
    np.testing.assert_array_equal(all_weights(one), all_weights(same))
    assert not np.any(all_weights(one) == all_weights(other))


def test_no_noise_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over purposes, parties, rounds and runs."""
    drawn: list[FloatArray] = []
    draw = NoiseStream.gaussian

    def kept(stream: NoiseStream, shape: tuple[int, ...]) -> FloatArray:
        drawn.append(draw(stream, shape))
        return drawn[-1]

    monkeypatch.setattr(NoiseStream, "gaussian", kept)
    # Row offsets are part of the start, which repeats with the seed of an experiment.
    offsets = type("OffsetStream", (NoiseStream,), {"gaussian": draw})
    monkeypatch.setattr("securevfl.protocols.vertical.local_part.NoiseStream", offsets)
    for _ in range(2):
        trained(NOISY)
    # 3 rounds: 2 parties' predictions of 114 rows, the label party's residuals, both held out.
    together = np.concatenate([each.ravel() for each in drawn])
    assert len(together) >= 2 * 3 * (3 * 114)
    assert len(np.unique(together)) == len(together)


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fdml"])
def test_each_purpose_draws_from_its_own_stream(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_stream: dict[int, set[str]] = {}
    names: dict[int, str] = {}
    kept: list[NoiseStream] = []
    stream_of = NoiseKey.stream

    def named(key: NoiseKey, purpose: Any) -> NoiseStream:  # noqa: ANN401
        found = stream_of(key, purpose)
        kept.append(found)
        names[id(found)] = purpose
        return found

    monkeypatch.setattr(NoiseKey, "stream", named)
    perturb, noise = Mechanism.perturb, GradientNoise.noise

    def on_values(mechanism: Mechanism, values: FloatArray, stream: NoiseStream) -> FloatArray:
        # Residuals have half of 1 for their clip, predictions the job's 2.
        what = "residuals" if mechanism.clip == 0.5 else f"predictions of {len(values)}"
        by_stream.setdefault(id(stream), set()).add(what)
        return perturb(mechanism, values, stream)

    def on_gradients(
        self: GradientNoise, shape: tuple[int, ...], stream: NoiseStream
    ) -> FloatArray:
        by_stream.setdefault(id(stream), set()).add("gradients")
        return noise(self, shape, stream)

    monkeypatch.setattr(Mechanism, "perturb", on_values)
    monkeypatch.setattr(GradientNoise, "noise", on_gradients)
    trained(NOISY, algorithm)
    served = {(names[each], *sorted(what)) for each, what in by_stream.items()}
    expected = {
        ("predictions", "predictions of 456"),
        ("held-out predictions", "predictions of 113"),
        ("gradients", "gradients"),
    }
    assert served == (expected | {("residuals", "residuals")} if algorithm != "fdml" else expected)
