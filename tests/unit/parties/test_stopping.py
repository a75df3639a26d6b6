"""A stopped job: signed by a party of it, kept, and told once to all."""

from pathlib import Path

import pytest

from securevfl.errors import DataError, PeerNotTrusted
from securevfl.parties.agreement import Agreement, folder_of, parse_agreement
from securevfl.parties.identity import Identity, public_text
from securevfl.parties.stopping import all_know, keep_stop, note_all_know, read_stop, stop
from tests.organizations import toml

KEYS = {name: Identity.generate() for name in ("bank", "shop")}


def agreement(rounds: int = 10) -> Agreement:
    roles = {"bank": "label", "shop": "feature"}
    parties = [
        {"name": name, "role": roles[name], "identity": public_text(key.public)}
        for name, key in KEYS.items()
    ]
    links = {"relay": "ws://relay.example:7"}
    return parse_agreement(toml(job={"rounds": rounds}, links=links, party=parties).encode())


def test_a_stop_stays_with_its_agreement(tmp_path: Path) -> None:
    assert read_stop(tmp_path, agreement()) is None
    made = stop(tmp_path, agreement(), "shop", KEYS["shop"])
    assert (
        read_stop(tmp_path, agreement())
        == made
        == stop(tmp_path, agreement(), "bank", KEYS["bank"])
    )
    assert read_stop(tmp_path, agreement(rounds=11)) is None
    keep_stop(tmp_path / "peer", agreement(), made)
    assert read_stop(tmp_path / "peer", agreement()) == made
    assert not all_know(tmp_path, agreement())
    note_all_know(tmp_path, agreement())
    assert all_know(tmp_path, agreement())


def test_only_a_party_of_the_job_stops_it(tmp_path: Path) -> None:
    made = stop(tmp_path, agreement(), "shop", KEYS["shop"])
    other = stop(tmp_path, agreement(rounds=11), "shop", KEYS["shop"])
    for forged in (
        made.model_copy(update={"by": "bank"}),
        made.model_copy(update={"by": "mallory"}),
        made.model_copy(update={"at": "2026-01-01 00:00 UTC"}),
        made.model_copy(update={"signature": "00" * 64}),
        other,
    ):
        with pytest.raises(PeerNotTrusted):
            keep_stop(tmp_path / "peer", agreement(), forged)
    assert read_stop(tmp_path / "peer", agreement()) is None


def test_a_damaged_stop_is_not_taken_for_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, agreement())
    folder.mkdir()
    (folder / "stopped.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        read_stop(tmp_path, agreement())
