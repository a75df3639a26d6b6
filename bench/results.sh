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

# docs/reference/exchanges.md
result opening-breast_cancer 20 bench tradeoff --exchange plain,bfv --local-steps 1,10,exact \
    --tuning per-q --network wan --repeats 3
result opening-credit 60 bench tradeoff --dataset credit --exchange plain,bfv --batch-size 256 \
    --local-steps 1,10,exact --tuning per-q --target-auc 0.71 --network wan --repeats 3

# docs/results/engines.md
result tradeoff 20 bench tradeoff
result crypto 180 bench crypto

# docs/results/encrypted-or-clear.md
for size in 256 1024; do
    for network in lan wan intercontinental; do
        result "a9a-$size-$network" 70 bench tradeoff --dataset a9a --exchange plain,bfv \
            --local-steps 1,10 --target-auc 0.90 --max-rounds 600 --eval-every 2 \
            --learning-rate 0.5 --batch-size "$size" --network "$network"
    done
done

# docs/results/local-steps.md
result credit-one-rate 30 bench tradeoff --dataset credit --exchange plain,bfv --batch-size 256 \
    --target-auc 0.69,0.70,0.71 --max-rounds 600 --learning-rate 0.1 --repeats 3
result credit-own-rates 40 bench tradeoff --dataset credit --exchange plain,bfv --batch-size 256 \
    --target-auc 0.69,0.70,0.71 --max-rounds 600 --tuning per-q --repeats 3
result he-per-step-breast_cancer 100 bench tradeoff --exchange paillier,bfv --key-bits 2048 \
    --local-steps 1,5,10 --he-per-step --repeats 3
result he-per-step-credit 300 bench tradeoff --dataset credit --exchange paillier,bfv \
    --key-bits 2048 --local-steps 1,5,10 --batch-size 256 --target-auc 0.69,0.70 \
    --max-rounds 60 --learning-rate 1 --he-per-step

# docs/results/audit.md
for data in credit a9a; do
    result "audit-$data" 900 audit --dataset "$data" --exchange plain,dp,bfv --repeats 3
done
result audit-minibatches 400 audit --dataset credit --exchange bfv --repeats 3 --batch-size 120 \
    --learning-rate 0.1 --local-steps 1 \
    --attack labels_from_gradients,labels_across_jobs,selection_matrix

# docs/results/noise.md
result noise-lr 300 sweep noise --fresh --label-party second --model lr \
    --noise 0,0.25,0.5,1,3,10 --repeats 2 --workers 1
result noise-nn 300 sweep noise --fresh --label-party second --model nn --noise 0,0.5,3,10 \
    --repeats 2 --learning-rate 3 --workers 1

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
