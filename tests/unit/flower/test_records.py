from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra securevfl[flower] is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from securevfl.errors import DataError, MalformedMessage
from securevfl.flower import (
    ORDERS,
    Orders,
    arrays_of,
    entries_of,
    message_of,
    record_of,
    record_of_state,
    runs_of,
    sizes_of,
    state_of,
    vector_of,
)
from securevfl.horizontal.client import ClientState
from securevfl.horizontal.compression import CompressedUpload


def model(**arrays: object) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def test_a_model_is_one_vector_and_back() -> None:
    of = model(w=np.arange(6.0).reshape(2, 3), b=np.array(7.0), none=np.zeros((0, 2)))
    vector = vector_of(of)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert sizes_of(of) == {"w": 6, "b": 1, "none": 0}
    back = arrays_of(-vector, of)
    assert [array.numpy().shape for array in back.values()] == [(2, 3), (), (0, 2)]
    np.testing.assert_array_equal(vector_of(back), -vector)
    with pytest.raises(DataError, match="a model of 7 parameters"):
        arrays_of(vector[1:], of)


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (model(w=np.zeros(2), n=np.zeros(1, np.int64)), "float64, int64"),
        (model(w=np.zeros(2), v=np.zeros(2, np.float32)), "float32, float64"),
        (model(w=np.zeros(2, np.float16)), "float16"),
        (model(), "no type"),
    ],
)
def test_a_model_of_other_types_is_refused(of: ArrayRecord, found: str) -> None:
    with pytest.raises(DataError, match=found):
        vector_of(of)


def test_a_model_that_is_not_finite_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="NaN"):
        vector_of(model(w=np.array([np.inf])))


def test_bytes_travel_as_they_are() -> None:
    message = CompressedUpload(3, b"\0\xff", b"")
    back = message_of(record_of(message), CompressedUpload, 3)
    assert (back.step, back.changes, back.controls) == (3, b"\0\xff", b"")
    record = record_of(message)
    record["changes"] = Array(np.zeros(2))
    with pytest.raises(MalformedMessage, match="float64 where bytes are expected"):
        message_of(record, CompressedUpload, 3)


def archive() -> bytes:
    file = BytesIO()
    np.savez(file, np.zeros(5))
    return file.getvalue()


def of_shape(shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    head = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)
    return file.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"no array", archive(), of_shape((3,)), of_shape((1 << 60,))], ids=len
)
def test_bytes_that_are_no_array_are_refused(data: bytes) -> None:
    sent = Array(dtype="uint8", shape=(5,), stype="numpy.ndarray", data=data)
    with pytest.raises(MalformedMessage, match="an array that NumPy cannot read"):
        message_of(ArrayRecord({"changes": sent, "controls": sent}), CompressedUpload, 0)
    with pytest.raises(MalformedMessage, match="an array that NumPy cannot read"):
        vector_of(ArrayRecord({"w": replace(sent, dtype="float32")}))


def test_what_a_client_keeps_comes_back() -> None:
    state = ClientState(np.ones(2), None, {"a": np.zeros(3)})
    back = state_of(record_of_state(state))
    assert back.drift is None
    assert back.control is not None
    assert back.control.tolist() == [1, 1]
    assert {name: values.tolist() for name, values in back.memory.items()} == {"a": [0, 0, 0]}


@settings(max_examples=50)
@given(st.sets(st.integers(0, 30)))
def test_runs_are_entries_and_back(entries: set[int]) -> None:
    found = np.array(sorted(entries), np.int64)
    runs = runs_of(found)
    np.testing.assert_array_equal(entries_of(runs, 31), found)
    assert len(runs) == 2 * sum(each - 1 not in entries for each in entries)


@pytest.mark.parametrize("runs", [[0], [2, 1], [0, 2, 2, 3], [-1, 2], [0, 11], [0, 0]])
def test_runs_that_do_not_fit_are_refused(runs: list[int]) -> None:
    with pytest.raises(MalformedMessage, match="do not fit a model of 10"):
        entries_of(runs, 10)


def test_orders_travel_and_are_checked() -> None:
    orders = Orders(b"agreed", 3, 1, 0, -1, [0, 2], [])

    def arrived(**changed: Any) -> Orders:  # noqa: ANN401
        record = ConfigRecord({**orders.record(), **changed})
        return Orders.of(RecordDict({ORDERS: record}))

    assert arrived() == orders
    with pytest.raises(MalformedMessage, match="orders hold"):
        arrived(more=1)
    for changed in ({"client": 1.5}, {"own": 2}, {"shared": [0.5]}):
        with pytest.raises(MalformedMessage, match="whole numbers"):
            arrived(**changed)
    with pytest.raises(MalformedMessage, match="without the settings 'securevfl'"):
        Orders.of(RecordDict())
