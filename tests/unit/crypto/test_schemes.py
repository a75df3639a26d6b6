from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import securevfl
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.ckks import CkksEvaluator, CkksOwner
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FastPaillierOwner,
    FullPaillierOwner,
)
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import SCHEMES, make_evaluator, make_owner
from securevfl.errors import ConfigError, KeyMismatch

FORMAT = ProductFormat(rows=2, value_bound=1.0, matrix_bound=2.0)


def test_every_scheme_is_described_in_one_line() -> None:
    assert list(SCHEMES) == ["bfv", "paillier", "ckks"]
    for scheme in SCHEMES.values():
        assert scheme.description
        assert "\n" not in scheme.description
        assert scheme.engines


def test_paillier_is_fast_and_3072_bits_unless_told() -> None:
    owner = make_owner("paillier", FORMAT)
    assert type(owner) is FastPaillierOwner
    assert owner.key_bits == 3072
    evaluator = make_evaluator("paillier", owner.public_bytes, FORMAT)
    assert type(evaluator) is FastPaillierEvaluator


def test_paillier_with_full_exponents_is_an_engine_of_its_own() -> None:
    owner = make_owner("paillier", FORMAT, key_bits=2048, engine="fast-full")
    assert type(owner) is FullPaillierOwner


def test_a_key_of_another_size_than_agreed_is_refused() -> None:
    owner = make_owner("paillier", FORMAT, key_bits=2048, engine="phe")
    make_evaluator("paillier", owner.public_bytes, FORMAT, key_bits=2048)
    with pytest.raises(KeyMismatch, match="2048 bits, 3072 expected"):
        make_evaluator("paillier", owner.public_bytes, FORMAT)


def test_bfv_has_no_key_size_and_estimates_its_time() -> None:
    owner = make_owner("bfv", FORMAT)
    assert isinstance(owner, BfvOwner)
    assert owner.key_bits is None
    evaluator = make_evaluator("bfv", owner.public_bytes, FORMAT)
    assert isinstance(evaluator, BfvEvaluator)
    seconds = SCHEMES["bfv"].seconds
    assert seconds is not None
    far = replace(FORMAT, bandwidth_mbit=1.0)
    assert 0 < seconds(FORMAT) < seconds(far)
    assert [name for name, scheme in SCHEMES.items() if scheme.seconds] == ["bfv"]
    assert [name for name, scheme in SCHEMES.items() if not scheme.exact] == ["ckks"]


def test_ckks_has_no_key_size() -> None:
    owner = make_owner("ckks", FORMAT)
    assert isinstance(owner, CkksOwner)
    assert owner.key_bits is None
    assert isinstance(make_evaluator("ckks", owner.public_bytes, FORMAT), CkksEvaluator)
    assert owner.encrypt(np.array([1, 2]))


@pytest.mark.parametrize(
    ("scheme", "key_bits", "engine", "message"),
    [
        ("rot13", None, None, "scheme is 'rot13', one of bfv, paillier, ckks"),
        ("paillier", 1024, None, "key_bits is 1024, 3072 or 2048"),
        ("paillier", 0, None, "key_bits is 0, 3072 or 2048"),
        ("ckks", 3072, None, "key_bits is 3072, no choice"),
        ("bfv", 128, None, "key_bits is 128, no choice"),
        ("bfv", None, "phe", "engine is 'phe', one of tenseal expected for bfv"),
        ("paillier", None, "quantum", "engine is 'quantum', one of fast, fast-full, phe"),
        ("ckks", None, "phe", "engine is 'phe', one of tenseal"),
    ],
)
def test_unknown_settings_are_refused_and_the_known_named(
    scheme: str, key_bits: int | None, engine: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_owner(scheme, FORMAT, key_bits=key_bits, engine=engine)
    with pytest.raises(ConfigError, match=message):
        make_evaluator(scheme, b"", FORMAT, key_bits=key_bits, engine=engine)


def test_no_code_of_the_package_calls_the_test_only_constructors() -> None:
    sources = list(Path(securevfl.__file__).parent.rglob("*.py"))
    assert len(sources) > 10
    uses = [
        f"{source.name}: {line.strip()}"
        for source in sources
        for line in source.read_text("utf-8").splitlines()
        if "insecure_for_tests" in line
    ]
    assert len(uses) == 2
    assert all(use.startswith("paillier.py: def insecure_for_tests(") for use in uses)


@pytest.mark.parametrize(
    ("scheme", "engine"), [("ckks", None), ("paillier", "phe")], ids=["ckks", "phe"]
)
def test_engines_that_make_nothing_ahead_say_so(scheme: str, engine: str | None) -> None:
    fmt = ProductFormat(rows=4, value_bound=1.0, matrix_bound=1.0)
    owner = make_owner(scheme, fmt, key_bits=2048 if engine else None, engine=engine)
    evaluator = make_evaluator(
        scheme, owner.public_bytes, fmt, key_bits=2048 if engine else None, engine=engine
    )
    prepared = evaluator.prepare(np.ones((4, 1), np.int64))
    assert not owner.make_blinder()
    assert not owner.lacks_blinders()
    assert not evaluator.make_blinder()
    assert not evaluator.lacks_blinders(prepared)
    assert evaluator.modulus_bits == 64
