"""Every error that securevfl raises on purpose, as one tree.

A check raises, it never returns False. A message names the parameter, its value and what was
expected; never a secret and never a peer's data.
"""


class SecureVFLError(Exception):
    """Root of the tree: catching it catches everything this package raises on purpose."""


class ConfigError(SecureVFLError, ValueError):
    """A job, an option or an argument that cannot be run as it stands."""


class DataError(SecureVFLError, ValueError):
    """Data that is missing, malformed or does not fit the other parties' data."""


class PeerError(SecureVFLError):
    """Something another party did, or failed to do."""


class PeerUnreachable(PeerError):
    """No connection to a peer."""


class PeerTimeout(PeerError):
    """A peer did not send what was waited for."""


class PeerNotTrusted(PeerError):
    """A peer could not prove who it is."""


class PeerViolation(PeerError):
    """A peer broke the protocol: another job, another version, or bytes that do not fit."""


class MalformedMessage(PeerViolation):
    """Bytes that are not a message of this protocol."""


class UnexpectedMessage(PeerViolation):
    """A well-formed message at the wrong time: wrong kind, round, size or shape."""


class CryptoError(SecureVFLError):
    """A cryptographic check failed."""


class KeyMismatch(CryptoError):
    """A key or ciphertext of the wrong kind, size or owner."""


class RangeExceeded(CryptoError):
    """Values that could leave the plaintext space; refused before anything is sent."""


class LabelLeakRefused(ConfigError):
    """The aggregated gradients of this job would carry too much about the labels."""


class HeldOutLeakRefused(ConfigError):
    """The scorings of this job would show too much of a party's held-out rows."""


class TrainingDiverged(SecureVFLError):
    """Weights are no longer finite: the learning rate is too large for the data."""


class BudgetExhausted(SecureVFLError):
    """A job would pass its privacy budget."""
