"""What an audit found, in sentences for people who decide: leaks first, then what is open."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from securevfl.auditing.judging import WORST_FIRST
from securevfl.reports.matrix import exchanges_of, figure
from securevfl.reports.tables import Row
from securevfl.shown import seeds_of

FIRST = ("leaks", "undecided")
REST = {
    "no_leak_found": "Tried, and no leak found",
    "immune": "The exchange leaves nothing to read for",
    "not_run": "Not run",
}
WHY = {
    "immune": "leaves nothing to read",
    "permitted by the guard": "a guard then limits what can be read",
    "checked": "replies are then checked",
}
WORDS = {
    "relative_error": "error",
    "recovered_fraction": "share read",
    "epsilon_lower_bound": "ε of at least",
    "auc": "AUC",
    "top_precision": "precision of the top ranks",
    "tpr_at_1_percent_fpr": "share found at 1 % false alarms",
}
EXACTLY = 0.01  # a relative error up to which values are computed, and not only estimated


class Sentence(NamedTuple):
    """What an attack tries, and what its success means; names and numbers stand in braces."""

    tried: str
    means: str


SENTENCES = {
    "rotation_twin": Sentence(
        "whether other features of the same people would have given the same messages",
        "messages say more about people than how far they are from each other",
    ),
    "gram": Sentence(
        "how far any two people are from each other, from predictions in training",
        "{label} can tell which people resemble each other in {feature}'s {n}columns",
    ),
    "anchors": Sentence(
        "everyone's columns, by somebody at the label party who knows a few people",
        "someone at {label} who knows {known} could {read} {feature}'s {n}values of {people}",
    ),
    "components": Sentence(
        "the other party's columns one by one, as they do not depend on each other",
        "{label} could estimate single columns of {feature} without knowing anybody",
    ),
    "binary_columns": Sentence(
        "the other party's yes/no columns, from predictions in training",
        "{label} could read yes/no columns of {feature} without knowing anybody",
    ),
    "features_across_jobs": Sentence(
        "everyone's columns, from predictions of several jobs on the same people",
        "after several jobs someone at {label} who knows {known} could {read} {feature}'s "
        "{n}values of {people}",
    ),
    "binary_columns_across_jobs": Sentence(
        "the other party's yes/no columns, from predictions of several jobs on the same people",
        "after several jobs {label} could read yes/no columns of {feature} without knowing anybody",
    ),
    "held_out_features": Sentence(
        "columns of people who are only scored, by somebody who knows some of them",
        "someone at {label} who knows {known} could {read} {feature}'s {n}values of others who are "
        "only scored",
    ),
    "labels_from_residuals": Sentence(
        "everyone's label, from what feature parties receive in each round",
        "{feature} could tell the labels of {people} better than its own data allow",
    ),
    "labels_from_gradients": Sentence(
        "labels, from a feature party's own gradients",
        "{feature} could rank {people} by their label better than its own data allow",
    ),
    "labels_from_components": Sentence(
        "labels, from what transfer learning sends",
        "{feature} could tell the labels of the shared people better than its own data allow",
    ),
    "labels_from_unit_gradients": Sentence(
        "labels, from gradients of a network's hidden units",
        "{feature} could rank people by their label better than its own data allow",
    ),
    "features_from_units": Sentence(
        "columns, from hidden units of people, by somebody who knows some of them",
        "a party that knows {known} could {read} the other's columns of all shared people",
    ),
    "integer_decoding": Sentence(
        "labels, as gradients of few whole numbers add up in few ways",
        "{feature} could decode labels of single people",
    ),
    "repeated_start": Sentence(
        "every party's secret starting point, from the seed in the job file",
        "whoever has the job file could undo what hides labels in the first gradients",
    ),
    "labels_across_jobs": Sentence(
        "labels, from gradients of several jobs on the same people",
        "{feature} could learn labels over jobs that no single job shows",
    ),
    "changed_labels": Sentence(
        "whose label was corrected between two jobs",
        "{feature} could name the person whose label changed between two jobs, and how",
    ),
    "labels_of_groups": Sentence(
        "labels, from the first gradients of many jobs on few people each",
        "jobs on few people tell {feature} more of their labels than the models do",
    ),
    "labels_by_difference": Sentence(
        "labels of a few people whom some jobs leave out",
        "{feature} could read labels of the people left out",
    ),
    "labels_from_parameters": Sentence(
        "labels, from the finished parts of several models",
        "finished models tell {feature} labels of the people they were trained on",
    ),
    "words_of_rounds": Sentence(
        "anything hidden, from the random-looking words of shares",
        "shares are not as random as they must be",
    ),
    "ciphertext_ratio": Sentence(
        "features, from replies that were not made fresh",
        "ciphertexts carry features of {feature}",
    ),
    "ciphertext_noise": Sentence(
        "features, from the noise inside replies",
        "the noise of replies carries features of {feature}",
    ),
    "jacobi_symbol": Sentence(
        "features, from a number-theoretic trace in Paillier replies",
        "replies carry yes/no columns of {feature}",
    ),
    "ckks_key": Sentence(
        "the secret key, from decrypted values that travel back",
        "{feature} could get the key, and with it all that was encrypted",
    ),
    "crafted_inputs": Sentence(
        "columns, by a label party that encrypts what no honest one does",
        "{label} could read columns of {feature} by cheating",
    ),
    "crafted_query": Sentence(
        "the secret key, by a feature party that sends forged replies",
        "{feature} could get the key by cheating, and with it every label",
    ),
    "selection_matrix": Sentence(
        "labels, by a feature party that sends forged columns",
        "{feature} could read labels of people whom it chooses by cheating",
    ),
    "equality_solving": Sentence(
        "columns, from scores, by somebody who knows the whole model",
        "who knows the whole model could {read} {feature}'s values of a person from the score",
    ),
    "epsilon": Sentence(
        "whether the noise protects as well as the job claims",
        "the claimed ε is not true for these data",
    ),
}


DEFECTS = ("words_of_rounds", "ciphertext_ratio", "ciphertext_noise", "jacobi_symbol", "ckks_key")
REMAINS = {
    **dict.fromkeys((*DEFECTS, "crafted_inputs"), "do not use this exchange, and report it"),
    "crafted_query": "take only partners who follow the protocol",
    "selection_matrix": "take only partners who follow the protocol",
    "labels_from_unit_gradients": "take fewer rounds, or fewer units in [ftl], and audit again",
    "labels_across_jobs": "take fewer jobs on the same people",
    "changed_labels": "train on the earlier labels until enough have changed",
    "labels_from_parameters": "take more people, fewer columns, or fewer jobs on the same people",
    "equality_solving": "do not give the parts of the model to one party",
    "epsilon": "give all columns bounds, or add noise, and audit again",
}
"""What is left to do where no setting helps; of other attacks `ELSE`."""
ELSE = "leave out columns or people, or take only partners who may know them"


def findings(rows: Sequence[Row]) -> Iterator[tuple[str, list[list[str]]]]:
    """By exchange: short sentences for every leak and open question, and what else was tried.

    Only the job itself counts, neither what-ifs nor controls.
    """
    for exchange in exchanges_of(rows):
        own: dict[str, list[Row]] = {}
        for row in rows:
            detail = row["detail"]
            if row["exchange"] == exchange and not (detail["control"] or detail["what_if"]):
                own.setdefault(row["attack"], []).append(row)
        worst = [
            min(each, key=lambda row: WORST_FIRST.index(row["verdict"])) for each in own.values()
        ]
        said = [
            _said(row, seeds_of(rows))
            for verdict in FIRST
            for row in worst
            if row["verdict"] == verdict
        ]
        for verdict, start in REST.items():
            tried: dict[str, list[str]] = {}  # by reason
            for row in (each for each in worst if each["verdict"] == verdict):
                why = f" ({row['detail']['reason']})" if verdict == "not_run" else ""
                tried.setdefault(why, []).append(_sentence(row).tried)
            what = "; ".join(f"{'; '.join(names)}{why}" for why, names in tried.items())
            said += [[f"{start}:", f"{what}."]] if what else []
        yield exchange, said


def _sentence(row: Row) -> Sentence:
    own = Sentence(row["attack"], "an attack from another package succeeds: see its documents")
    return SENTENCES.get(row["attack"], own)


def _said(row: Row, seeds: str) -> list[str]:
    tried, means = _sentence(row)
    bars = ", ".join(
        f"{name} {figure(row[key])}"
        for name, key in (("guessing", "chance"), ("the model alone", "model_alone"))
        if row[key] is not None
    )
    metric = WORDS.get(str(row["metric"]), str(row["metric"]))
    beside = "; ".join(filter(None, (bars, seeds)))
    means = means.format(**_names_and_numbers(row))
    said = [f"Leaks: {means}."]
    if row["verdict"] == "undecided":
        said = [f"Open: whether {means}.", f"{seeds} cannot decide; run more (--repeats)."]
    said.append(f"Tried ({row['attack']}): {tried}; {metric} {figure(row['value'])} ({beside}).")
    changes = row["detail"].get("to_change")
    if changes:
        ways = [
            f"{' or '.join(settings_text(each['settings']) for each in some)} ({WHY[why]})"
            for why, some in groupby(changes, itemgetter("why"))
        ]
        said.append(f"To change: {', or '.join(ways)}.")
    elif changes is not None:
        left = REMAINS.get(row["attack"], ELSE)
        said.append(f"No setting that this job accepts takes it away: {left}.")
    return said


def _names_and_numbers(row: Row) -> dict[str, str]:
    """What stands in a sentence's braces; results of earlier versions have no numbers."""
    detail: Row = row["detail"]
    about, known = detail.get("about", {}), detail.get("known_rows", detail.get("anchors"))
    exact = row["metric"] == "relative_error" and row["value"] <= EXACTLY
    return {
        "label": about.get("label_party", "the label party"),
        "feature": about.get("feature_party", "the feature party"),
        "n": f"{about['columns']} " if about else "",
        "people": f"all {about['people']:,} people" if about else "people",
        "known": f"{known} people" if about and known else "some people",
        "read": "compute" if exact else "estimate",
    }


def settings_text(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings by section, as a job file has them; a section without any is left out."""
    said = [
        f"[{section}] {', '.join(f'{key} = {value!r}' for key, value in keys.items())}"
        for section, keys in settings.items()
        if keys
    ]
    without = [f" without [{section}]" for section, keys in settings.items() if not keys]
    return " with ".join(said) + "".join(without)
