"""The agreement: what it must say, what it must not, and how two of them differ."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from securevfl.errors import ConfigError, DataError, PeerNotTrusted
from securevfl.parties.agreement import (
    MOST_BYTES,
    differences,
    folder_of,
    keep_signature,
    read_agreement,
    read_signatures,
    require_signature,
    sign_agreement,
)
from securevfl.parties.identity import public_text
from tests.unit.parties.agreements import BANK, RELAY, SHOP, TELCO, TEXT, changed, of, party


def test_it_names_parties_identities_and_addresses(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TEXT + RELAY)
    found = read_agreement(path)
    assert found.names == ("bank", "shop")
    assert found.label_party == "bank"
    assert found.identities == {"bank": BANK.public, "shop": SHOP.public}
    assert found.addresses == {"bank": "ws://bank.example:7000"}
    assert found.relay == "wss://relay.example"
    assert found.job.job.rounds == 20
    assert found.text == (TEXT + RELAY).encode()
    assert len(found.hash) == 32


def test_one_byte_changes_its_hash_and_links_not_that_of_the_job() -> None:
    assert of(TEXT).hash != of(TEXT + "\n").hash
    assert of(TEXT).job.hash() == of(TEXT + RELAY).job.hash()
    assert of(TEXT).job.hash() != of(changed("rounds = 20", "rounds = 21")).job.hash()


def test_a_relay_or_an_address_a_pair_is_enough() -> None:
    three = TEXT + party("telco", "feature", TELCO)
    assert of(three + RELAY).relay
    with pytest.raises(ConfigError, match=r"'shop' and 'telco' cannot reach each other"):
        of(three)
    listening = TEXT + party("telco", "feature", TELCO, 'address = "wss://[2001:db8::1]:443/vfl"')
    assert set(of(listening).addresses) == {"bank", "telco"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"no \[\[party\]\]"),
        ('[job]\ndataset = "credit"', "job.dataset: parties of different organizations"),
        (
            changed(f'identity = "{public_text(SHOP.public)}"\n', ""),
            "'shop': identity is missing; `securevfl party invite",
        ),
        (changed(public_text(SHOP.public), public_text(BANK.public)), "'shop' have the same"),
        (changed(public_text(SHOP.public), "words"), "expected the 43 characters"),
        (changed('address = "ws://bank.example:7000"', ""), "cannot reach each other"),
        (changed("ws://bank", "http://bank"), "expected ws://HOST:PORT"),
        (changed("ws://bank.example:7000", "bank.example:7000"), "expected ws://HOST:PORT"),
        (changed("ws://bank", "ws://user:secret@bank"), "expected ws://HOST:PORT"),
        (changed("example:7000", "example:0"), "expected ws://HOST:PORT"),
        (changed("example:7000", "example:70000"), "Port out of range"),
        (changed("ws://bank.example:7000", "ws://:7000"), "expected ws://HOST:PORT"),
        (TEXT + RELAY.replace("wss:", "tcp:"), "links.relay = 'tcp://relay.example'"),
        (TEXT + '[links]\nrelais = "x"', "nearest known key is 'relay'"),
        (changed("rounds", "round"), "nearest known key is 'rounds'"),
        (changed('role = "feature"', 'role = "label"'), "2 parties with role = 'label'"),
        (TEXT + 'data = "shop.csv"', r"\[\[party\]\] shop: data: belongs in the party's own file"),
        (TEXT + "preprocess = {}", r"shop: preprocess: belongs in the party's own file"),
        (TEXT + "[preprocess]", r"\[preprocess\]: belongs in the party's own file"),
        (TEXT + '[output]\ndirectory = "/etc"', "output.directory: belongs in the party's own"),
        (changed('"bfv"\n', '"bfv"\nworkers = 99\n'), "exchange.workers: belongs in the party's"),
        (TEXT + "#" * MOST_BYTES, "over 65536 bytes"),
        (changed('"credit"', '"\\u001b[2J"'), r"do not print: \\x1b"),
        (TEXT + "# \u202etxt", r"do not print: # \\u202e"),
        (TEXT + "#\x1b[2J", "not TOML"),
        (changed("rounds = 20", "rounds = 0x" + "f" * 4000), "number out of range"),
        (changed("rounds = 20", "rounds = " + "[" * 4000), "too deeply"),
        (changed("rounds = 20", "a." * 2000 + "b = 1"), "too deeply"),
        (changed("rounds = 20", "a." * 2048 + "b = 1"), "a line of over 4096 bytes"),
        (TEXT + '[own.exchange]\nscheme = "plain"', "unknown key 'own'"),
        ("cls = 1\n" + TEXT, "unknown key 'cls'"),
        ("]", "not TOML"),
    ],
)
def test_what_is_no_agreement_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refusal:
        of(text)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("key", ["data", "test_data", "new_data", "label_column", "encoding"])
def test_every_key_of_a_partys_data_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"shop: {key}: belongs"):
        of(TEXT + f'{key} = "x"')


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"job\.toml cannot be read: No such file"):
        read_agreement(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"job\.toml: not UTF-8"):
        read_agreement(tmp_path / "job.toml")


def test_a_party_takes_part_under_its_own_identity_only() -> None:
    agreement = of(TEXT)
    agreement.require_own("shop", SHOP)
    with pytest.raises(ConfigError, match=r"'telco' is not in the agreement .bank, shop"):
        agreement.require_own("telco", TELCO)
    with pytest.raises(ConfigError, match="'shop': the agreement has identity"):
        agreement.require_own("shop", BANK)


@pytest.mark.parametrize(
    ("theirs", "lines"),
    [
        (TEXT, []),
        (changed("rounds = 20", "rounds = 30"), ["job.rounds: 20 here, 30 there"]),
        (changed("rounds = 20\n", ""), ["job.rounds: 20 here, not set there"]),
        (TEXT + "model = 'mlp'", ['party.shop.model: not set here, "mlp" there']),
        (
            changed("bank.example:7000", "bank.example:7001"),
            ['party.bank.address: "ws://bank.example:7000" here, "ws://bank.example:7001" there'],
        ),
        (
            changed("rounds = 20", "rounds = 20\nallow_label_leak = true"),
            ["job.allow_label_leak: not set here, true there"],
        ),
        (
            changed("rounds = 20", "rounds = 20  # as said"),
            ["all keys are equal, but not the bytes"],
        ),
        ("]", ["theirs cannot be read: not TOML"]),
        ("\udcff", ["theirs cannot be read: not UTF-8"]),
        ("a = " + "[" * 4000, ["theirs cannot be read: not TOML: nested too deeply"]),
        ("a." * 900 + "a = 1", ["theirs is nested too deeply"]),
        ("#" * (MOST_BYTES + 1), ["theirs cannot be read: over"]),
        (changed('"credit"', '"\\u001b[2J"'), [r"theirs cannot be read: characters that do not"]),
    ],
)
def test_keys_that_differ_are_named_with_both_values(theirs: str, lines: list[str]) -> None:
    found = differences(TEXT.encode(), theirs.encode(errors="surrogateescape"))
    assert len(found) == len(lines)
    assert all(each.startswith(line) for each, line in zip(found, lines, strict=True))


def test_what_a_peer_wrote_is_cut_and_still_shows_where_it_differs() -> None:
    ours = changed('"credit"', f'"{"x" * 200}§{"z" * 200}"')
    [line] = differences(ours.encode(), ours.replace("§", "$").encode())
    assert f"{'x' * 20}§" in line
    assert f"{'x' * 20}$" in line
    assert len(line) < 200
    many = TEXT + "".join(f"[k{number}]\n" for number in range(100))
    lines = differences(TEXT.encode(), many.encode())
    assert len(lines) == 21
    assert lines[-1] == "and 80 more keys"


def test_a_key_with_a_dot_is_not_taken_for_two() -> None:
    assert differences(b"[a]\nb = 1", b'"a.b" = 1') == [
        "a.b: 1 here, not set there",
        '"a.b": not set here, 1 there',
    ]


def test_a_signature_is_of_these_bytes_by_this_party(tmp_path: Path) -> None:
    agreement = of(TEXT)
    signature = sign_agreement(agreement, SHOP)
    require_signature(agreement, "shop", signature)
    other = replace(agreement, text=agreement.text + b"\n")
    for holder, name in ((agreement, "bank"), (other, "shop")):
        with pytest.raises(PeerNotTrusted, match=f"party '{name}': no valid signature"):
            require_signature(holder, name, signature)


def test_signatures_are_kept_by_agreement(tmp_path: Path) -> None:
    agreement, other = of(TEXT), of(TEXT + RELAY)
    state = tmp_path / "state"
    assert read_signatures(state, agreement) == {}
    signatures = {"shop": sign_agreement(agreement, SHOP), "bank": sign_agreement(agreement, BANK)}
    for name, each in signatures.items():
        keep_signature(state, agreement, name, each)
    assert read_signatures(state, agreement) == signatures
    assert [each.stat().st_mode & 0o777 for each in (state, *state.iterdir())] == [0o700] * 2
    assert read_signatures(state, other) == {}
    with pytest.raises(PeerNotTrusted):
        keep_signature(state, other, "shop", signatures["shop"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: text.replace("shop", "shoq"),
        lambda text: text.replace('": "', '": "00'),
        lambda text: text.replace('": "', '": "x'),
        lambda text: "[]",
        lambda text: "[" * 100_000,
    ],
)
def test_damaged_signatures_are_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    agreement = of(TEXT)
    keep_signature(tmp_path, agreement, "shop", sign_agreement(agreement, SHOP))
    [path] = folder_of(tmp_path, agreement).iterdir()
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=r"signatures\.json are damaged"):
        read_signatures(tmp_path, agreement)
