"""The commands as a person runs them: what they print, write and refuse."""

from pathlib import Path

import numpy as np
import pytest

from securevfl.models.storage import load_model
from tests.end_to_end.commands import example, refused, rows_of, run, two_organizations

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

TRADEOFF_KEYS = {
    "dataset", "exchange", "hide", "algorithm", "local_steps", "parties", "batch_size", "rounds",
    "reached_target", "auc", "compute_s", "communication_s", "total_s", "compute_by_phase_s",
    "round_trips", "bytes_sent", "messages", "label_guard_ratio", "wall_s", "learning_rate",
    "learning_rate_chosen", "key_fingerprints", "ciphertext_bytes",
}  # fmt: skip
CRYPTO_KEYS = {
    "operation", "scheme", "engine", "key_bits", "samples", "features", "seconds_median",
    "seconds_min", "ratio_to_phe_2048", "ratio_to_phe_3072", "extrapolated", "bytes_up",
    "bytes_down", "exact",
}  # fmt: skip


def test_tradeoff_prints_a_table_of_80_columns_and_writes_its_rows(capsys: Capture) -> None:
    arguments = ["--exchange", "plain,ckks", "--local-steps", "1,5", "--json", "out.json"]
    assert run("bench", "tradeoff", *arguments) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "ckks" in printed
    assert "learning rate" in printed
    rows = rows_of("out.json", "bench tradeoff")
    assert [(row["exchange"], row["local_steps"]) for row in rows] == [
        ("plain", 1),
        ("plain", 5),
        ("ckks", 1),
        ("ckks", 5),
    ]
    for row in rows:
        assert set(row) >= TRADEOFF_KEYS
        assert row["compute_s"] + row["communication_s"] == pytest.approx(row["total_s"])
        assert set(row["compute_by_phase_s"]) == {
            "local", "encrypt", "evaluate", "decrypt", "offline",
        }  # fmt: skip
    assert rows[0]["ciphertext_bytes"] == 0 < rows[2]["ciphertext_bytes"]


def test_a_target_that_is_not_reached_is_a_row_and_no_error(capsys: Capture) -> None:
    arguments = ["--exchange", "plain", "--target-auc", "0.9999", "--max-rounds", "3"]
    assert run("bench", "tradeoff", *arguments, "--json", "out.json") == 0
    assert all(not row["reached_target"] for row in rows_of("out.json", "bench tradeoff"))
    assert "* target not reached" in capsys.readouterr().out


def test_repeats_have_seeds_of_their_own_and_rows_hold_medians() -> None:
    arguments = ["--exchange", "plain", "--repeats", "3", "--local-steps", "5", "--seed", "7"]
    assert run("bench", "tradeoff", *arguments, "--json", "out.json", "--quiet") == 0
    (row,) = rows_of("out.json", "bench tradeoff")
    assert [each["seed"] for each in row["runs"]] == [7, 8, 9]
    assert row["rounds"] == np.median([each["rounds"] for each in row["runs"]])


def test_phe_rounds_limit_phe_only() -> None:
    arguments = ["--exchange", "plain,paillier", "--local-steps", "1", "--key-bits", "2048"]
    limits = ["--phe-rounds", "1", "--target-auc", "0.999", "--max-rounds", "4"]
    limits += ["--engine", "phe"]
    assert run("bench", "tradeoff", *arguments, *limits, "--json", "out.json", "--quiet") == 0
    plain, phe = rows_of("out.json", "bench tradeoff")
    assert (plain["rounds"], phe["rounds"]) == (4, 1)
    assert (plain["key_bits"], phe["key_bits"]) == (None, 2048)


def test_rounds_compares_algorithms(capsys: Capture) -> None:
    arguments = ["--local-steps", "5", "--learning-rate", "0.1", "--proximal", "0,0.1"]
    assert run("bench", "rounds", *arguments, "--repeats", "1", "--json", "out.json") == 0
    rows = rows_of("out.json", "bench rounds")
    assert len(rows) == 6
    assert {row["algorithm"] for row in rows} == {"fedsgd", "fedbcd-p", "fedbcd-s"}
    assert "fedbcd-s" in capsys.readouterr().out


def test_crypto_measures_every_engine_in_one_process(capsys: Capture) -> None:
    arguments = ["--samples", "8", "--features", "2", "--repeats", "1", "--json", "out.json"]
    assert run("bench", "crypto", *arguments) == 0
    rows = rows_of("out.json", "bench crypto")
    engines = [(row["scheme"], row["engine"], row["key_bits"]) for row in rows]
    assert engines == [
        *(("paillier", engine, bits) for engine in ("fast", "phe") for bits in (2048, 3072)),
        ("ckks", "tenseal", None),
        ("bfv", "tenseal", None),
        ("none", "numpy", None),
    ]
    assert all(set(row) >= CRYPTO_KEYS for row in rows)
    assert [row["exact"] for row in rows] == [row["scheme"] != "ckks" for row in rows]
    assert rows[2]["ratio_to_phe_2048"] == 1
    assert "phe" in capsys.readouterr().out


def test_crypto_measures_one_scheme_on_columns_of_zeros_and_ones() -> None:
    shape = ["--samples", "9000", "--features", "2", "--scheme", "bfv", "--zero-one"]
    assert run("bench", "crypto", *shape, "--repeats", "1", "--json", "out.json") == 0
    bfv, clear = rows_of("out.json", "bench crypto")
    assert (bfv["exact"], bfv["matrix_fraction_bits"]) == (True, 0)
    assert (clear["scheme"], bfv["ratio_to_phe_3072"]) == ("none", None)
    assert bfv["bytes_key"] > 100_000


def test_the_example_job_runs_as_it_is_and_its_models_load_again(capsys: Capture) -> None:
    assert run("train", example(), "--json", "out.json") == 0
    (row,) = rows_of("out.json", "train")
    assert row["reached_target"]
    assert row["key_fingerprints"].keys() == {"party1"}
    assert "models/party2.safetensors" in capsys.readouterr().out
    model = load_model(Path("models/party2.safetensors"))
    assert model.header.job_hash == row["job_hash"]
    assert len(model.header.columns) == len(model.mean) == 15


def test_a_seed_on_the_command_line_replaces_the_jobs() -> None:
    # A scoring of each would be one more than the held-out guard allows.
    job = example(("rounds = 100", 'rounds = 2\neval_every = "never"'))
    for seed in ("1", "2"):
        arguments = ["--seed", seed, "--force", "--quiet", "--json", f"{seed}.json"]
        assert run("train", job, *arguments) == 0
    first, second = (rows_of(f"{seed}.json", "train")[0] for seed in ("1", "2"))
    assert first["job_hash"] != second["job_hash"]


def test_files_of_two_organizations_train_one_model(capsys: Capture) -> None:
    assert run("train", two_organizations(), "--json", "out.json") == 0
    (row,) = rows_of("out.json", "train")
    assert row["auc"] > 0.97
    assert row["dropped_rows"] == {"bank": 20, "shop": 0}
    assert "not every party has them: bank 20 of 400\n" in capsys.readouterr().out


def test_labels_that_follow_from_nothing_end_with_a_status_of_their_own(capsys: Capture) -> None:
    job = two_organizations()
    lines = Path("bank.csv").read_text(encoding="utf-8").splitlines()
    labels = np.random.default_rng(2).permutation([line[-1] for line in lines[1:]])
    mixed = [line[:-1] + label for line, label in zip(lines[1:], labels, strict=True)]
    Path("bank.csv").write_text("\n".join([lines[0], *mixed]), encoding="utf-8")
    # It fits its own rows better than a constant does, and has a held-out AUC of 0.56.
    assert run("train", job, "--quiet", "--json", "out.json") == 3
    assert "warning: the model has learned nothing" in capsys.readouterr().err
    (row,) = rows_of("out.json", "train")
    assert not row["learned"]
    assert row["auc"] > 0.52
    assert {path.stem for path in Path("models").iterdir()} == {"bank", "shop"}


def test_a_step_size_that_is_far_too_large_ends_with_it_too(capsys: Capture) -> None:
    job = example(
        ("seed = 0", "seed = 0\nlearning_rate = 1000\nrounds = 7"), ("rounds = 100 ", "#")
    )
    assert run("train", job, "--quiet") == 3
    assert "warning" in capsys.readouterr().err


def test_data_list_and_where_say_what_is_here(capsys: Capture) -> None:
    assert run("data", "list") == 0
    assert "breast_cancer" in capsys.readouterr().out
    assert run("data", "where", "a9a", "--json", "out.json") == 0
    assert "securevfl data get a9a" in capsys.readouterr().out
    (row,) = rows_of("out.json", "data where")
    assert row["present"] is False


# With a rate of its own: none is chosen, by training, before the mistake is seen.
TRADEOFF = ("bench", "tradeoff", "--learning-rate", "0.3")
MISTAKES = [
    (["bench", "tradeof"], "tradeoff"),
    (["bench", "tradeoff", "--exchang", "plain"], "--exchange"),
    (["bench", "tradeoff", "--dataset", "breast_cancr"], "breast_cancer"),
    (["bench", "tradeoff", "--exchange", "plian"], "nearest is 'plain'"),
    (["bench", "tradeoff", "--exchange", "masked"], "at least 3 parties"),
    (["bench", "tradeoff", "--local-steps", "0"], "local_steps = 0"),
    (["bench", "tradeoff", "--local-steps", "1,two"], "--local-steps"),
    (["bench", "tradeoff", "--batch-size", "-5"], "--batch-size"),
    (["bench", "tradeoff", "--batch-size", "100000"], "456"),
    (["bench", "tradeoff", "--target-auc", "1.5"], "target_auc"),
    (["bench", "tradeoff", "--learning-rate", "nan"], "learning_rate"),
    (["bench", "tradeoff", "--parties", "1"], "parties"),
    (["bench", "tradeoff", "--network", "mars"], "lan"),
    ([*TRADEOFF, "--exchange", "paillier", "--key-bits", "1024"], "3072"),
    (["bench", "tradeoff", "--exchange", "ckks", "--hide", "both"], "taylor-logistic"),
    ([*TRADEOFF, "--exchange", "ckks", "--engine", "gpu"], "gpu"),
    ([*TRADEOFF, "--exchange", "ckks,bfv", "--engine", "phe"], "'phe', one of"),
    (["bench", "tradeoff", "--exchange", "paillier", "--round-trips", "1"], "needs scheme bfv"),
    (["bench", "tradeoff", "--dataset", "a9a"], "securevfl data get a9a"),
    (["bench", "rounds", "--algorithm", "fedavg"], "fedavg"),
    (["bench", "rounds", "--learning-rate", "0"], "learning_rate"),
    (["bench", "crypto", "--scheme", "bvf"], "bfv, paillier, ckks"),
    (["bench", "crypto", "--samples", "8"], "--features"),
    (["bench", "crypto", "--samples", "0", "--features", "1"], "from 1 on"),
    (["data", "where", "a9b"], "a9a"),
    (["train"], "--example"),
    (["train", "nowhere.toml"], "nowhere.toml"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_a_mistake_gets_one_line_and_exit_status_2(
    capsys: Capture, arguments: list[str], told: str
) -> None:
    error = refused(capsys, *arguments)
    assert error.startswith("securevfl: error: ")
    assert error.count("\n") == 1
    assert told in error


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("# local_steps", "local_step"), "nearest known key is 'local_steps'"),
        (("rounds = 100", "rounds = 0"), "job.rounds = 0"),
        (('"bfv"', '"bvf"'), "nearest is 'bfv'"),
        (("# batch_size = 128", "batch_size = 32"), "label guard"),
        (('preset = "wan"', "latency_ms = 5"), "both latency_ms and bandwidth_mbit"),
        (("[exchange]", "[exchange"), "not TOML"),
        (("seed = 0", "learning_rate = 1e200\nloss = 'squared'"), "diverged"),
    ],
)
def test_a_mistake_in_a_job_file_names_the_key(
    capsys: Capture, change: tuple[str, str], told: str
) -> None:
    error = refused(capsys, "train", example(change), "--quiet")
    assert error.count("\n") == 1
    assert told in error


def test_a_full_disk_or_forbidden_place_is_told(capsys: Capture) -> None:
    job = example(('directory = "models"', 'directory = "/proc/nowhere"'))
    assert "/proc/nowhere" in refused(capsys, "train", job, "--quiet")


def test_engine_and_round_trips_go_to_the_schemes_that_have_them() -> None:
    arguments = ["--exchange", "paillier,bfv", "--engine", "fast", "--round-trips", "2"]
    limits = ["--local-steps", "5", "--max-rounds", "1", "--learning-rate", "0.3"]
    keys = ["--key-bits", "2048", "--batch-size", "57", "--quiet", "--json", "out.json"]
    assert run("bench", "tradeoff", *arguments, *limits, *keys) == 0
    rows = rows_of("out.json", "bench tradeoff")
    assert [(row["engine"], row["round_trips"]) for row in rows] == [("fast", 2), ("tenseal", 2)]
