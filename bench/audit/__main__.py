"""What leaks, under which exchange, to whom: every attack on jobs with nothing set."""

from bench.experiment import Experiment, Run, Settings, main

EXPERIMENT: Experiment[Settings] = Experiment(
    name="audit",
    about=__doc__ or "",
    runs={
        **{
            data: Run(900, f"audit --dataset {data} --exchange plain,dp,bfv --repeats 3")
            for data in ("credit", "a9a")
        },
        "minibatches": Run(
            400,
            "audit --dataset credit --exchange bfv --repeats 3 --batch-size 120 "
            "--learning-rate 0.1 --local-steps 1 "
            "--attack labels_from_gradients,labels_across_jobs,selection_matrix",
        ),
    },
    quick="--repeats 1 --attack labels_from_gradients,selection_matrix",
)

if __name__ == "__main__":
    main(EXPERIMENT)
