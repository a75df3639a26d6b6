"""What differential-privacy noise on predictions costs, and what it promises: FDML, Fig. 4."""

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from securevfl.reports.sweep import NOISE

A9A = "sweep noise --fresh --label-party second --repeats 2 --workers 1"

EXPERIMENT: Experiment[Settings] = Experiment(
    name="noise",
    about=__doc__ or "",
    runs={
        "lr": Run(300, f"{A9A} --model lr --noise 0,0.25,0.5,1,3,10"),
        "nn": Run(600, f"{A9A} --model nn --noise 0,0.5,3,10 --learning-rate 3"),
    },
    quick="--repeats 1 --noise 0,1 --epochs 1 --learning-rate 3",
    tables={"noise": by_columns(*NOISE)},
)

if __name__ == "__main__":
    main(EXPERIMENT)
