"""A party's own file: its keys, its mistakes, and the job that it makes of an agreement."""

from pathlib import Path

import pytest

from securevfl.errors import ConfigError, DataError
from securevfl.parties.identity import public_text
from securevfl.parties.own_file import OwnFile, read_own_file
from securevfl.protocols.resolving import file_source
from tests.unit.parties.agreements import SHOP, TEXT, of

MINIMAL = 'name = "shop"\nkey = "shop.key"\n'
WHOLE = (
    'name = "shop"\nkey = "keys/shop.key"\nlisten = "[::]:7000"\nproxy = "http://proxy:3128"\n'
    'patience_hours = 0.5\nworkers = 3\noutput = "/models"\n'
    '[data]\ndata = "shop.csv"\nid_column = "customer"\nid_format = "number"\nseparator = ";"\n'
    "[preprocess]\nrare_count = 5\n[policy]\nfewest_rows = 1000\n"
    f'peers = {{ bank = "{public_text(SHOP.public)}" }}\n'
)


def read(folder: Path, text: str) -> OwnFile:
    (folder / "party.toml").write_text(text)
    return read_own_file(folder / "party.toml")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert found.key == tmp_path / "keys" / "shop.key"
    assert found.data.data == tmp_path / "shop.csv"
    assert found.state == tmp_path / "state"
    assert found.output == Path("/models")
    assert found.guard_directory is None
    assert found.data.test_data is None
    assert read(tmp_path, MINIMAL.replace("shop.key", "~/k")).key == Path.home() / "k"


def test_it_completes_the_agreements_job_and_leaves_its_hash(tmp_path: Path) -> None:
    agreement = of(TEXT)
    job = read(tmp_path, WHOLE).own_job(agreement.job)
    assert job.hash() == agreement.job.hash()
    bank, shop = job.party
    assert bank == agreement.job.party[0]
    assert (shop.role, shop.identity) == ("feature", public_text(SHOP.public))
    assert shop.data is not None
    source = file_source(shop, shop.data)
    assert (source.path, source.id_column, source.id_format) == (
        tmp_path / "shop.csv",
        "customer",
        "number",
    )
    assert shop.preprocess is not None
    assert shop.preprocess.rare_count == 5
    assert (job.exchange.workers, job.output.directory) == (3, Path("/models"))


def test_what_the_job_needs_and_the_file_lacks_is_named(tmp_path: Path) -> None:
    job = of(TEXT).job
    with pytest.raises(ConfigError, match=r"'shop': data is missing, in \[data\]"):
        read(tmp_path, MINIMAL).own_job(job)
    with pytest.raises(ConfigError, match="'shoe' is not in the agreement"):
        read(tmp_path, WHOLE.replace("shop", "shoe")).own_job(job)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "shop"', "key is missing"),
        (MINIMAL + "patience = 3", "unknown key 'patience': nearest known key is 'patience_hours'"),
        (MINIMAL + 'id_column = "x"', "id_column belongs in [data]"),
        (MINIMAL + "[data]\nfewest_rows = 3", "fewest_rows belongs in [policy]"),
        (MINIMAL + "[policies]", "unknown key 'policies': nearest known key is 'policy'"),
        (MINIMAL + "[policy]\nhide = 'both'", "unknown key 'policy.hide': nearest known key is"),
        (MINIMAL + "[data]\npath = 'x'", "unknown key 'data.path': nearest known key is"),
        (MINIMAL + "[policy]\nfewest_rows = '3'", "policy.fewest_rows = '3': Input should be"),
        (MINIMAL + "[policy]\nleast_overlap = 1.5", "less than or equal to 1"),
        (MINIMAL + "[policy]\nmost_ids_ratio = inf", "policy.most_ids_ratio = inf: Input should"),
        (MINIMAL + "[policy]\npeers = { bank = 'x' }", "expected the 43 characters"),
        (MINIMAL + 'listen = "7000"', "listen = '7000': expected HOST:PORT"),
        (MINIMAL + 'listen = "ws://0.0.0.0:7000"', "expected HOST:PORT"),
        (MINIMAL + 'listen = "0.0.0.0:70000"', "Port out of range"),
        (MINIMAL + 'proxy = "proxy:3128"', "expected http://HOST:PORT"),
        (MINIMAL + 'proxy = "http://proxy"', "expected http://HOST:PORT"),
        (MINIMAL.replace('"shop"', '"../shop"'), "name = '../shop'"),
        (MINIMAL + "workers = 0", "workers = 0"),
        ("]", "not TOML"),
    ],
)
def test_a_mistake_is_named_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, text)
    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no party file .*party\.toml: securevfl party init"):
        read_own_file(tmp_path / "party.toml")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_own_file(tmp_path)
    (tmp_path / "party.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"party\.toml: not TOML: 'utf-8'"):
        read_own_file(tmp_path / "party.toml")
