"""Session states that hold shares: sealed under a key of this party's, which lives as long as they.

A state lies in the output folder, and two parties' states together are parameters in the middle of
a job. The key lies in the party's own state; when the session ends it is destroyed, and with it
every copy of a state.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from securevfl.crypto.sealing import new_key, seal, unseal
from securevfl.errors import CryptoError, DataError
from securevfl.files import replace_file, sync_folder, wipe_file

SEALED = "sealed"


class StateSeal:
    """One party's, for one job.

    Args:
        keys: folder of this party's keys.
        party: whose.
        job_hash: of the job, as hex.
    """

    def __init__(self, keys: Path, party: str, job_hash: str) -> None:
        self._key = keys / f"{job_hash[:32]}.state-key"
        self._header = f"{party} {job_hash}".encode()

    def renew(self) -> None:
        """Take a fresh key for a session that starts: those before cannot be read any more.

        Raises:
            DataError: keys cannot be written.
        """
        self.destroy()
        replace_file(self._key, new_key(), "key of states")

    def seal(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The arrays as one that nobody else can read.

        Raises:
            DataError: the key is gone.
        """
        data = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        return {SEALED: np.frombuffer(seal(self._read(), data, self._header), np.uint8)}

    def open(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What `seal` was given.

        Raises:
            DataError: the key is gone, or they are not what it sealed for this party and job.
        """
        key = self._read()
        try:
            opened: dict[str, NDArray[Any]] = load(
                unseal(key, arrays[SEALED].tobytes(), self._header)
            )
        except (CryptoError, SafetensorError, KeyError) as error:
            raise DataError("session state: its shares are damaged, or another party's") from error
        return opened

    def destroy(self) -> None:
        """Destroy the key, if there is one.

        Raises:
            DataError: it cannot be.
        """
        try:
            wipe_file(self._key)
            self._key.unlink()
            sync_folder(self._key.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"key of states {self._key}: {error.strerror}") from error

    def _read(self) -> bytes:
        try:
            return self._key.read_bytes()
        except OSError as error:
            raise DataError(
                f"session state: no key of its shares, {self._key} ({error.strerror})"
            ) from error
