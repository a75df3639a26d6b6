"""What a party's own random numbers of a job follow from: every attempt at the job has the same.

A party that is killed at any moment starts again from a state, or from the beginning if it has none
yet. New numbers would then show more of the same people, and guards would count the job again. So
θ⁰ and the row offsets follow from one secret, which the operating system draws and which is on disk
before anything is sent. Under exchanges that repeat their numbers a restart shows those of the
attempt before it: guards know it by `Workplace.answer` and count it once.

Masks, keys and pads are fresh in each attempt. Noise is as well, so a job that releases noise is
attempted once. A peer that sends other values in a later attempt is not noticed here.
"""

import secrets
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from securevfl.errors import ConfigError, DataError
from securevfl.files import reading, replace_file
from securevfl.job import Job
from securevfl.job.sections import FdmlSettings
from securevfl.privacy.streams import KEY_BYTES
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.workplace import PartyData

_LABEL = b"securevfl attempts 1: "


def beginning(path: Path, plan: Plan, data: PartyData) -> dict[str, Any]:
    """The `start`, `offsets_key`, `session` and `answer` of a party's `Workplace`.

    Call it for each attempt, as `start` is used up by one, and before anything is sent.

    Args:
        path: of the secret, drawn in the first attempt. Whoever reads it computes θ⁰ and the row
            offsets. Remove it once the job is done, or is to begin anew with other numbers.
        plan: of the job.
        data: the party's. Other data have other numbers.

    Raises:
        ConfigError: a second attempt at a job that releases noise.
        DataError: the secret cannot be read or written.
    """
    if not path.exists():
        replace_file(path, secrets.token_bytes(KEY_BYTES), "secret of attempts")
    elif plan.account is not None:
        raise ConfigError(
            f"{path}: the job began before and is not started again: {plan.never_resumes}"
        )
    with reading(f"secret of attempts {path}"):
        secret = path.read_bytes()
    if len(secret) != KEY_BYTES:
        raise DataError(f"secret of attempts {path} is damaged")
    name = data.table.name
    own = _derived(secret, plan.hash + f"{data.fingerprint} {name}".encode())
    session = _derived(own, b"name").hex()
    late = plan.algorithm.name == "fdml" and plan.job.section(FdmlSettings, "fdml").staleness != 0
    custom = any(each.kind == "custom" for each in plan.networks.values())
    return {
        **start_of(plan.job, plan.facts.names.index(name), own),
        "session": session,
        "answer": session if plan.exchange.repeats and not (late or custom) else None,
    }


def start_of(job: Job, place: int, secret: bytes) -> dict[str, Any]:
    """The source of θ⁰ and of row offsets: 32 secret bytes, unless the job asks for seeds."""
    if job.job.start == "seeded":
        return {"start": np.random.default_rng([job.job.seed, place])}
    # Peers see what follows from θ⁰: the key must not follow from it as well.
    generator = np.random.default_rng(int.from_bytes(_derived(secret, b"start")))
    return {"start": generator, "offsets_key": _derived(secret, b"row offsets")}


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDFExpand(SHA256(), KEY_BYTES, info=_LABEL + purpose).derive(secret)
