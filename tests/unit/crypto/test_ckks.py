import numpy as np
import pytest
import tenseal as ts
import tenseal.sealapi as seal

from securevfl.crypto import ckks
from securevfl.crypto.ckks import CkksEvaluator, CkksLayout, CkksOwner
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.seal_codec import to_bytes
from securevfl.crypto.seeded_keys import make_public_bytes
from securevfl.errors import ConfigError, CryptoError

ROWS = 100
FORMAT = ProductFormat(ROWS, value_bound=1.0, matrix_bound=1.0)
VALUES = np.linspace(-FORMAT.largest_value, FORMAT.largest_value, ROWS).astype(np.int64)


@pytest.fixture(scope="module")
def owner() -> CkksOwner:
    return CkksOwner(FORMAT)


@pytest.fixture(scope="module")
def evaluator(owner: CkksOwner) -> CkksEvaluator:
    return CkksEvaluator(owner.public_bytes, FORMAT)


def test_parameters_are_at_128_bits() -> None:
    assert sum(ckks.PRIME_BITS) <= seal.CoeffModulus.MaxBitCount(
        ckks.DEGREE, seal.SEC_LEVEL_TYPE.TC128
    )
    qualifiers = ckks._context()[0].key_context_data().qualifiers()
    assert qualifiers.sec_level == seal.SEC_LEVEL_TYPE.TC128


def test_a_format_finer_than_ckks_needs_is_refused() -> None:
    with pytest.raises(ConfigError, match="25 bits, at least 26"):
        CkksLayout.of(ProductFormat(9, 1.0, 1.0, value_fraction_bits=15, matrix_fraction_bits=10))


def test_public_material_that_is_no_public_key_is_refused(owner: CkksOwner) -> None:
    generator = seal.KeyGenerator(ckks._context()[0])
    secret = to_bytes(generator.secret_key())
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
    bits = list(ckks.PRIME_BITS)[::-1]
    for bad in (
        b"",
        owner.public_bytes[:-1],
        owner.public_bytes + b"\0",
        owner.public_bytes * 2,
        secret,
        context.serialize(save_secret_key=True),
        context.serialize(),
        other_parameters(bits),
    ):
        with pytest.raises(CryptoError):
            CkksEvaluator(bad, FORMAT)


def other_parameters(prime_bits: list[int]) -> bytes:
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(ckks.DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(ckks.DEGREE, prime_bits))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    return make_public_bytes(context, seal.KeyGenerator(context).secret_key())


def test_damaged_and_foreign_ciphertexts_are_refused(
    owner: CkksOwner, evaluator: CkksEvaluator
) -> None:
    good = owner.encrypt(VALUES)
    prepared = evaluator.prepare(np.ones((ROWS, 41), np.int64))
    reply = evaluator.masked_product(good, prepared).ciphertext
    half = len(reply) // 2
    for bad in (
        b"",
        good[:-1],
        good + b"\0",
        good * 2,
        good[:100] + b"\xff" * 50 + good[150:],
        good[:8] + b"\xff" * 8 + good[16:],
        reply,  # another scale
        reply[:half],
        owner.public_bytes,
    ):
        with pytest.raises(CryptoError):
            evaluator.masked_product(bad, prepared)
    for bad in (b"", reply[:-1], reply + b"\0", reply[:half], good, good * 2):
        with pytest.raises(CryptoError):
            owner.decrypt(bad, 41)
    for columns in (0, 1, 40, 81):  # 40 to a ciphertext: these take another number of them
        with pytest.raises(CryptoError):
            owner.decrypt(reply, columns)
    with pytest.raises(CryptoError):
        owner.decrypt(b"", 0)


def test_ciphertexts_at_another_level_or_in_another_form_are_refused(
    owner: CkksOwner, evaluator: CkksEvaluator
) -> None:
    good = owner.encrypt(VALUES)
    prepared = evaluator.prepare(np.ones((ROWS, 1), np.int64))
    operations = seal.Evaluator(ckks._context()[0])
    for change, message in (
        ("mod_switch_to_next_inplace", "another level or form"),
        ("transform_from_ntt_inplace", "another level or form"),
        ("square_inplace", "no valid size"),  # three polynomials
    ):
        changed = ckks._load(good, ckks.VALUE_SCALE_BITS)
        getattr(operations, change)(changed)
        changed.scale = 2.0**ckks.VALUE_SCALE_BITS
        with pytest.raises(CryptoError, match=message):
            evaluator.masked_product(to_bytes(changed), prepared)
