from pathlib import Path

import pytest

from securevfl.cli.train import EXAMPLE
from securevfl.errors import ConfigError, DataError
from securevfl.job import (
    ExchangeSettings,
    Job,
    JobSettings,
    LocalModelSettings,
    PrivacySettings,
    parse_job,
    read_job,
)

TWO_PARTIES = """
[[party]]
name = "bank"
role = "label"
data = "bank.csv"
label_column = "default"
[[party]]
name = "shop"
role = "feature"
data = "shop.csv"
"""


def test_the_example_is_a_job() -> None:
    job = parse_job(EXAMPLE)
    assert job.job.dataset == "breast_cancer"
    assert job.exchange.scheme == "bfv"


def test_a_job_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TWO_PARTIES, encoding="utf-8")
    assert [party.name for party in read_job(path).party] == ["bank", "shop"]


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml"):
        read_job(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary\.toml"):
        read_job(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[job]\nlocal_step = 3", "unknown key 'job.local_step': nearest known key is 'local_st"),
        ("[exchange]\nahead_rounds = 3", "'exchange.ahead_rounds': renamed to 'offline_rounds'"),
        ('[exchange]\nscheme="bfv"\n[own.exchange]\nscheme="plain"', "unknown key 'own'"),
        ("cls = 1", "unknown key 'cls'"),
        ("[job]\nrounds = 0x" + "f" * 4000, "number out of range"),
        ("[[party]]\nname='a'\nrole='label'\naddress='a:1'", "expected ws://HOST:PORT"),
        ("[links]\nrely='x'", "nearest known key is 'relay'"),
        ("[jobs]", "unknown key 'jobs': nearest known key is 'job'"),
        ("rounds = 3", r"unknown key 'rounds': rounds belongs in \[job\]"),
        ("[[parties]]\nname = 'a'", r"'parties': start each party's section with \[\[party\]\]"),
        ("[job]\nstaleness = 2", r"unknown key 'job.staleness': staleness belongs in \[fdml\]"),
        ("[job]\nexchange = 'bfv'", r"'job.exchange': \[exchange\] is a separate section"),
        ("[job]\nlabel_column = 'y'", r"label_column belongs in \[\[party\]\]"),
        ("[party]\nname='a'", r"party = a table: start each party's section with \[\[party\]\]"),
        ("[job]\nbounds = 3", "job.bounds = 3: Input should be a table"),
        ("[job]\nparty = []", r"'job.party': \[\[party\]\] is a separate section"),
        ("[[party]]\nname='a'\nrole='label'\ndat='x'", "nearest known key is 'data'"),
        ("[exchange]\nshceme='x'", "nearest known key is 'scheme'"),
        ("[network]\nlatency=3", "nearest known key is 'latency_ms'"),
        ("[output]\ndir='x'", "nearest known key is 'directory'"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_job(text)


@pytest.mark.parametrize(
    "line",
    [
        "local_steps = 0",
        "rounds = 0",
        "batch_size = 0",
        'batch_size = "half"',
        "parties = 1",
        "learning_rate = 0",
        "learning_rate = nan",
        "learning_rate = inf",
        "l2 = -1",
        "proximal = -0.1",
        "seed = -1",
        "target_auc = 1.01",
        "eval_every = -1",
        'loss = "huber"',
        'sampling = "bootstrap"',
        # Of another type.
        *("rounds = true", 'rounds = "5"', "learning_rate = true", "seed = false"),
        'intercept = "no"',
    ],
)
def test_a_value_out_of_range_names_its_key(line: str) -> None:
    with pytest.raises(ConfigError, match=r"job\." + line.split(" ", maxsplit=1)[0]):
        parse_job(f'[job]\ndataset = "digits"\n{line}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no data"),
        ('[job]\ndataset = "digits"\n' + TWO_PARTIES, "not both"),
        (TWO_PARTIES.replace('"feature"', '"label"'), "2 parties with role = 'label', expected 1"),
        (TWO_PARTIES.replace('"label"\n', '"feature"\n'), "0 parties with role"),
        (TWO_PARTIES.replace('"shop"', '"bank"'), "not unique"),
        (TWO_PARTIES[: TWO_PARTIES.rindex("[[party]]")], "1 .* section: expected at least 2"),
        (TWO_PARTIES + "[network]\nlatency_ms = 3", "both latency_ms and bandwidth_mbit"),
        (TWO_PARTIES + "[network]", "both latency_ms and bandwidth_mbit"),
        (
            TWO_PARTIES + '[network]\npreset = "lan"\nlatency_ms = 3\nbandwidth_mbit = 3',
            "both latency_ms and bandwidth_mbit",
        ),
        ("[job", "not TOML"),
        ("x = " + "[" * 100_000, "not TOML: nested too deeply"),
        ('[job]\nname = "\\u001b[2J"', r"job\.name = '\\x1b\[2J': expected a name without control"),
        ("[job]\nrounds = 1000000000", r"job\.rounds = 1000000000: .* equal to 1000000"),
        ('[job]\nseed = "' + "x" * 10_000 + '"', r"job\.seed = 'x{99}…: "),
    ],
)
def test_sections_that_make_no_job_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: .*{message}"):
        parse_job(text, "here")


def test_a_network_of_ones_own_is_two_numbers() -> None:
    job = parse_job(TWO_PARTIES + "[network]\nlatency_ms = 3\nbandwidth_mbit = 7")
    assert (job.network.latency_ms, job.network.bandwidth_mbit) == (3, 7)


def test_the_hash_covers_the_parties_names() -> None:
    changed = TWO_PARTIES.replace('"shop"', '"store"')
    assert parse_job(changed).hash() != parse_job(TWO_PARTIES).hash()


OTHER_VALUES: dict[str, dict[str, object]] = {
    "job": {
        "name": "other",
        "dataset": "digits",
        "parties": 3,
        "algorithm": "fedbcd-s",
        "rounds": 7,
        "batch_size": "full",
        "local_steps": 7,
        "acceleration": "nesterov",
        "learning_rate": 0.7,
        "tolerance": 0.7,
        "schedule": "inverse-sqrt",
        "divide_by_sqrt_parties": True,
        "loss": "squared",
        "l1": 0.7,
        "l2": 0.7,
        "class_weight": "balanced",
        "proximal": 0.7,
        "local_rule": "frozen",
        "head": "logistic",
        "representation": 7,
        "model": "mlp",
        "hidden": [7],
        "activation": "tanh",
        "channels": [7],
        "image_width": 7,
        "precision": "single",
        "sampling": "shuffle",
        "start": "zero",
        "intercept": False,
        "standardize": False,
        "bounds": {"income": [0, 1e5]},
        "seed": 7,
        "target_auc": 0.7,
        "eval_every": 7,
        "label_guard": "visits",
        "allow_label_leak": True,
        "allow_feature_leak": True,
    },
    "exchange": {
        "scheme": "ckks",
        "hide": "both",
        "predictions": "masked",
        "key_bits": 2048,
        "engine": "phe",
        "value_fraction_bits": 20,
        "feature_fraction_bits": 12,
        "round_trips": 1,
        "he_per_step": True,
        "prediction_bound": 7.0,
        "offline_rounds": 3,
        "checks": 3,
        "period": 100,
        "scores": "rows",
    },
    "privacy": {
        "mechanism": "laplace",
        "noise_multiplier": 0.7,
        "clip": 0.7,
        "delta": 0.7,
        "gradient_clip": 0.7,
        "gradient_noise_multiplier": 0.7,
        "label_noise_multiplier": 0.7,
        "release_budget": 0.7,
        "budget": 0.7,
        "noise_seed": 7,
    },
}


def test_every_setting_that_all_parties_share_changes_the_hash() -> None:
    assert OTHER_VALUES["job"].keys() == JobSettings.model_fields.keys()
    assert OTHER_VALUES["privacy"].keys() == PrivacySettings.model_fields.keys()
    # How many processes a party uses is its own affair.
    assert OTHER_VALUES["exchange"].keys() == ExchangeSettings.model_fields.keys() - {"workers"}
    hashes = {
        Job.of(**{section: {key: value}}).hash()
        for section, keys in OTHER_VALUES.items()
        for key, value in keys.items()
    }
    assert len(hashes | {Job().hash()}) == 1 + sum(map(len, OTHER_VALUES.values()))


@pytest.mark.parametrize(
    "changed",
    [
        TWO_PARTIES.replace("shop.csv", "elsewhere/shop.parquet"),
        TWO_PARTIES + 'address = "ws://shop.example:5000"',
        TWO_PARTIES + 'separator = ";"\nid_format = "number"\npreprocess = {rare_count = 3}',
        TWO_PARTIES + "[preprocess]",
        TWO_PARTIES + '[output]\ndirectory = "elsewhere"',
        TWO_PARTIES + 'new_data = "new.csv"',
    ],
)
def test_the_hash_leaves_each_partys_own_affairs_alone(changed: str) -> None:
    assert parse_job(changed).hash() == parse_job(TWO_PARTIES).hash()


def test_changed_settings_are_validated() -> None:
    job = Job.of(job={"local_steps": 5})
    assert job.with_settings(seed=3).job.seed == 3
    with pytest.raises(ConfigError, match=r"job\.local_steps = 0"):
        job.with_settings(local_steps=0)


def test_what_a_job_leaves_open_stays_open_under_another_exchange() -> None:
    """Else `blind` would take the default rounds of other exchanges for given ones."""
    job = Job.of(job={"seed": 3})
    other = Job.of(**{**dict(job), "exchange": {"scheme": "blind"}})
    assert other.job.model_fields_set == job.with_settings(seed=4).job.model_fields_set == {"seed"}


def test_a_missing_key_is_named_shortly() -> None:
    with pytest.raises(ConfigError, match=r"^job: party\.1\.name is missing$"):
        parse_job(TWO_PARTIES.replace('name = "shop"\n', ""))


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a/b", "", "n" * 65])
def test_a_party_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"party\.1\.name"):
        parse_job(TWO_PARTIES.replace('"shop"', f'"{name}"'))


@pytest.mark.parametrize(
    ("line", "model"),
    [
        # One hidden layer of 64, or two convolutions of 64 and no dense layer, unless told.
        ('model = "mlp"', LocalModelSettings("mlp", (64,), "relu")),
        ('model = "cnn"\nimage_width = 28', LocalModelSettings("cnn", (), "relu", (64, 64), 28)),
        (
            'model = "cnn"\nhidden = [9]\nchannels = [8]\nimage_width = 4',
            LocalModelSettings("cnn", (9,), "relu", (8,), 4),
        ),
    ],
)
def test_a_party_trains_the_jobs_model_unless_it_names_its_own(
    line: str, model: LocalModelSettings
) -> None:
    job = parse_job(TWO_PARTIES + line)
    assert job.model_of("shop") == model
    assert job.model_of("bank").model == "linear"
    network = '[job]\nmodel = "mlp"\nhidden = [32, 8]\nactivation = "tanh"\n'
    job = parse_job(network + TWO_PARTIES + 'model = "linear"')
    assert job.model_of("bank") == LocalModelSettings("mlp", (32, 8), "tanh")
    assert job.model_of("shop").model == "linear"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('model = "mpl"', r"party\.1\.model = 'mpl'"),
        ('model = "mlp"\nhidden = []', r"party\.1\.hidden = \[\]"),
        ('model = "mlp"\nhidden = 64', r"party\.1\.hidden = 64"),
        ('model = "mlp"\nhidden = [0]', r"party\.1\.hidden = 0"),
        ('model = "mlp"\nactivation = "sine"', r"party\.1\.activation = 'sine'"),
        ("hiden = [64]", "nearest known key is 'hidden'"),
        ("hidden = [64]", r"party 'shop': hidden = \[64\] needs model = 'mlp'"),
        ('activation = "relu"', "party 'shop': activation = 'relu' needs model = 'mlp'"),
        ("channels = [8]", r"party 'shop': channels = \[8\] needs model = 'cnn'"),
        ("image_width = 7", "party 'shop': image_width = 7 needs model = 'cnn'"),
    ],
)
def test_a_model_that_cannot_be_is_reported(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_job(TWO_PARTIES + line)


def test_hidden_layers_of_a_job_without_an_mlp_are_reported() -> None:
    with pytest.raises(ConfigError, match=r"job\.hidden = \[64\] needs model = 'mlp'"):
        parse_job("[job]\nhidden = [64]\n" + TWO_PARTIES)
    parse_job("[job]\nhidden = [64]\n" + TWO_PARTIES + 'model = "mlp"')


def test_another_model_is_another_job() -> None:
    hashes = {
        parse_job(TWO_PARTIES + line).hash()
        for line in (
            *("", 'model = "mlp"', 'model = "mlp"\nhidden = [3]', 'model = "custom"'),
            *('model = "cnn"', 'model = "cnn"\nchannels = [3]', 'model = "cnn"\nimage_width = 4'),
        )
    }
    assert len(hashes) == 7
