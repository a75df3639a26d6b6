"""The rows on ciphertexts: the product as it is, and evaluators without a protection.

Weakened evaluators live here alone; what makes keys is no part of a job file.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from phe.paillier import PaillierPrivateKey, generate_paillier_keypair
from typing_extensions import override

from securevfl.attacks.ciphertexts import parities_from_symbols
from securevfl.auditing.judging import Finding, Immune, NotRun, verdict_of
from securevfl.auditing.measures.ciphertexts import (
    approximate_key,
    noise,
    ratio,
    symbols,
)
from securevfl.auditing.measuring import Attack, Measurement
from securevfl.auditing.subject import Subject, with_columns
from securevfl.crypto.bfv_core import BfvMultiplier
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FullPaillierOwner,
    ShortExponentResidues,
)
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.data.sources import load
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.protocols.session.keys import KeyMaker
from tests.made_data import blocks_of, dataset_of, labels_of
from tests.small_keys import insecure
from tests.unit.auditing.cells import finding as finding_of
from tests.unit.auditing.cells import reason
from tests.weakened import EncryptsNothing, MasksModuloT, ShortBlinders

KEY_BITS = 384


class WithoutEncryptions(KeyMaker):
    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        return EncryptsNothing(material, product_format)


class BlumKeys(KeyMaker):
    """Small Paillier keys for which all powers of −y² have Jacobi symbol 1."""

    def __init__(self, short: bool) -> None:
        self._short = short
        self._residues: ShortExponentResidues | None = None

    @override
    def owner(
        self, settings: ExchangeSettings, product_format: ProductFormat, seed: bytes
    ) -> KeyOwner:
        while True:
            private: PaillierPrivateKey = generate_paillier_keypair(n_length=KEY_BITS)[1]
            if private.p % 4 == private.q % 4 == 3:
                break
        self._residues = ShortExponentResidues(private)
        return insecure(FullPaillierOwner, product_format, private)

    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        kind = ShortBlinders if self._short else FastPaillierEvaluator
        made = insecure(kind, material, product_format)
        if isinstance(made, ShortBlinders):
            assert self._residues is not None
            made.residues = self._residues
        return made


def subject(
    scheme: str, keys: KeyMaker | None = None, columns: int = 15, **exchange: object
) -> Subject:
    loss = "taylor-logistic" if exchange.get("hide") == "both" else "logistic"
    job = Job.of(job={"batch_size": 115, "loss": loss}, exchange={"scheme": scheme, **exchange})
    dataset = with_columns(load("breast_cancer"), "party2", range(columns))
    return Subject(job, dataset, 0, keys or KeyMaker())


def finding(measured: Iterator[Measurement]) -> Finding:
    (cell,) = measured
    return finding_of(cell)


@pytest.mark.parametrize("hide", ["residuals", "both"])
@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_c1_of_the_products_replies_tells_nothing(scheme: str, hide: str) -> None:
    assert finding(ratio(subject(scheme, hide=hide))).value == 0


def test_c1_without_encryptions_tells_all_of_x() -> None:
    assert finding(ratio(subject("bfv", WithoutEncryptions()))).value == 1


@pytest.mark.parametrize("columns", [2, 15])
def test_noise_of_the_products_replies_tells_nothing_however_few_columns_there_are(
    columns: int,
) -> None:
    # Of 2880 independent numbers: beyond 0.1 once in 10 million.
    found = finding(noise(subject("bfv", columns=columns)))
    assert found.detail["numbers"] >= 2880
    assert found.value < 0.1


def test_noise_is_of_sixty_replies_where_the_job_itself_would_end_sooner() -> None:
    generator = np.random.default_rng(5)
    values, labels = generator.standard_normal((800, 2)), np.arange(800) % 2
    dataset = dataset_of(np.split(values, 2, axis=1), labels)
    job = Job.of(job={}, exchange={"scheme": "bfv"})
    assert finding(noise(Subject(job, dataset, 0))).detail["queries"] == 60


@pytest.mark.parametrize("scheme", ["bfv", "blind"])
def test_noise_that_masks_do_not_cover_tells_x(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BfvMultiplier, "_mask", MasksModuloT._mask)
    found = finding(noise(subject(scheme, columns=13)))
    assert found.value > 0.9
    assert verdict_of([found]) == "leaks"


def test_symbols_of_the_products_replies_contradict_each_other() -> None:
    # 36 coins that all fit: 2^-36.
    assert finding(symbols(subject("paillier", BlumKeys(short=False)))).value == 0


def test_symbols_of_short_blinders_tell_parities() -> None:
    # Fails where 60 random equations have no rank of 24: 2^-36.
    assert finding(symbols(subject("paillier", BlumKeys(short=True)))).value == 1


def test_too_few_equations_contradict_nothing_and_solve_nothing() -> None:
    equations = np.zeros((3, 3), np.int64)
    assert parities_from_symbols(equations, 2) is None


def test_released_ckks_sums_are_not_the_key() -> None:
    assert finding(approximate_key(subject("ckks"))).value == 0


@pytest.mark.parametrize(
    ("attack", "scheme", "kind", "why"),
    [
        (ratio, "plain", Immune, "nothing is encrypted"),
        (ratio, "paillier", Immune, "not an RLWE scheme"),
        (noise, "paillier", Immune, "no noise"),
        (noise, "ckks", NotRun, "ciphertext_noise supports bfv"),
        (symbols, "bfv", Immune, "Paillier's"),
        (approximate_key, "bfv", Immune, "exact schemes"),
        (approximate_key, "masked", Immune, "nothing is encrypted"),
    ],
)
def test_an_attack_for_another_scheme_shows_nothing_unless_there_is_nothing_to_attack(
    attack: Attack, scheme: str, kind: type[Immune | NotRun], why: str
) -> None:
    (cell,) = attack(subject(scheme))
    assert why in reason(cell, kind)


@pytest.mark.parametrize("attack", [ratio, noise, symbols, approximate_key])
def test_immunity_is_of_schemes_that_are_known(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheme that nobody has thought of is not taken for one that an attack cannot touch."""
    monkeypatch.setattr(Subject, "scheme", "another")
    assert not attack.immune(subject("bfv"))


@pytest.mark.parametrize(
    ("attack", "scheme", "refused"),
    [
        (ratio, "paillier", "ciphertext_ratio supports bfv and ckks"),
        (noise, "ckks", "ciphertext_noise supports bfv"),
        (symbols, "bfv", "symbols are Paillier's"),
        (approximate_key, "bfv", "ckks_key supports ckks"),
    ],
)
def test_attacks_refuse_schemes_that_their_reasons_do_not_know(
    attack: Attack, scheme: str, refused: str
) -> None:
    """As one from outside is: past the reasons why an attack finds nothing, which go by name."""
    keys = BlumKeys(short=False) if scheme == "paillier" else None
    with pytest.raises(ConfigError, match=refused):
        attack.measure(subject(scheme, keys))


def test_noise_of_several_inputs_a_vector_is_not_read() -> None:
    generator = np.random.default_rng(0)
    blocks = blocks_of(generator, 2, rows=115, columns=600)
    dataset = dataset_of(blocks, labels_of(generator, blocks))
    job = Job.of(job={"batch_size": 115}, exchange={"scheme": "bfv"})
    (cell,) = noise(Subject(job, dataset, 0))
    assert "several inputs a vector" in reason(cell)
