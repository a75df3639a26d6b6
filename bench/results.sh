#!/bin/sh
# Measures what docs/results shows and keeps it as docs/results/data/NAME.json; then `make docs`.
#
#   bench/results.sh              everything
#   bench/results.sh crypto a9a   what begins with these words
#
# The number before each command is about how many seconds it took on 2 cores with other work on
# them. Run it where nothing else runs, from a checkout without changes: a result names its commit.
# a9a, cifar10, credit and mnist have to be there (`securevfl data get NAME`, or SECUREVFL_DATA),
set -eu
cd "$(dirname "$0")/.."
wanted=${*:-all}

result() {
    name=$1 seconds=$2
    shift 2
    for word in $wanted; do
        case $word:$name in all:* | "$word:$word"*) ;; *) continue ;; esac
        printf '%s (about %s s): ' "$name" "$seconds"
        started=$(date +%s)
        .venv/bin/securevfl "$@" --quiet --json "docs/results/data/$name.json"
        echo "$(($(date +%s) - started)) s"
        break
    done
}


# docs/results/horizontal.md
horizontal() {
    name=$1 seconds=$2
    shift 2
    result "horizontal-$name" "$seconds" bench horizontal "$@"
}
# Five quarters of an hour together on two idle cores; `--repeats 2` takes two thirds.
methods=fedavg,fedavgm,fedadam,scaffold,feddc,fedbcgd,fedbcgd+
coded=top-k,fedpaq,fedbcgd:qsgd,fedbcgd+:qsgd
changes=fedbcgd:freezing,fedbcgd:unshared,fedbcgd:no-momentum
horizontal cifar10-0.6 2300 --images cifar10 --dirichlet 0.6 --method "$methods,$coded,$changes"
horizontal cifar10-0.1 1250 --images cifar10 --dirichlet 0.1 --method "$methods"
for mix in 0.6 0.1; do
    horizontal "mnist-$mix" 250 --images mnist --dirichlet "$mix" --method "$methods,fedbcgd:qsgd" \
        --max-rounds 60 --tuning-rounds 40
done
horizontal blocks 300 --images cifar10 --dirichlet 0.6 --method fedbcgd --blocks 2,10
horizontal layers 150 --images cifar10 --dirichlet 0.6 --method fedbcgd --cut layers
