"""A job that makes something before its rounds, from its ledger to tables, pages and files."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.exchange import Established, Session
from securevfl.reports.training import SetupWatch
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, FixedCosts, Stopwatch
from securevfl.runtime.line import LinkCosts
from securevfl.training import Environment
from securevfl.wire.codec import encode
from tests.end_to_end.commands import example, rows_from
from tests.extension import ROUNDED8
from tests.jobs import breast_cancer, fit
from tests.made_offline import Pad

PAD = Pad(0, np.zeros((50_000, 1)))
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place", "installed")


class Padded(type(ROUNDED8)):  # type: ignore[misc]
    """The label party makes pads ahead of all rounds and gives them away; nobody needs them."""

    name = "padded"
    learns = type(ROUNDED8).learns
    new_rows = type(ROUNDED8).new_rows

    @override
    async def establish(self, session: Session) -> Established:
        party = session.party
        if not party.holds_labels:
            await party.channel.receive([party.label_party], Pad)
        for name in party.feature_parties if party.holds_labels else ():
            async with party.costs.compute(CORRELATED_RANDOMNESS):
                np.sort(np.arange(100_000.0)[::-1])
            await party.channel.send(name, PAD)
        established: Established = await super().establish(session)
        return established


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    EXCHANGES.add(Padded())
    yield
    EXCHANGES.remove(Padded.name)


def fix_times(monkeypatch: pytest.MonkeyPatch, watch: type[Stopwatch]) -> None:
    """Charge nothing but what is made offline, 0.25 s more each time; what is noted is noted still.

    Whose path counts were open with measured times.
    """
    charge, sections = watch.charge, count(1)

    def charged(self: Stopwatch, phase: str, elapsed: float) -> float:
        charge(self, phase, elapsed)
        return 0.25 * next(sections) if phase == CORRELATED_RANDOMNESS else 0.0

    monkeypatch.setattr(watch, "charge", charged)


def test_training_says_what_was_made_offline(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_times(monkeypatch, SetupWatch)
    job = example(('"bfv"', '"padded"'), ('"wan"', '"lan"'))
    (row,) = rows_from("train", job, "--html", "out.html")
    assert row["offline_bytes"] == len(encode(PAD)) < row["bytes_sent"]
    assert (row["offline_messages"], row["offline_ciphertext_bytes"]) == (1, 0)
    assert row["offline_compute_s"] == row["compute_by_phase_s"][CORRELATED_RANDOMNESS] == 0.25
    # 0.5 ms and 400 kB over a line of 1000 Mbit/s, and over real links.
    line = 0.0005 + len(encode(PAD)) * 8e-9
    links = LinkCosts(**row["links"]).seconds(len(encode(PAD)))
    assert row["offline_communication_s"] == pytest.approx(line + links)
    assert row["compute_s"] + row["communication_s"] == pytest.approx(row["total_s"])
    assert row["curve"][-1]["total_s"] == row["total_s"]
    output = capsys.readouterr()
    assert "the offline phase " in output.err
    assert "made before rounds" in output.out
    assert max(map(len, output.out.splitlines())) <= 80
    page = Path("out.html").read_text(encoding="utf-8")
    assert "computation before rounds" in page
    assert ">of it offline</th>" in page
    assert ">offline compute</th>" not in page, "too wide for a screen"


def test_a_result_shows_it_where_there_is_some() -> None:
    timed = Environment(stopwatch=FixedCosts({CORRELATED_RANDOMNESS: 0.25}))
    plain, padded = (
        fit(breast_cancer(), scheme, timed, rounds=2) for scheme in ("plain", Padded.name)
    )
    assert "made offline" not in repr(plain)
    # All of it was made before the first round.
    assert f"made offline: {padded.costs(1).offline_s:.3g} s of the total" in repr(padded)


def test_a_tradeoff_has_medians_of_it_beside_an_exchange_without(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_times(monkeypatch, Stopwatch)
    arguments = [
        "--exchange",
        "plain,padded",
        "--local-steps",
        "1",
        "--repeats",
        "3",
        "--target-auc",
        "0.5",
    ]
    plain, padded = rows_from("bench tradeoff", *arguments, "--html", "out.html")
    assert plain["offline_compute_s"] == plain["offline_bytes"] == plain["offline_messages"] == 0
    assert CORRELATED_RANDOMNESS not in plain["compute_by_phase_s"]
    first, middle, last = (each["offline_compute_s"] for each in padded["runs"])
    assert first < middle < last
    assert (
        padded["offline_compute_s"] == padded["compute_by_phase_s"][CORRELATED_RANDOMNESS] == middle
    )
    assert padded["offline_bytes"] == len(encode(PAD))
    _, table = capsys.readouterr().out.split("made before rounds")
    assert "plain" not in table.split("learning rate")[0]
    assert ">offline compute</th>" in Path("out.html").read_text(encoding="utf-8")
