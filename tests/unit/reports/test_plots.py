import re
from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from securevfl.reports.page import flat
from securevfl.reports.plots import curve_svg, drawing, logarithmic, power_of_ten, words
from securevfl.shown import curve

MANY = {f"fedbcd-p, Q = {steps}, μ = {mu}": [0.5, 0.7, 0.9] for steps in (1, 25, 100)
        for mu in (0, 0.1, 1)}  # fmt: skip
CURVES: dict[str, dict[str, Any]] = {
    "fifteen decades": curve("t", "round", "deviation", [1, 2, 3], {"a": [7e-16, 1e-8, 0.6]},
                             log_y=True),
    "less than a decade": curve("t", "known rows", "error", [0, 2, 4], {"a": [1.19, 0.6, 0.49]},
                                log_y=True),
    "both logarithmic": curve("t", "rounds", "error", [2, 29, 640], {"a": [0.8, 0.1, 0.04]},
                              log_x=True, log_y=True),
    "a decade and a half": curve("t", "batch", "AUC", [56, 979, 2002], {"a": [0.5, 0.6, 0.7]},
                                 lines={"own model": 0.6, "chance": 0.5}, log_x=True),
    "nothing above 0": curve("t", "round", "deviation", [1, 2], {"a": [0.0, 0.0]}, log_y=True),
    "many": curve("t", "rounds", "AUC", [1, 2, 3], MANY, lines={"target": 0.8}),
    "many levels": curve("t", "noise multiplier z\nepsilon", "a long label of an axis, (log) too",
                         range(21), {"a": [0.1 * x for x in range(21)]})
    | {"ticks": [f"{x / 8:g}\n{1000 / (x + 1):.4g}" for x in range(21)]},
}  # fmt: skip


def texts(shown: dict[str, Any]) -> tuple[Bbox, dict[str, Bbox]]:
    """The frame and every text that is drawn in it."""
    figure = drawing(shown)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    (axes,) = figure.axes
    hidden = set()
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    found = [
        text
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text not in hidden and text.get_visible() and text.get_text()
    ]
    frame = Bbox.from_bounds(0, 0, *canvas.get_width_height())
    return frame, {
        f"{n} {text.get_text()}": text.get_window_extent() for n, text in enumerate(found)
    }


@pytest.mark.parametrize("name", CURVES)
def test_no_text_of_a_figure_is_cut_or_covers_another(name: str) -> None:
    frame, boxes = texts(CURVES[name])
    assert len(boxes) > 5
    for text, box in boxes.items():
        assert frame.x0 - 1 <= box.x0 < box.x1 <= frame.x1 + 1, text
        assert frame.y0 - 1 <= box.y0 < box.y1 <= frame.y1 + 1, text
    for (text, box), (other, its) in combinations(boxes.items(), 2):
        shared = Bbox.intersection(box.padded(-1), its.padded(-1))
        assert shared is None or shared.width * shared.height == 0, (text, other)


def test_an_axis_is_logarithmic_where_its_values_span_a_decade() -> None:
    assert logarithmic(CURVES["fifteen decades"], "y")
    assert logarithmic(CURVES["both logarithmic"], "x")
    for name in ("less than a decade", "nothing above 0", "many"):
        assert not logarithmic(CURVES[name], "y")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.0, "1"), (0.05, "0.05"), (2000.0, "2000"), (1e-12, "10⁻¹²"), (2e6, "2·10⁶")],
)
def test_ticks_of_logarithms_are_short(value: float, shown: str) -> None:
    assert power_of_ten(value) == shown


def test_a_figure_takes_the_colours_and_the_font_of_its_page_and_keeps_to_itself() -> None:
    svg = curve_svg(CURVES["a decade and a half"])
    assert set(re.findall(r"(?:fill|stroke): (?!none|var\(--\w+, #\w{6}\))[^;\"]*", svg)) == set()
    assert "font-family" not in svg
    assert "<style" not in svg
    names = re.findall(r'\bid="([^"]+)"', svg)
    assert all(f"#{name}" in svg for name in names)


def test_words_say_where_curves_begin_turn_and_end() -> None:
    description = words(CURVES["a decade and a half"])
    assert description == (
        "AUC over batch: a rises from 0.5 at 56 to 0.7 at 2002; own model is at 0.6; "
        "chance is at 0.5."
    )
    turning = curve(
        "t", "rounds", "error", [2.0, 53.0, 273.0], {"a": [1.0, 11.1, 1.0], "b": [0.0] * 3}
    )
    assert words(turning) == (
        "Error over rounds: a goes from 1 at 2 to 1 at 273, highest 11.1 at 53; "
        "b stays at 0 from 2 to 273."
    )


def test_words_say_what_a_logarithm_leaves_out_and_sum_up_many() -> None:
    zeros = curve("t", "round", "error", [1, 2, 3], {"a": [0.0, 1e-3, 1.0]}, log_y=True)
    assert words(zeros).endswith("Values of 0 are not drawn: 1.")
    assert "9 curves, which end between 0.9 at 3 (" in words(CURVES["many"])
    one = curve("t", "round", "error", [1, 2], {"a": [None, 0.5], "b": [None, None]})
    assert "a is 0.5 at 2; b has no values" in words(one)


def test_settings_are_shown_by_their_full_names() -> None:
    job = {"party": [{"name": "bank", "data": "bank.csv"}], "noise": (0, 1.5), "l2": None}
    assert list(flat({"job": job, "privacy": {}, "repeats": 3})) == [
        ("job.party.bank.name", "bank"),
        ("job.party.bank.data", "bank.csv"),
        ("job.noise", "0, 1.5"),
        ("job.l2", "-"),
        ("privacy", "-"),
        ("repeats", "3"),
    ]
