import pytest

from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.job.keys import full_key, is_key, job_keys, values_of, with_keys


@pytest.mark.parametrize(
    ("key", "full"),
    [
        ("local_steps", "job.local_steps"),
        ("exchange", "exchange.scheme"),
        ("clip", "privacy.clip"),
        ("gradient_noise", "privacy.gradient_noise_multiplier"),
        ("staleness", "fdml.staleness"),
        ("fdml.precision", "fdml.precision"),
        ("precision", "job.precision"),
        ("network", "network"),
        ("network.latency_ms", "network.latency_ms"),
        ("preprocess.rare_count", "preprocess.rare_count"),
    ],
)
def test_a_key_stands_in_its_section(key: str, full: str) -> None:
    assert full_key(key) == full


@pytest.mark.parametrize("key", ["clipp", "job.clip", "party.name", "output.directory", "own.fdml"])
def test_what_no_training_takes_is_no_key(key: str) -> None:
    assert not is_key(key)


def test_keys_that_need_no_section_are_keys() -> None:
    assert all(map(is_key, job_keys()))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,5,exact", (1, 5, "exact")),
        ("false,true", (False, True)),
        ("[64,32],[8]", ([64, 32], [8])),
        ("0.25", (0.25,)),
    ],
)
def test_values_are_numbers_truths_lists_or_words(text: str, values: tuple[object, ...]) -> None:
    assert values_of(text) == values


@pytest.mark.parametrize("text", ["", " ", "1,,5", "a,", "1,"])
def test_an_empty_value_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="separated by commas"):
        values_of(text)


def test_keys_replace_those_of_a_job_and_leave_the_others() -> None:
    job = Job.of(
        job={"algorithm": "fdml", "rounds": 3},
        privacy={"clip": 3.0, "delta": 0.1},
        fdml={"staleness": 2},
    )
    changed = with_keys(
        job, {"privacy.clip": 1.0, "fdml.own_prediction": "noisy", "network": "20:100"}
    )
    assert (changed.job, changed.privacy.delta, changed.privacy.clip) == (job.job, 0.1, 1.0)
    assert changed.own["fdml"].model_dump(exclude_unset=True) == {
        "staleness": 2, "own_prediction": "noisy",
    }  # fmt: skip
    assert str(changed.network) == "20:100"
    assert with_keys(job, {}) == job
    line = {"network.latency_ms": 20, "network.bandwidth_mbit": 100}
    assert with_keys(job, line).network == changed.network


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("fdml.staleness", "many", "fdml.staleness = 'many'"),
        ("network", "mars", "lan"),
        ("network", "20:fast", "20:100"),
        ("network", "-1:5", "20:100"),
        ("network.latency_ms", 5, "both latency_ms and bandwidth_mbit"),
    ],
)
def test_a_value_that_cannot_be_is_named(key: str, value: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_keys(Job(), {key: value})
