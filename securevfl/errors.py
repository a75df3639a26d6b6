"""Every error that securevfl raises on purpose, as one hierarchy.

Checks raise; they never return False. A message names the parameter, its value and what was
expected, and never contains a secret or a peer's data.
"""


class SecureVFLError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(SecureVFLError, ValueError):
    """A job, an option or an argument that cannot be run."""


class DataError(SecureVFLError, ValueError):
    """Data that are missing, malformed or do not match the other parties' data."""


class PeerError(SecureVFLError):
    """A failure or violation by another party."""


class PeerUnreachable(PeerError):
    """No connection to a peer."""


class PeerTimeout(PeerError):
    """A peer did not send an expected message in time."""


class PeerNotTrusted(PeerError):
    """A peer could not prove its identity."""


class PeerViolation(PeerError):
    """A peer violated the protocol: another job, another version, or invalid bytes."""


class MalformedMessage(PeerViolation):
    """Bytes that are not a message of this protocol."""


class CheckFailed(PeerViolation):
    """A peer's encrypted replies or requests are not what the protocol computes."""


class UnexpectedMessage(PeerViolation):
    """A well-formed message at the wrong time: wrong kind, round, size or shape."""


class CryptoError(SecureVFLError):
    """A cryptographic check failed."""


class KeyMismatch(CryptoError):
    """A key or ciphertext of the wrong kind, size or owner."""


class RangeExceeded(CryptoError):
    """Values could exceed the plaintext space; raised before anything is sent."""


class LabelLeakRefused(ConfigError):
    """Gradients or the final model of this job would reveal too much about the labels."""


class FeatureLeakRefused(ConfigError):
    """Predictions of this job would reveal too much about the rows of a party."""


class TrainingDiverged(SecureVFLError):
    """Weights are no longer finite: the learning rate is too large for the data."""


class BudgetExhausted(SecureVFLError):
    """A job would exceed its privacy budget."""
