import numpy as np
import pytest

from securevfl.protocols.vertical.dbcd_block import LASTS, NO_LAST, STEPS, SUFFICIENT, LineSearch

ROWS = 20


def search(
    generator: np.random.Generator, *, factor: float = 1.0, lasts: np.ndarray = LASTS
) -> LineSearch:
    """Half the squared distance to a point, without penalties."""
    goal = generator.standard_normal((ROWS, 1))
    start = np.zeros((ROWS, 1))
    direction = factor * goal + 0.3 * generator.standard_normal((ROWS, 1))
    last = goal - direction
    return LineSearch(
        lambda there: 0.5 * float(np.sum((there - goal) ** 2)),
        start,
        direction,
        last,
        table=np.zeros((len(STEPS), len(lasts))),
        lasts=lasts,
        slope=float(np.sum(-goal * direction)),
    )


def test_the_best_of_the_grid_along_the_direction(generator: np.random.Generator) -> None:
    line = search(generator, factor=3.0, lasts=NO_LAST)
    values = [line.objective((step, 0)) for step in range(len(STEPS))]
    assert line.best() == (int(np.argmin(values)), 0)
    assert STEPS[line.best()[0]] < 1


def test_along_the_last_step_it_gets_lower(generator: np.random.Generator) -> None:
    state = generator.bit_generator.state
    alone = search(generator, factor=0.5, lasts=NO_LAST)
    generator.bit_generator.state = state
    both = search(generator, factor=0.5)
    place = both.best()
    assert place[1] > 0
    assert both.objective(place) < alone.objective(alone.best())


def test_no_step_is_better_than_one_uphill(generator: np.random.Generator) -> None:
    line = search(generator, factor=-1.0, lasts=NO_LAST)
    assert line.best() == (0, 0)


@pytest.mark.parametrize(("penalty", "moves"), [(0.0, True), (1e6, False)])
def test_penalties_count(generator: np.random.Generator, penalty: float, *, moves: bool) -> None:
    line = search(generator)
    line.table = penalty * np.repeat(STEPS[:, None], len(LASTS), axis=1)
    assert (line.best() != (0, 0)) == moves


def test_a_step_decreases_enough(generator: np.random.Generator) -> None:
    line = search(generator, lasts=NO_LAST)
    # A slope far steeper than the function: no step keeps what it promises.
    line.slope *= 2 / SUFFICIENT
    assert line.best() == (0, 0)


def test_the_grid_has_no_step_and_a_whole_one() -> None:
    assert STEPS[0] == LASTS[0] == NO_LAST[0] == 0
    assert 1.0 in STEPS
    assert (np.diff(STEPS[1:]) < 0).all()
