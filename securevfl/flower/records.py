"""Flower's records as the arrays, messages and states of `protocols.horizontal`, and back.

Arrays travel in NumPy's own format, which Flower reads without pickle. What a peer sent is checked
before it is used.
"""

from contextlib import suppress
from dataclasses import fields
from math import prod
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord

from securevfl.arrays import RealArray
from securevfl.errors import DataError, MalformedMessage
from securevfl.protocols.horizontal.local import ClientState
from securevfl.wire.codec import StepMessage

M = TypeVar("M", bound=StepMessage)
_MEMORY = "memory of "


def sizes_of(arrays: ArrayRecord) -> dict[str, int]:
    """Numbers in each tensor of a model, by name, in the order of θ: what `Blocks` are made of."""
    return {name: prod(array.shape) for name, array in arrays.items()}


def vector_of(arrays: ArrayRecord) -> RealArray:
    """θ: all tensors of a model, one after the other.

    Raises:
        DataError: no tensor, tensors of several types, or of another than float32 and float64.
        MalformedMessage: bytes that are no array, NaN or an infinity.
    """
    types = {array.dtype for array in arrays.values()}
    if len(types) != 1 or not types <= {"float32", "float64"}:
        found = ", ".join(sorted(types)) or "no type"
        raise DataError(f"tensors of {found}: expected float32 alone, or float64 alone")
    vector = np.concatenate([_read(array).ravel() for array in arrays.values()])
    _require_floats(vector)
    return vector


def arrays_of(vector: RealArray, like: ArrayRecord) -> ArrayRecord:
    """The inverse, in the names and shapes of another model.

    Raises:
        DataError: another number of parameters.
    """
    sizes = sizes_of(like)
    if vector.shape != (sum(sizes.values()),):
        raise DataError(f"a model of {sum(sizes.values())} parameters, {vector.shape} were given")
    parts = np.split(vector, np.cumsum(list(sizes.values()))[:-1])
    return ArrayRecord(
        {
            name: Array(part.reshape(array.shape))
            for (name, array), part in zip(like.items(), parts, strict=True)
        }
    )


def record_of(message: StepMessage) -> ArrayRecord:
    """A message's arrays and bytes by their names; its step travels elsewhere."""
    return ArrayRecord(
        {
            field.name: Array(_as_array(getattr(message, field.name)))
            for field in fields(message)
            if field.name != "step"
        }
    )


def message_of(record: ArrayRecord, kind: type[M], step: int) -> M:
    """The message of a kind that `record_of` made a record of.

    Raises:
        MalformedMessage: other fields, types or numbers.
    """
    types = {field.name: field.type for field in fields(kind) if field.name != "step"}
    if record.keys() != types.keys():
        raise MalformedMessage(f"{', '.join(record)} where {', '.join(types)} are due")
    parts: dict[str, Any] = {}
    for name, array in record.items():
        values = _read(array)
        if values.ndim != 1:
            raise MalformedMessage(f"an array of {values.shape} where a vector is due")
        if types[name] is bytes:
            if values.dtype != np.uint8:
                raise MalformedMessage(f"{name}: {values.dtype} where bytes are due")
            parts[name] = values.tobytes()
        else:
            _require_floats(values)
            parts[name] = values
    return kind(step=step, **parts)


def record_of_state(state: ClientState) -> ArrayRecord:
    """What a client keeps."""
    kept = {f"{_MEMORY}{name}": values for name, values in state.memory.items()}
    kept |= {
        name: values
        for name, values in (("control", state.control), ("drift", state.drift))
        if values is not None
    }
    return ArrayRecord({name: Array(values) for name, values in kept.items()})


def state_of(record: ArrayRecord) -> ClientState:
    """What a client kept."""
    kept = {name: array.numpy() for name, array in record.items()}
    memory = {
        name.removeprefix(_MEMORY): values
        for name, values in kept.items()
        if name.startswith(_MEMORY)
    }
    return ClientState(kept.get("control"), kept.get("drift"), memory)


def _as_array(value: RealArray | bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value


def _read(array: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    values: object = None
    with suppress(TypeError, ValueError, EOFError, SyntaxError, MemoryError):
        values = array.numpy()
    if not isinstance(values, np.ndarray):  # an archive of arrays is read, too
        raise MalformedMessage("an array that NumPy cannot read")
    return values


def _require_floats(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    if values.dtype not in (np.float32, np.float64):
        raise MalformedMessage(f"an array of {values.dtype} where floats are due")
    if not np.isfinite(values).all():
        raise MalformedMessage("an array holds NaN or infinite values")
