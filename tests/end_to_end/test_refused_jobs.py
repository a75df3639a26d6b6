"""Jobs that do not go together are refused in one line, before anything is sent."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.training import Environment, train
from tests import transfer_data
from tests.jobs import Settings, SmallKeys, breast_cancer, digits, job_of
from tests.made_data import made
from tests.transfer_data import FTL

Row = tuple[str, str | Settings | None, Settings]
BFV_BOTH = {"scheme": "bfv", "hide": "both"}
NOISE = {"noise_multiplier": 1.0}
LABEL_NOISE = {"privacy": {**NOISE, "label_noise_multiplier": 1.0}}
GRADIENT_NOISE = {"gradient_clip": 1.0, "gradient_noise_multiplier": 1.0}
DBCD = {"algorithm": "dbcd", "rounds": 300, "tolerance": 1e-7, "eval_every": 0, "l1": 0.01}
L1_STEPS = {**DBCD, "algorithm": "fedbcd-p", "l1": 0.03}
FDML = {"algorithm": "fdml", "rounds": 40, "batch_size": 64, "learning_rate": 0.5, "start": "zero"}
FEW = {"rounds": 3, "local_steps": 4, "batch_size": 152, "learning_rate": 0.3, "eval_every": 0}
HEAD = {
    "head": "logistic", "representation": 3, "rounds": 6, "batch_size": 32, "learning_rate": 0.5,
    "schedule": "inverse-sqrt", "l2": 0.01, "proximal": 0.1,
}  # fmt: skip
BLIND = {"loss": "taylor-logistic", "start": "zero", "eval_every": 0}
NETWORK = {"model": "mlp", "hidden": [4], "activation": "tanh", "batch_size": 64}
FRACTIONS = {"value_fraction_bits": 20, "feature_fraction_bits": 8}

# By what refuses: the data, what its jobs have in common, and told, exchange and settings of each.
REFUSED: dict[str, tuple[Callable[[], VerticalDataset], Settings, list[Row]]] = {
    "dbcd": (breast_cancer, DBCD, [
        ("residuals and curvature of all rows in clear", "bfv", {}),
        ("at least 3 parties.* exchange 'blind', hides it", "masked", {}),
        (r"either job\.l1 above 0 or \[dbcd\] path", None, {"l1": 0.0}),
        (r"either job\.l1 above 0 or \[dbcd\] path", None, {"dbcd": {"path": [0.1]}}),
        ("falling", None, {"l1": 0.0, "dbcd": {"path": [0.1, 0.1]}}),
        ("under noise", "dp", {"l1": 0.0, "dbcd": {"path": [0.2, 0.1]}, "privacy": NOISE}),
        ("working_set = 'greedy'", None, {"dbcd": {"size": 3}}),
        ("linear models", None, {"model": "mlp"}),
        ("all rows", None, {"batch_size": 64}),
        ("searches for its steps", None, {"learning_rate": 0.1, "local_steps": 3}),
        ("searches for its steps", None, {"schedule": "inverse-sqrt", "local_steps": 3}),
        ("searches for its steps", None, {"divide_by_sqrt_parties": True, "local_steps": 3}),
        ("momentum in its place", None, {"acceleration": "nesterov"}),
        ("follows curvature", None, {"local_rule": "frozen", "local_steps": 3}),
        ("label_noise_multiplier", "dp", LABEL_NOISE),
        ("gradient_clip", "dp",
         {"privacy": {**NOISE, **GRADIENT_NOISE}, "learning_rate": 0.1, "local_steps": 2}),
    ]),
    "dbcd, ten classes": (digits, DBCD, [("multinomial", None, {})]),
    "l1": (breast_cancer, L1_STEPS, [
        ("a number of local_steps", None, {"local_steps": "exact"}),
        ("no acceleration", None, {"acceleration": "nesterov"}),
        ("linear models", None, {"model": "mlp", "hidden": [2]}),
        ("in clear, not 'bfv'", "bfv", {}),
        ("fdml has no proximal step", None, {"algorithm": "fdml", "learning_rate": 0.1}),
    ]),
    "exact rule": (lambda: breast_cancer(3), {"local_rule": "exact", "learning_rate": 0.1}, [
        ("use exchange 'plain', not 'masked'", "masked", {}),
        ("use exchange 'plain', not 'dp'", "dp", {}),
        ("use exchange 'plain', not 'bfv'", "bfv", {}),
        ("sends ΣH: not with predictions = 'masked'", {"predictions": "masked"}, {}),
        ("local_rule = 'exact' has none", None, {"local_steps": "exact", "learning_rate": "auto"}),
    ]),
    "fdml": (breast_cancer, FDML, [
        ("not with exchange 'bfv'", "bfv", {}),
        ("at least 3 parties", {"predictions": "masked"}, {}),
        ("target_auc", None, {"target_auc": 0.9}),
        ("no rounds in common", None, {"acceleration": "nesterov"}),
        ("proximal", None, {"proximal": 0.1}),
        (r"\[fdml\] is for", None, {"algorithm": "fedsgd", "fdml": {"staleness": 3}}),
        ("all parties hold the labels", "dp", LABEL_NOISE),
        ("1 iterations old", None, {"fdml": {"staleness": 0, "batches_per_message": 2}}),
        ("4 iterations old", None, {"fdml": {"staleness": 3, "batches_per_message": 5}}),
    ]),
    "he_per_step": (breast_cancer, FEW, [
        ("needs a homomorphic scheme", {"scheme": "plain", "he_per_step": True}, {}),
        ("no round_trips = 1", {"scheme": "bfv", "he_per_step": True, "round_trips": 1}, {}),
        ("hide = 'residuals'", {**BFV_BOTH, "he_per_step": True}, {"loss": "squared"}),
        *((message, {"scheme": "bfv", "he_per_step": True}, settings) for message, settings in (
            ("needs a learning_rate", {"learning_rate": "auto"}),
            ("'fdml' repeats no products", {"algorithm": "fdml"}),
            ("no proximal", {"proximal": 0.1}),
            ("no acceleration", {"acceleration": "nesterov"}),
            ("follows networks themselves", {"local_rule": "gauss-newton"}),
        )),
    ]),
    "head": (lambda: made(1, 3, rows=96, columns=30), {**HEAD, "model": "mlp", "hidden": [4]}, [
        ("fedbcd-p or fedbcd-s, not algorithm 'fdml'", None, {"algorithm": "fdml"}),
        ("needs a learning_rate", None, {"learning_rate": "auto", "schedule": None}),
        ("trains with loss = 'logistic', not 'squared'", None, {"loss": "squared"}),
        ("'curvature' or 'frozen'", None, {"local_rule": "gauss-newton"}),
        ("no gradient at start", None, {"start": "zero", "model": "linear", "hidden": None}),
        ("representation is what a head is over", None, {"head": "sum"}),
        ("by itself and in clear or noisy: not with", "masked", {}),
        ("by itself and in clear or noisy: not with", {"predictions": "masked"}, {}),
        ("a gradient through a head reveals d", "bfv", {}),
        ("'bfv' as it is set", BFV_BOTH, {}),
        ("precision = 'single' is for networks", None,
         {"model": "linear", "hidden": None, "precision": "single"}),
    ]),
    "cnn": (
        lambda: made(1, 2, rows=96, columns=30),
        {**HEAD, "model": "cnn", "channels": [2, 3], "image_width": 5},
        [
            ("model = 'cnn' needs image_width", None, {"image_width": None}),
            ("30 columns are not an image with rows of 7 pixels", None, {"image_width": 7}),
            ("not an image with rows of 3 pixels that is large enough", None, {"image_width": 3}),
            (r"job\.channels = \[2, 3\] needs model = 'cnn'", None, {"model": "mlp"}),
        ],
    ),
    "networks": (breast_cancer, NETWORK, [
        ("start = 'zero' gives a network no gradient", None, {"start": "zero"}),
        ("hide = 'both' takes linear models only", BFV_BOTH, {"loss": "squared"}),
        ("gradient_clip needs local_rule = 'curvature'", "dp",
         {"privacy": {**NOISE, **GRADIENT_NOISE}, "local_rule": "gauss-newton",
          "learning_rate": 0.1}),
        ("round_trips = 1 takes linear models", {"scheme": "bfv", "round_trips": 1}, {}),
        ("party 'party1': model = 'custom' needs a module", None,
         {"model": "custom", "hidden": None, "activation": None}),
        (r"job\.hidden = \[4\] needs model = 'mlp'", None, {"model": "linear"}),
    ]),
    "networks, ten classes": (digits, NETWORK, [
        ("networks at feature parties take two classes", "bfv", {"learning_rate": 0.1}),
    ]),
    "squared hinge, ten classes": (digits, {"loss": "squared-hinge"}, [
        ("'squared-hinge' needs two classes, the data have 10", None, {}),
    ]),
    "dp": (breast_cancer, {**FEW, "rounds": 6, "batch_size": 114}, [
        ("needs privacy.noise_multiplier, or a budget", "dp", {}),
        ("is for exchanges that add noise", "plain", {"privacy": NOISE}),
        ("infinite end to end without gradient_clip", "dp", {"privacy": {"budget": 3}}),
        ("needs gradient_noise", "dp", {"privacy": {**NOISE, "gradient_clip": 1}}),
        ("needs gradient_clip", "dp", {"privacy": {**NOISE, "gradient_noise_multiplier": 1}}),
        ("noise_seed promises nothing", "dp",
         {"privacy": {"noise_multiplier": 9, "noise_seed": 1, "release_budget": 90}}),
        ("gaussian only", "dp",
         {"privacy": {"mechanism": "laplace", "budget": 3, "gradient_clip": 1}}),
        ("at each party", {"scheme": "dp", "predictions": "masked"}, {"privacy": NOISE}),
        ("homomorphic", {"scheme": "dp", "hide": "both"}, {"privacy": NOISE}),
    ]),
    "real targets": (lambda: load("diabetes"), {"loss": "squared"}, [
        ("'squared' for regression", None, {"loss": "logistic"}),
        ("'squared' for regression", None, {"loss": "taylor-logistic"}),
        ("real targets have no AUC", None, {"target_auc": 0.9}),
        ("needs two classes", None, {"algorithm": "ftl"}),
        ("without a public bound", "dp", LABEL_NOISE),
    ]),
    "ftl": (transfer_data.made, FTL, [
        ("supports 'taylor-logistic' only", None, {"loss": "squared"}),
        (r"brings its own layers: \[ftl\] units", None, {"model": "mlp"}),
        ("start = 'zero' gives a network no gradient", None, {"start": "zero"}),
        ("local_rule = 'curvature' or 'gauss-newton'", None, {"local_rule": "frozen"}),
        ("local_rule = 'curvature' or 'gauss-newton'", None, {"local_rule": "exact"}),
        ("l1 is for linear models", None, {"l1": 0.1}),
        ("have biases", None, {"intercept": False}),
        ("acceleration", None, {"acceleration": "nesterov"}),
        ("takes linear models", None, {"local_steps": "exact", "learning_rate": "auto"}),
        ("overlap = 41: 41 rows, expected 2 to 40", None, {"ftl": {"overlap": 41}}),
        ("predictions that could be masked|at least 3", "masked", {}),
        ("hide = 'both'", "bfv", {}),
        ("round_trips", {**BFV_BOTH, "round_trips": 1}, {}),
        ("no proximal", {**BFV_BOTH, "he_per_step": True}, {"proximal": 0.1}),
        ("bound", BFV_BOTH, {"ftl": {"activation": "relu"}}),
        ("was learned", BFV_BOTH, {"eval_every": "never"}),
        ("no epsilon covers labels", "dp", LABEL_NOISE),
        ("nothing end to end", "dp", {"privacy": {**NOISE, **GRADIENT_NOISE}}),
        ("units with a bound", "dp", {"privacy": NOISE, "ftl": {"activation": "relu"}}),
    ]),
    "ftl, three parties": (lambda: breast_cancer(3), FTL, [("takes 2 parties, not 3", None, {})]),
    "ftl, ten classes": (digits, FTL, [("needs two classes", None, {})]),
    "blind": (lambda: made(6), BLIND, [
        ("'blind' takes fedsgd and fedbcd-p", "blind", {"algorithm": "fedbcd-s"}),
        ("fdml", "blind", {"algorithm": "fdml"}),
        ("linear models", "blind", {"model": "mlp", "learning_rate": 0.1, "start": "random"}),
        ("shares do not support l1", "blind",
         {"l1": 0.1, "local_steps": 2, "learning_rate": 0.1}),
        ("takes no local_rule = 'gauss-newton'", "blind", {"local_rule": "gauss-newton"}),
        ("reveals no parameters before the last round: drop target_auc", "blind",
         {"target_auc": 0.9}),
        ("no parameters before the last round: drop eval_every", "blind", {"eval_every": 5}),
        ("loss = 'hinge'.*: with more classes take scheme = 'bfv', or a label", "blind",
         {"loss": "hinge", "local_rule": "frozen", "learning_rate": 0.1}),
        ("drop hide", {"scheme": "blind", "hide": "both"}, {}),
        ("drop hide", {"scheme": "blind", "predictions": "masked"}, {}),
        *((f"drop {name}", {"scheme": "blind", name: value}, {}) for name, value in {
            "key_bits": 2048, "engine": "seal", "round_trips": 1, "he_per_step": True,
            "prediction_bound": 4.0, **FRACTIONS,
        }.items()),
        ("period is for loss", {"scheme": "blind", "period": 64}, {}),
        *((f"{name} is a setting of 'blind', not of 'bfv'", {"scheme": "bfv", name: value}, {})
          for name, value in {"offline_rounds": 3, "checks": 8, "period": 64}.items()),
        *(("scores is a setting of 'blind' and of", {"scheme": name, "scores": "rows"}, {})
          for name in ("plain", "bfv")),
    ]),
}  # fmt: skip


def nothing_may_be_sent(sender: str, receiver: str, data: bytes) -> bytes:
    raise AssertionError((sender, receiver, data))


@pytest.mark.parametrize(
    ("what", "message", "exchange", "settings"),
    [
        pytest.param(what, *row, id=f"{what}: {row[0]}")
        for what, (_, _, rows) in REFUSED.items()
        for row in rows
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line_before_anything_is_sent(
    what: str, message: str, exchange: str | Settings | None, settings: Settings
) -> None:
    data, common, _ = REFUSED[what]
    both: dict[str, Any] = {**common, **settings}
    for name in common.keys() & settings.keys():
        if isinstance(common[name], Mapping):
            both[name] = {**common[name], **settings[name]}
    environment = Environment(keys=SmallKeys(), tamper=nothing_may_be_sent)
    with pytest.raises(ConfigError, match=message) as refused:
        train(job_of(exchange, **both), data(), environment)
    assert "\n" not in str(refused.value)
