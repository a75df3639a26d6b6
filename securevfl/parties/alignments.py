"""How often a party's ids have been compared with each peer's, over all jobs within a year.

Every comparison that begins counts: one that is broken off may have told as much.
"""

import datetime
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from securevfl.errors import DataError
from securevfl.files import only_one, replace_file
from securevfl.parties.identity import public_text
from securevfl.parties.own_file import Policy
from securevfl.parties.policy import require_alignment

FILE = "alignments.json"
YEAR = datetime.timedelta(days=365)
_KEPT = TypeAdapter(dict[str, list[datetime.date]])


def count_alignment(
    folder: Path, policy: Policy, own: bytes, peers: Mapping[str, bytes], today: datetime.date
) -> None:
    """Note that ids are about to be compared with these peers' (identities by name).

    Raises:
        ConfigError: the policy does not allow it once more; then nothing is noted.
        DataError: the record cannot be read or written.
    """
    path = folder / FILE
    with only_one(path, "record of alignments"):
        try:
            kept = _KEPT.validate_json(path.read_bytes())
        except FileNotFoundError:
            kept = {}
        except (OSError, ValidationError) as error:
            raise DataError(f"{path} cannot be read, or is damaged") from error
        for peer, public in peers.items():
            # Parties of one operator may share the folder.
            pair = f"{public_text(own)} {public_text(public)}"
            kept[pair] = [day for day in kept.get(pair, []) if day > today - YEAR]
            require_alignment(policy, peer, len(kept[pair]))
            kept[pair].append(today)
        replace_file(path, _KEPT.dump_json(kept), "record of alignments")
