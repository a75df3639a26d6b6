"""Messages of a job that makes something before its rounds; none of the package is needed."""

from securevfl.arrays import FloatArray
from securevfl.wire.codec import Blobs, StepMessage, message_kind


@message_kind(201, stage="offline", carries="ciphertexts", shows="pads")
class PadRequest(StepMessage):
    """Ciphertexts, before the rounds that use what is made of them."""

    parts: Blobs


@message_kind(202, stage="offline", carries="values", shows="pads")
class Pad(StepMessage):
    """Numbers, ahead of a round; its bytes are as many as those of `Predictions`."""

    values: FloatArray
