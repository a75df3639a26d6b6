"""How often ids may be compared with a peer's."""

import datetime
from pathlib import Path

import pytest

from securevfl.errors import ConfigError, DataError
from securevfl.parties.alignments import FILE, count_alignment
from securevfl.parties.own_file import Policy

DAY = datetime.date(2026, 1, 31)
OWN, SHOP, CLUB = bytes(32), bytes([1] * 32), bytes([2] * 32)


def test_a_policy_limits_alignments_with_a_peer_within_a_year(tmp_path: Path) -> None:
    policy = Policy(alignments_per_peer_per_year=2)
    for _ in range(2):
        count_alignment(tmp_path, policy, OWN, {"shop": SHOP}, DAY)
    for peers in ({"shop": SHOP}, {"club": CLUB, "another name": SHOP}):
        with pytest.raises(ConfigError, match="2 times within a year"):
            count_alignment(tmp_path, policy, OWN, peers, DAY + datetime.timedelta(days=364))
    for _ in range(2):  # what was refused has not counted, and a year later nothing does
        count_alignment(tmp_path, policy, OWN, {"club": CLUB}, DAY)
    later = DAY + datetime.timedelta(days=366)
    count_alignment(tmp_path, policy, OWN, {"shop": SHOP, "club": CLUB}, later)
    count_alignment(tmp_path, policy, SHOP, {"bank": OWN}, DAY)  # another party's own count


def test_a_damaged_record_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        count_alignment(tmp_path, Policy(), OWN, {"shop": SHOP}, DAY)
