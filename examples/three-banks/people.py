"""Make up what three banks know of many of the same people: north knows who repaid."""

import csv
from math import exp
from pathlib import Path
from random import Random

chance, share_held = Random(3), 0.9  # noqa: S311  # no secret
held = {"north": [["person", "income", "debt", "repaid"]], "south": [["customer", "savings"]]}
held["west"] = [["id", "age", "cards"]]
for number in range(900):
    person, income, savings = f"P{number:03}", chance.gauss(0, 1), chance.gauss(0, 1)
    debt, age, cards = chance.gauss(0, 1), chance.randint(18, 80), chance.randint(0, 5)
    score = income - debt + 1.5 * savings + (age - 49) / 15 - 0.5 * (cards - 2.5)
    repaid = int(chance.random() < 1 / (1 + exp(-score)))
    for bank, row in (
        ("north", [person, income, debt, repaid]),
        ("south", [person, savings]),
        ("west", [person, age, cards]),
    ):
        if chance.random() < share_held:
            held[bank].append(row)
for bank, rows in held.items():
    with Path(bank, "people.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
