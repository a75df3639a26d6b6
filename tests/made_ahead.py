"""Messages of a job that makes something ahead of its rounds; none of the package is needed."""

from securevfl.arrays import FloatArray
from securevfl.wire.codec import Blobs, StepMessage, message_kind


@message_kind(201, stage="ahead", carries="ciphertexts", shows="pads")
class PadRequest(StepMessage):
    """Ciphertexts, ahead of the rounds that use what is made of them."""

    parts: Blobs


@message_kind(202, stage="ahead", carries="values", shows="pads")
class Pad(StepMessage):
    """Numbers, ahead of a round; its bytes are as many as those of `Predictions`."""

    values: FloatArray
