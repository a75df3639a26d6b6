"""The codec on arbitrary messages and on arbitrary bytes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from securevfl.actors.row_shards import ShardGradient
from securevfl.errors import MalformedMessage
from securevfl.horizontal.codings import BlockUpload
from securevfl.horizontal.compression import CompressedUpload
from securevfl.horizontal.secure_aggregation import Closed, MaskedUpload, Ready, Roster
from securevfl.horizontal.simulation import ModelSent
from securevfl.protocols.blind.links import (
    Corrections,
    EncryptedPads,
    EncryptedPoints,
    MaskedShares,
    MaskedSteps,
)
from securevfl.protocols.blind.relays import HeldOutShares, MaskedResiduals, PredictionShares
from securevfl.protocols.blind.residuals import (
    EncryptedPhaseProducts,
    EncryptedPhases,
    MaskedPhases,
)
from securevfl.protocols.blind.rounds import RevealedShare, StaysInRange
from securevfl.protocols.blind.schedule import Scales
from securevfl.protocols.exchanges.class_sums import (
    EncryptedHeldOut,
    EncryptedHeldOutProducts,
    HeldOutMasks,
)
from securevfl.protocols.exchanges.encrypted import EncryptedStep
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.exchanges.plain import HeadResiduals, Residuals
from securevfl.protocols.predicting import ScoringHello
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.course import Course
from securevfl.protocols.session.gathering import (
    HeldOutPredictions,
    MaskedHeldOutPredictions,
    MaskedPredictions,
    Predictions,
)
from securevfl.protocols.session.keeping import KeepState
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.pad_store import NamePads
from securevfl.protocols.session.scoring import Verdict
from securevfl.protocols.transfer.encrypted import EncryptedComponents
from securevfl.protocols.transfer.encrypted_scores import (
    EncryptedScores,
    EncryptedScoreVector,
    ScoreMasks,
)
from securevfl.protocols.transfer.in_clear import (
    FeatureComponents,
    LabelComponents,
    ScoreVector,
)
from securevfl.protocols.vertical.dbcd import StepTaken
from securevfl.protocols.vertical.dbcd_block import MaskedPenalties, Penalties
from securevfl.protocols.vertical.fdml_server import PulledSums, PushedPredictions
from securevfl.wire.codec import Message, decode, encode, kinds

u64 = st.integers(0, 2**64 - 1)
blob = st.binary(max_size=40)
blobs = st.lists(blob, max_size=4).map(tuple)
shapes = array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)
floats: st.SearchStrategy[NDArray[Any]] = arrays(
    np.float64, shapes, elements=st.floats(allow_nan=False, allow_infinity=False)
)
singles: st.SearchStrategy[NDArray[Any]] = arrays(
    np.float32, shapes, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
)
reals = floats | singles
ring: st.SearchStrategy[NDArray[Any]] = arrays(np.uint64, shapes)

BY_KIND: dict[type[Message], st.SearchStrategy[Message]] = {
    Hello: st.builds(
        Hello,
        job_hash=blob,
        rows=u64,
        test_rows=u64,
        columns=u64,
        feature_bound_bits=u64,
        feature_fraction_bits=u64,
        mask_key=blob,
        commitments=blob,
    ),
    ScoringHello: st.builds(ScoringHello, blob, u64, u64, blob, blob),
    PublicKey: st.builds(PublicKey, scheme=st.text(max_size=20), material=blob),
    Predictions: st.builds(Predictions, u64, floats),
    MaskedPredictions: st.builds(MaskedPredictions, u64, ring),
    Residuals: st.builds(Residuals, u64, floats),
    HeadResiduals: st.builds(HeadResiduals, u64, floats, floats),
    EncryptedValues: st.builds(EncryptedValues, u64, blobs),
    EncryptedProducts: st.builds(EncryptedProducts, u64, blobs),
    EncryptedStep: st.builds(EncryptedStep, u64, blobs, u64),
    DecryptedProducts: st.builds(DecryptedProducts, u64, ring),
    HeldOutPredictions: st.builds(HeldOutPredictions, u64, floats),
    MaskedHeldOutPredictions: st.builds(MaskedHeldOutPredictions, u64, ring),
    EncryptedHeldOut: st.builds(EncryptedHeldOut, u64, blobs),
    EncryptedHeldOutProducts: st.builds(EncryptedHeldOutProducts, u64, blobs),
    HeldOutMasks: st.builds(HeldOutMasks, u64, ring),
    PredictionShares: st.builds(PredictionShares, u64, ring),
    EncryptedPads: st.builds(EncryptedPads, u64, blobs),
    MaskedSteps: st.builds(MaskedSteps, u64, blobs),
    MaskedShares: st.builds(MaskedShares, u64, blobs),
    EncryptedPoints: st.builds(EncryptedPoints, u64, blobs),
    Corrections: st.builds(Corrections, u64, ring, ring),
    RevealedShare: st.builds(RevealedShare, ring),
    Scales: st.builds(Scales, u64, u64),
    MaskedResiduals: st.builds(MaskedResiduals, u64, ring),
    EncryptedPhases: st.builds(EncryptedPhases, u64, blobs),
    EncryptedPhaseProducts: st.builds(EncryptedPhaseProducts, u64, blobs),
    MaskedPhases: st.builds(MaskedPhases, u64, blob),
    StaysInRange: st.builds(StaysInRange, st.booleans()),
    HeldOutShares: st.builds(HeldOutShares, u64, ring),
    Verdict: st.builds(Verdict, u64, st.booleans()),
    KeepState: st.builds(KeepState, u64),
    Course: st.builds(Course, u64, st.booleans(), st.booleans(), st.booleans()),
    ShardGradient: st.builds(ShardGradient, u64, u64, reals),
    PushedPredictions: st.builds(PushedPredictions, u64, reals),
    PulledSums: st.builds(PulledSums, u64, reals),
    LabelComponents: st.builds(LabelComponents, u64, floats, floats),
    FeatureComponents: st.builds(FeatureComponents, u64, floats),
    ScoreVector: st.builds(ScoreVector, u64, floats),
    EncryptedComponents: st.builds(EncryptedComponents, u64, blobs, u64),
    EncryptedScoreVector: st.builds(EncryptedScoreVector, u64, blob),
    EncryptedScores: st.builds(EncryptedScores, u64, blob),
    ScoreMasks: st.builds(ScoreMasks, u64, ring),
    Penalties: st.builds(Penalties, u64, floats, floats),
    MaskedPenalties: st.builds(MaskedPenalties, u64, ring, ring),
    StepTaken: st.builds(StepTaken, u64, floats, st.booleans()),
    NamePads: st.builds(NamePads, st.booleans(), blob),
    ModelSent: st.builds(ModelSent, u64, u64, reals, singles, st.booleans()),
    BlockUpload: st.builds(BlockUpload, u64, reals, reals, floats, singles),
    Ready: st.builds(Ready, u64, blob),
    Roster: st.builds(Roster, u64, blobs, blobs, ring),
    MaskedUpload: st.builds(MaskedUpload, u64, ring, ring),
    Closed: st.builds(Closed, u64, st.booleans()),
    CompressedUpload: st.builds(CompressedUpload, u64, blob, blob),
}
messages = st.one_of([BY_KIND[kind] for kind in kinds() if kind.number < 128])


def refused_or_the_same(data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    assert encode(message) == data


@given(messages)
def test_what_was_decoded_encodes_to_the_same_bytes(message: Message) -> None:
    data = encode(message)
    back = decode(data)
    assert type(back) is type(message)
    assert encode(back) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_encode_to_themselves(data: bytes) -> None:
    refused_or_the_same(data)


@given(st.integers(0, len(kinds()) + 1), st.binary(max_size=200))
def test_any_fields_are_refused_or_encode_to_themselves(kind: int, body: bytes) -> None:
    refused_or_the_same(b"SVFL\1" + bytes([kind]) + body)


@given(messages, st.data())
@settings(max_examples=300)
def test_a_changed_message_is_refused_or_encodes_to_itself(
    message: Message, data: st.DataObject
) -> None:
    changed = bytearray(encode(message))
    places = st.integers(0, len(changed) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    refused_or_the_same(bytes(changed))


@given(messages, st.data())
def test_a_truncated_message_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    piece = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedMessage):
        decode(piece)


@given(messages, st.binary(min_size=1, max_size=16))
def test_a_message_with_bytes_behind_it_is_refused(message: Message, more: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(encode(message) + more)
