import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from securevfl.data import FileSource, VerticalDataset, load_files
from securevfl.data.ids import IdFormat
from securevfl.errors import DataError
from securevfl.scoring.sources import read_new_rows


def join(folder: Path, bank: list[str], shop: list[str], how: IdFormat = "text") -> VerticalDataset:
    lines = [f"{row_id},{n},{n % 2}" for n, row_id in enumerate(bank)]
    (folder / "bank.csv").write_text("\n".join(["id,x,y", *lines]))
    (folder / "shop.csv").write_text(
        "\n".join(["id,z", *(f"{row_id},{n / 2}" for n, row_id in enumerate(shop))])
    )
    a = FileSource("bank", folder / "bank.csv", "id", "y", id_format=how)
    return load_files([a, replace(a, name="shop", path=folder / "shop.csv", label_column=None)])


@pytest.mark.parametrize(
    ("bank", "shop", "message"),
    [
        ("{:05}", "{}", "'bank' has '00000' and 'shop' has '0'; `id_format = \"number\"` at every"),
        ("{}", "{}.0", "'bank' has '0' and 'shop' has '0.0'; `id_format = \"number\"`"),
        ("ab{}", "AB{}", "'bank' has 'ab0' and 'shop' has 'AB0'; `id_format = \"folded\"`"),
        ("ab{}", "ab{} ", '`id_format = "folded"` at every party'),
        ("{}", "CUST-{:04}", "and 'shop' has 'CUST-0000'; only their last digits agree"),
        ("a{}", "b{}-x", "'bank' has 'a0', 'a1', 'a2', 'shop' has 'b0-x', 'b1-x', 'b2-x'"),
    ],
)
def test_ids_that_never_meet_are_refused_with_examples_and_what_would_help(
    tmp_path: Path, bank: str, shop: str, message: str
) -> None:
    numbers = range(60)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        join(tmp_path, [bank.format(n) for n in numbers], [shop.format(n) for n in numbers])
    assert "no common ids among the parties ('bank' 60, 'shop' 60 ids)" in str(caught.value)


@pytest.mark.parametrize(
    ("bank", "shop", "how"), [("{:05}", " {}.0", "number"), ("ab{}", "AB{} ", "folded")]
)
def test_a_format_makes_them_meet(tmp_path: Path, bank: str, shop: str, how: IdFormat) -> None:
    numbers = range(60)
    ids = [bank.format(n) for n in numbers], [shop.format(n) for n in numbers]
    data = join(tmp_path, *ids, how=how)
    assert data.dropped == {"bank": 0, "shop": 0}
    rows = zip(data.parties[0].train[:, 0], data.parties[1].train[:, 0], strict=True)
    assert all(x == 2 * z for x, z in rows)


def test_few_in_common_are_warned_of(tmp_path: Path) -> None:
    # From 1000 on nothing is filled up with zeros.
    bank, shop = [f"{n:04}" for n in range(900, 1040)], [str(n) for n in range(900, 1040)]
    (note,) = (each for each in join(tmp_path, bank, shop).notes if each.kind == "ids")
    assert note.warning
    assert "only 40 of 140 ids are in every file: 'bank' has '0900' and 'shop' has '900'" in (
        note.text
    )
    assert "(140 in common)" in note.text
    assert not [each for each in join(tmp_path, bank, bank[:100]).notes if each.kind == "ids"]


def test_another_spelling_of_some_is_warned_of_however_many_match(tmp_path: Path) -> None:
    bank, shop = [f"{n:04}" for n in range(900, 1900)], [str(n) for n in range(900, 1900)]
    (note,) = (each for each in join(tmp_path, bank, shop).notes if each.kind == "ids")
    assert note.warning
    assert "only 900 of 1000 ids are in every file: 'bank' has '0900' and 'shop' has '900'" in (
        note.text
    )
    assert '`id_format = "number"` at every party' in note.text
    # Last digits, and a few people, may be alike by chance.
    for others in ([*(f"x{n}" for n in range(900, 1000)), *shop[100:]], [*bank[10:], *shop[:10]]):
        assert not [each for each in join(tmp_path, bank, others).notes if each.kind == "ids"]


def test_two_ids_that_are_one_number_are_refused(tmp_path: Path) -> None:
    ids = [str(n) for n in range(60)]
    with pytest.raises(DataError, match="party 'bank': 1 duplicate id in 'id', the first is '7'"):
        join(tmp_path, [*ids, "007"], ids, how="number")
    assert join(tmp_path, [*ids, "-017"], ids, how="number").dropped == {"bank": 1, "shop": 0}
    with pytest.raises(DataError, match="1 ids are not whole numbers, such as 'x7'"):
        join(tmp_path, [*ids, "x7"], ids, how="number")


def test_whole_floats_are_numbers_where_ids_are(tmp_path: Path) -> None:
    pl.DataFrame({"id": [float(n) for n in range(60)], "z": range(60)}).write_parquet(
        tmp_path / "shop.parquet"
    )
    (tmp_path / "bank.csv").write_text(
        "id,x,y\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(60))
    )
    bank = FileSource("bank", tmp_path / "bank.csv", "id", "y")
    shop = FileSource("shop", tmp_path / "shop.parquet", "id", id_format="number")
    assert load_files([bank, shop]).dropped == {"bank": 0, "shop": 0}


def test_scores_carry_ids_as_the_label_party_writes_them(tmp_path: Path) -> None:
    (tmp_path / "bank.csv").write_text("id,x\n007,1\n012,2\n3,5\n")
    (tmp_path / "shop.csv").write_text("id,z\n12,3\n7,4\n")
    bank = FileSource("bank", tmp_path / "bank.csv", "id", features=("x",), id_format="number")
    shop = replace(bank, name="shop", path=tmp_path / "shop.csv", features=("z",))
    new = read_new_rows([shop, bank], "bank")
    assert dict(zip(new.ids, new.written, strict=True)) == {"12": "012", "7": "007"}
    assert [new.written[row] for row in new.order] == ["007", "012"]
