"""What a policy refuses by default, and that changing the key that it names accepts it."""

import re
from pathlib import Path
from typing import Any, Literal

import pytest

from securevfl.errors import ConfigError, DataError
from securevfl.parties.identity import public_text
from securevfl.parties.own_file import Policy
from securevfl.parties.policy import count_alignment, refusals
from tests.unit.parties.agreements import RELAY, SHOP, TELCO, TEXT, changed, of, party

BANKS, SHOPS = public_text(of(TEXT).identities["bank"]), public_text(SHOP.public)
STRANGER = public_text(TELCO.public)


def job(settings: str = "", exchange: str = 'scheme = "bfv"', more: str = "") -> str:
    text = changed('scheme = "bfv"', exchange).replace("rounds = 20", f"rounds = 20\n{settings}")
    return text + more


def dp(privacy: str, exchange: str = 'scheme = "dp"') -> str:
    return job(exchange=exchange, more=f"[privacy]\n{privacy}")


@pytest.mark.parametrize("name", ["bank", "shop"])
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        job(exchange='scheme = "bfv"\nhide = "both"', settings='loss = "taylor-logistic"'),
        job(exchange='scheme = "blind"'),
        job(exchange='scheme = "paillier"'),
    ],
)
def test_what_hides_predictions_or_labels_is_accepted(text: str, name: str) -> None:
    assert refusals(Policy(), of(text), name) == []


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("shop", job(exchange='scheme = "plain"'), "exchange 'plain'", {"exchanges": ("plain",)}),
    ("bank", job(exchange='scheme = "masked"'), "which are clear", {"residuals": "clear"}),
    ("bank", dp("release_budget = 1.0"), "which are clear", {"residuals": "clear"}),
    (
        "bank",
        dp("release_budget = 1.0\nlabel_noise_multiplier = 2.0"),
        "which are noisy",
        {"residuals": "noisy"},
    ),
    (
        "bank",
        dp("release_budget = 1.0\nlabel_noise_multiplier = 0.01"),
        "label_noise_multiplier = 0.01",
        {"least_label_noise": 0.01, "residuals": "noisy"},
    ),
    ("shop", dp("noise_multiplier = 0.0"), "no release_budget or budget", {}),
    ("shop", dp("release_budget = 11.0"), "ε up to 11", {"most_epsilon": 11.0}),
    ("shop", dp("budget = 11.0"), "ε up to 11", {"most_epsilon": 11.0}),
    ("shop", dp("budget = 1.0\ndelta = 0.5"), "delta = 0.5", {"most_delta": 0.5}),
    (
        "shop",
        dp("budget = 1.0\nnoise_seed = 1"),
        "everybody can compute the noise",
        {"allow_noise_seed": True},
    ),
    (
        "shop",
        job(exchange='scheme = "blind"\nchecks = 7'),
        "checks = 7, fewer than 8",
        {"least_checks": 7},
    ),
    (
        "shop",
        job(exchange='scheme = "paillier"\nkey_bits = 2048'),
        "key_bits = 2048, fewer than 3072",
        {"least_key_bits": 2048},
    ),
    (
        "shop",
        job(exchange='scheme = "blind"\nscores = "rows"'),
        "scores = 'rows'",
        {"allow_scores_by_row": True},
    ),
    (
        "shop",
        job(exchange='scheme = "bfv"\nhe_per_step = true'),
        "he_per_step",
        {"allow_he_per_step": True},
    ),
    (
        "shop",
        job('head = "logistic"', 'scheme = "dp"', "[privacy]\nbudget = 1.0"),
        "head = 'logistic'",
        {"allow_head": True},
    ),
    ("bank", job("allow_label_leak = true"), "allow_label_leak", {"allow_label_leak": True}),
    ("shop", job("allow_feature_leak = true"), "allow_feature_leak", {"allow_feature_leak": True}),
    ("bank", job('start = "seeded"'), "initial weights", {"allow_seeded_start": True}),
    ("shop", job("standardize = false"), "outweigh", {"allow_scaling": True}),
    ("shop", job("bounds = { income = [0, 1e9] }"), "outweigh", {"allow_scaling": True}),
    ("shop", changed("rounds = 20", "rounds = 10001"), "rounds = 10001", {"most_rounds": 10_001}),
]


@pytest.mark.parametrize(("name", "text", "reason", "accepts"), CASES)
def test_what_weakens_a_party_is_refused_until_its_policy_accepts_it(
    name: str, text: str, reason: str, accepts: dict[str, Any]
) -> None:
    # What else a case needs is no part of the refusal in question.
    beside = {key: value for key, value in list(accepts.items())[1:]}
    found = refusals(Policy(**beside), of(text), name)
    assert len(found) == 1
    assert reason in found[0]
    named = next(iter(accepts), "most_epsilon")
    assert found[0].endswith(f"(policy.{named})")
    if accepts:
        assert refusals(Policy(**accepts), of(text), name) == []


@pytest.mark.parametrize(
    ("exchange", "most", "refused"),
    [
        ('scheme = "bfv"', "summed", True),
        ('scheme = "bfv"', "hidden", True),
        ('scheme = "masked"', "hidden", True),
        ('scheme = "masked"', "summed", False),
        ('scheme = "bfv"\nhide = "both"', "hidden", False),
        ('scheme = "blind"', "hidden", False),
    ],
)
def test_a_feature_party_says_how_its_predictions_may_be_seen(
    exchange: str, most: Literal["singly", "summed", "hidden"], refused: bool
) -> None:
    found = refusals(Policy(predictions=most), of(job(exchange=exchange)), "shop")
    assert [each.endswith("(policy.predictions)") for each in found] == [True] * refused
    # The label party shows nobody its own.
    policy = Policy(predictions=most, residuals="clear")
    assert refusals(policy, of(job(exchange=exchange)), "bank") == []


def test_an_algorithm_whose_parties_all_hold_labels_takes_them_from_the_label_party() -> None:
    agreement = of(job('algorithm = "fdml"', 'scheme = "masked"'))
    assert refusals(Policy(residuals="clear"), agreement, "bank") == []
    [line] = refusals(Policy(), agreement, "bank")
    assert "(policy.residuals)" in line
    [line] = refusals(Policy(predictions="hidden", residuals="clear"), agreement, "bank")
    assert "(policy.predictions)" in line


def test_algorithms_are_limited_to_those_listed() -> None:
    [line] = refusals(Policy(algorithms=("fedbcd-s",)), of(TEXT), "shop")
    assert line == "algorithm 'fedbcd-p' is not among fedbcd-s (policy.algorithms)"
    assert refusals(Policy(algorithms=("fedbcd-p",)), of(TEXT), "shop") == []


def test_only_listed_peers_take_part_under_their_identities() -> None:
    three = of(TEXT + party("telco", "feature", TELCO) + RELAY)
    assert refusals(Policy(peers={"bank": BANKS}), of(TEXT), "shop") == []
    [line] = refusals(Policy(peers={"bank": BANKS}), three, "shop")
    assert line == "party 'telco' takes part, which is not listed (policy.peers)"
    [line] = refusals(Policy(peers={"bank": STRANGER}), of(TEXT), "shop")
    assert line == "party 'bank' takes part, under another identity (policy.peers)"


def test_all_refusals_are_told_at_once() -> None:
    text = job('start = "seeded"\nallow_label_leak = true', 'scheme = "plain"')
    keys = [line.rpartition("policy.")[2] for line in refusals(Policy(), of(text), "bank")]
    assert keys == ["exchanges)", "residuals)", "allow_label_leak)", "allow_seeded_start)"]


def test_a_stranger_and_an_unknown_exchange_are_named() -> None:
    with pytest.raises(ConfigError, match="'telco' is not in the agreement"):
        refusals(Policy(), of(TEXT), "telco")
    with pytest.raises(ConfigError, match="exchange = 'bvf': unknown"):
        refusals(Policy(), of(job(exchange='scheme = "bvf"')), "shop")


def test_ids_are_compared_so_often_a_year(tmp_path: Path) -> None:
    agreement = of(TEXT)
    policy = Policy(alignments_per_peer_per_year=2, scorings_per_peer_per_year=1)
    for most, kind in ((2, "alignments"), (1, "scorings")):
        for _ in range(most):
            count_alignment(tmp_path, policy, agreement, "shop", kind)
        said = rf"'bank' {most} times .* \(policy\.{kind}_per_peer_per_year\)"
        with pytest.raises(ConfigError, match=said):
            count_alignment(tmp_path, policy, agreement, "shop", kind)
    path = tmp_path / "alignments.json"
    last_year = re.sub(r"\d{4}(?=-\d\d-\d\dT)", "2001", path.read_text(encoding="utf-8"))
    path.write_text(last_year, encoding="utf-8")
    count_alignment(tmp_path, policy, agreement, "shop")
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(DataError, match=r"record of alignments .* is damaged"):
        count_alignment(tmp_path, policy, agreement, "shop")
