"""What an audit found, in sentences for people who decide: leaks first, then what is open."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from securevfl.reports.matrix import exchanges_of, figure
from securevfl.reports.tables import Row
from securevfl.shown import seeds_of

HIDDEN = (
    "[exchange] scheme = 'blind', or scheme = 'bfv' with hide = 'both' and [job] loss = "
    "'taylor-logistic'; both without [privacy], and where the job permits them"
)
BATCHES = "[job] batch_size = 'full', or [exchange] scheme = 'blind' where the job permits it"
FIRST = ("leaks", "undecided")
REST = {
    "no_leak_found": "Tried, and no leak found",
    "immune": "The exchange leaves nothing to read for",
    "not_run": "Not run",
}
WORDS = {
    "relative_error": "error",
    "recovered_fraction": "share read",
    "epsilon_lower_bound": "ε of at least",
    "auc": "AUC",
    "top_precision": "precision of the top ranks",
    "tpr_at_1_percent_fpr": "share found at 1 % false alarms",
}


class Sentence(NamedTuple):
    """Of an attack: what it tries, what its success means, and what to change in the job file."""

    tried: str
    means: str
    change: str


SENTENCES = {
    "rotation_twin": Sentence(
        "whether other features of the same people would have given the same messages",
        "the messages say more about people than how far they are from each other",
        HIDDEN,
    ),
    "gram": Sentence(
        "how far any two people are from each other, from predictions in training",
        "the label party knows which people resemble each other, in the other party's columns",
        HIDDEN,
    ),
    "anchors": Sentence(
        "everyone's columns, by somebody at the label party who knows a few people",
        "who knows about as many people as the other party has columns reads those of others",
        HIDDEN,
    ),
    "components": Sentence(
        "the other party's columns one by one, as they do not depend on each other",
        "the label party reads single columns of all people without knowing anybody",
        HIDDEN,
    ),
    "binary_columns": Sentence(
        "the other party's yes/no columns, from predictions in training",
        "the label party reads yes/no answers of all people without knowing anybody",
        HIDDEN,
    ),
    "features_across_jobs": Sentence(
        "everyone's columns, from predictions of several jobs on the same people",
        "several jobs together show what none of them shows alone",
        HIDDEN,
    ),
    "binary_columns_across_jobs": Sentence(
        "the other party's yes/no columns, from predictions of several jobs on the same people",
        "several jobs together show yes/no answers of all people to who knows nobody",
        HIDDEN,
    ),
    "held_out_features": Sentence(
        "columns of people who are only scored, by somebody who knows some of them",
        "scores give the other party's columns of people who were never trained on",
        "[job] eval_every = 'never', which leaves the job without a score",
    ),
    "labels_from_residuals": Sentence(
        "everyone's label, from what feature parties receive in each round",
        "other parties read labels of single people better than their own data allow",
        "[exchange] scheme = 'bfv' without [privacy], or, under dp, [privacy] "
        "label_noise_multiplier",
    ),
    "labels_from_gradients": Sentence(
        "labels, from a feature party's own gradients",
        "a feature party ranks people by their label better than its own data allow",
        BATCHES,
    ),
    "labels_from_components": Sentence(
        "labels, from what transfer learning sends",
        "the other party knows labels of the shared people",
        "[exchange] scheme = 'bfv'",
    ),
    "labels_from_unit_gradients": Sentence(
        "labels, from gradients of a network's hidden units",
        "the other party ranks people by their label better than its own data allow",
        "fewer rounds, or fewer units in [ftl]",
    ),
    "features_from_units": Sentence(
        "columns, from hidden units of people, by somebody who knows some of them",
        "one party computes the other's columns of all shared people",
        "[exchange] scheme = 'bfv'",
    ),
    "integer_decoding": Sentence(
        "labels, as gradients of few whole numbers add up in few ways",
        "a feature party decodes labels of single people",
        "[job] start = 'random' and batch_size = 'full'",
    ),
    "repeated_start": Sentence(
        "every party's secret starting point, from the seed in the job file",
        "whoever has the job file undoes what hides labels in the first gradients",
        "[job] start = 'random', with parties as processes",
    ),
    "labels_across_jobs": Sentence(
        "labels, from gradients of several jobs on the same people",
        "a feature party learns labels over jobs that no single job shows",
        BATCHES,
    ),
    "changed_labels": Sentence(
        "whose label was corrected between two jobs",
        "a feature party names the person whose label changed, and how",
        "train on the earlier labels until enough have changed",
    ),
    "labels_of_groups": Sentence(
        "labels, from the first gradients of many jobs on few people each",
        "jobs on few people tell a feature party more of them than the models do",
        "more people in each job",
    ),
    "labels_by_difference": Sentence(
        "labels of a few people whom some jobs leave out",
        "a feature party reads labels of the people left out",
        "train on the same people as before, or leave out more of them at once",
    ),
    "labels_from_parameters": Sentence(
        "labels, from the finished parts of several models",
        "finished models tell a feature party labels of the people they were trained on",
        "more people, fewer columns, or fewer jobs on the same people",
    ),
    "words_of_rounds": Sentence(
        "anything hidden, from the random-looking words of shares",
        "shares are not as random as they must be: do not use this exchange",
        "nothing: report it",
    ),
    "ciphertext_ratio": Sentence(
        "features, from replies that were not made fresh",
        "ciphertexts carry the other party's features: do not use this exchange",
        "nothing: report it",
    ),
    "ciphertext_noise": Sentence(
        "features, from the noise inside replies",
        "the noise of replies carries the other party's features",
        "nothing: report it",
    ),
    "jacobi_symbol": Sentence(
        "features, from a number-theoretic trace in Paillier replies",
        "replies carry the other party's yes/no columns",
        "nothing: report it",
    ),
    "ckks_key": Sentence(
        "the secret key, from decrypted values that travel back",
        "another party has the key, and with it all that was encrypted",
        "[exchange] scheme = 'bfv'",
    ),
    "crafted_query": Sentence(
        "the secret key, by a feature party that sends forged replies",
        "a party that cheats gets the key, and with it every label",
        "no setting: take only partners who follow the protocol",
    ),
    "selection_matrix": Sentence(
        "labels, by a feature party that sends forged columns",
        "a party that cheats reads labels of the people it chooses",
        "no setting takes it away: take only partners who follow the protocol; [job] label_guard "
        "= 'visits' limits it to the few rounds that `train` then names",
    ),
    "equality_solving": Sentence(
        "columns, from scores, by somebody who knows the whole model",
        "each score gives some of the other party's columns of that person",
        "do not give the parts of the model to one party",
    ),
    "epsilon": Sentence(
        "whether the noise protects as well as the job claims",
        "the claimed ε is not true for these data",
        "[job] bounds for all columns, or more noise",
    ),
}


def findings(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """By exchange: a paragraph for every leak and open question, and what else was tried.

    Only the job itself counts, neither what-ifs nor controls.
    """
    for exchange in exchanges_of(rows):
        own: dict[str, list[Row]] = {}
        for row in rows:
            if row["exchange"] == exchange and not _other(row):
                own.setdefault(row["attack"], []).append(row)
        worst = {
            attack: min(each, key=lambda row: (*FIRST, row["verdict"]).index(row["verdict"]))
            for attack, each in own.items()
        }
        said = [
            _said(row, seeds_of(rows))
            for verdict in FIRST
            for row in worst.values()
            if row["verdict"] == verdict
        ]
        for verdict, start in REST.items():
            names = [
                _sentence(row).tried if verdict == "no_leak_found" else attack
                for attack, row in worst.items()
                if row["verdict"] == verdict
            ]
            said += [f"{start}: {'; '.join(names)}."] if names else []
        yield exchange, said


def _other(row: Row) -> bool:
    return bool(row["detail"]["control"] or row["detail"]["what_if"])


def _sentence(row: Row) -> Sentence:
    own = Sentence(row["attack"], "an attack from another package succeeds", "see its documents")
    return SENTENCES.get(row["attack"], own)


def _said(row: Row, seeds: str) -> str:
    tried, means, change = _sentence(row)
    bars = [
        f"{name} {figure(row[key])}"
        for name, key in (("guessing", "chance"), ("the model alone", "model_alone"))
        if row[key] is not None
    ]
    metric = WORDS.get(str(row["metric"]), str(row["metric"]))
    beside = f" ({', '.join(bars)}; {seeds})" if bars else f" ({seeds})"
    start = f"Tried {tried} ({row['attack']}). {metric[:1].upper()}{metric[1:]} "
    figures = f"{figure(row['value'])}{beside}"
    if row["verdict"] == "undecided":
        return f"{start}{figures}: open, as {seeds} cannot decide; run more (--repeats)."
    return f"{start}{figures}: {means}. To change: {change}."
