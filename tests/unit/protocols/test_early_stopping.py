from math import inf, nan

import pytest

from securevfl.protocols.session.early_stopping import EarlyStopping


def decided(rule: EarlyStopping, losses: list[float], first: int = 0) -> list[str]:
    words = [rule.decide(first + index, loss) for index, loss in enumerate(losses)]
    letters = {"best": "k", "backtrack": "b", "stop": "s"}
    return ["".join(letters[n] for n in letters if getattr(w, n)) for w in words]


def rule_of(*, tolerance: float = 0.01, window: int = 1) -> EarlyStopping:
    return EarlyStopping(baseline=1.0, tolerance=tolerance, window=window)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([2.0, 1.0, 0.5], ["k", "k", "k"]),
        # A little more than the best is neither.
        ([0.5, 0.505, 0.4], ["k", "", "k"]),
        ([0.5, 0.52, 0.4, 0.6], ["k", "b", "k", "b"]),
        # Measured from the best, not from the last.
        ([0.5, 0.507, 0.514, 0.3], ["k", "", "b", "k"]),
        # Three rounds together gain less than the tolerance.
        ([0.5, 0.498, 0.496, 0.494], ["k", "k", "k", "s"]),
        ([0.5, 0.496, 0.492, 0.488, 0.486, 0.484], ["k", "k", "k", "k", "k", "s"]),
        ([0.5, 0.5, 0.5, 0.5], ["k", "", "", "s"]),
        # Ways back are no rounds of these three.
        ([0.5, 0.6, 0.6, 0.6, 0.6, 0.45], ["k", "b", "b", "b", "b", "k"]),
        ([0.5, 0.6, 0.6, 0.6, 0.6, 0.6], ["k", "b", "b", "b", "b", "bs"]),
        ([0.5, 0.6, 0.6, 0.6, 0.6, 0.4, 0.6], ["k", "b", "b", "b", "b", "k", "b"]),
        # Five since the last best one, whatever lies between.
        ([0.5, 0.6, 0.6, 0.505, 0.6, 0.6, 0.6], ["k", "b", "b", "", "b", "b", "bs"]),
    ],
)
def test_words_of_full_batches(losses: list[float], words: list[str]) -> None:
    assert decided(rule_of(), losses) == words


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("window", [1, 5])
def test_a_loss_that_is_not_finite_is_a_way_back_wherever_it_comes(bad: float, window: int) -> None:
    for before in range(12):
        rule = rule_of(window=window, tolerance=0.0)
        decided(rule, [0.5 - 0.01 * index for index in range(before)])
        assert decided(rule, [bad], before) == ["b"]
    rule = rule_of(window=window)
    assert decided(rule, [bad] * 5) == ["b", "b", "b", "b", "bs"]
    assert not rule.learned
    rule = rule_of(window=window)
    assert decided(rule, [bad, 0.5]) == ["b", "k"]


def test_tolerance_0_never_ends_a_run_that_does_not_rise() -> None:
    assert not any("s" in word for word in decided(rule_of(tolerance=0.0), [0.5] * 500))


def test_with_minibatches_windows_count() -> None:
    rule = rule_of(window=5)
    # The start is kept until there is a window.
    assert decided(rule, [0.9, 5.0, 0.1, 3.0]) == ["k", "", "", ""]
    assert decided(rule, [0.5], 4) == ["k"]
    assert rule.bests[-1] == pytest.approx(1.9)
    # The next window leaves the first out.
    assert decided(rule, [0.4], 5) == ["k"]
    assert rule.bests[-1] == pytest.approx(1.8)


@pytest.mark.parametrize(
    ("rise", "spread", "back"),
    [
        (0.04, 0.0, False),  # within 5 % of the baseline
        (0.06, 0.0, True),
        (0.06, 0.02, False),  # within 3 standard errors more
        (0.3, 0.02, True),
    ],
)
def test_a_rise_must_be_beyond_noise(rise: float, spread: float, back: bool) -> None:
    rule = rule_of(window=5, tolerance=0.0)
    decided(rule, [0.5] * 5)
    # Of standard deviation spread·√2.5, so of standard error spread/√2.
    window = [0.5 + rise + spread * shift for shift in (2.0, -2.0, 0.0, 1.0, -1.0)]
    rule.losses = window[:-1]
    assert decided(rule, window[-1:], 9) == (["b"] if back else [""])


def test_with_minibatches_three_windows_must_gain_something() -> None:
    rule = rule_of(window=5, tolerance=0.01)
    words = decided(rule, [0.5] * 100)
    assert words.index("s") == 5 - 1 + 3 * 5


def test_after_a_way_back_a_window_fills_anew() -> None:
    rule = rule_of(window=5, tolerance=0.0)
    words = decided(rule, [0.5] * 5 + [2.0] * 9)
    assert words[4] == "k"
    # One such loss makes a mean of 0.8 and too little is sure; then all of it is.
    first = words.index("b")
    assert words[first + 1 : first + 5] == [""] * 4
    assert rule.backtracks >= 1


@pytest.mark.parametrize(
    ("losses", "learned"),
    [
        ([], False),
        ([1.5, 1.01], False),
        ([1.5, 0.99], True),
        ([0.99, 7.0], True),  # what is kept is the best
        ([1.0], False),
    ],
)
def test_a_run_has_learned_if_its_best_is_below_the_constant(
    losses: list[float], learned: bool
) -> None:
    rule = rule_of()
    decided(rule, losses)
    assert rule.learned == learned


def test_without_announcements_the_last_window_decides() -> None:
    """Losses are noted then, and no word is decided."""
    rule = rule_of(window=5)
    for losses, learned in (([0.1, *[2.0] * 5], False), ([9.0, *[0.9] * 5], True)):
        rule.losses = losses
        assert rule.learned == learned


@pytest.mark.parametrize("window", [1, 5])
def test_early_stopping_goes_on_from_its_state(window: int) -> None:
    losses = [1.0, 0.8, 0.9, 0.7, 0.69, 0.71, 0.9, 0.68, 0.67, 0.9, 0.9, 0.9, 0.9, 0.9, 0.6, 0.6]
    for cut in range(len(losses)):
        whole, first, rest = (rule_of(window=window) for _ in range(3))
        expected = decided(whole, losses)
        words = decided(first, losses[:cut])
        rest.restore(first.arrays())
        assert [*words, *decided(rest, losses[cut:], cut)] == expected
        assert (rest.losses, rest.bests, rest.backtracks) == (
            whole.losses,
            whole.bests,
            whole.backtracks,
        )
