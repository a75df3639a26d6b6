#!/bin/sh
# Measures what docs/results shows and keeps it as docs/results/data/NAME.json; then `make docs`.
#
#   bench/results.sh              everything
#   bench/results.sh crypto a9a   what begins with these words
#
# The number before each command is about how many seconds it took on 2 cores with other work on
# them. Run it where nothing else runs, from a checkout without changes: a result names its commit.
# a9a, credit, icu2012, mnist, wikipedia and mfeat have to be there (`securevfl data get NAME`, or SECUREVFL_DATA),
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

# docs/results/defaults.md
for data in breast_cancer digits a9a credit icu2012 icu2012-714 mfeat-even-odd wikipedia-biology; do
    result "defaults-$data" 60 bench defaults --dataset "$data"
done

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

# docs/results/blind.md
result blind-breast_cancer 20 bench blind --steps 1:64,5:64 --learning-rate 0.3 --rounds 16
result blind-credit 90 bench blind --dataset credit --steps 1:256,5:256,10:256 \
    --learning-rate 0.1 --target-auc 0.69,0.70,0.71 --rounds 200
to_an_auc="--dataset a9a --learning-rate 1 --target-auc 0.90 --rounds 100"
# shellcheck disable=SC2086
{
    result blind-a9a-wan 220 bench blind $to_an_auc --network wan \
        --steps exact:full,exact:4096,20:1024,5:256
    for network in lan intercontinental; do
        result "blind-a9a-$network" 45 bench blind $to_an_auc --network "$network" \
            --steps exact:4096,20:1024,5:256 --repeats 1
    done
}
result blind-auc-exact 80 bench blind --dataset a9a --exchange blind --steps exact:full \
    --rounds 20 --repeats 1
result blind-auc-20 70 bench blind --dataset a9a --exchange blind --steps 20:1024 \
    --loss logistic,taylor-logistic --rounds 20 --learning-rate 1
result blind-auc-5 45 bench blind --dataset a9a --steps 5:256 --rounds 100 --learning-rate 0.5 \
    --repeats 1
result blind-icu2012 50 bench blind --dataset icu2012-714 --steps 5:256 --learning-rate 0.003 \
    --target-auc 0.82 --rounds 60
result blind-ahead-full 35 bench offline --dataset a9a --steps exact:full --rounds 6
result blind-ahead-256 12 bench offline --dataset a9a --steps 5:256

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

# docs/results/scale.md; first, with ROWS 111112, 333334, 1111112 and 5000000:
# `securevfl data make planted-sparse --rows ROWS --seed 17 --to results/planted-ROWS`
result scale-lr 250 bench fdml-scale --shards results/planted-5000000 --epochs 2 \
    --learning-rate 30 --batch-size 10000,1000 --batches-per-message 1,1 --processes
result scale-single 300 bench fdml-scale --shards results/planted-5000000 --epochs 2 \
    --learning-rate 30 --batch-size 10000,1000,1000 --batches-per-message 1,1,2 --precision single \
    --no-alone --processes
result scale-100 400 bench fdml-scale --shards results/planted-5000000 --epochs 2 \
    --learning-rate 10 --batch-size 100,100,100 --batches-per-message 1,10,16 --no-alone
result scale-law 300 bench fdml-scale --learning-rate 30 --batch-size 10000,1000 \
    --batches-per-message 1,1 --no-alone --processes \
    --shards results/planted-111112,results/planted-333334,results/planted-1111112,results/planted-5000000
# And `--rows 333334 --columns COLUMNS --seed 17 --to results/planted-COLUMNS-columns`
result scale-columns 120 bench fdml-scale --learning-rate 30 --batch-size 10000,1000 \
    --batches-per-message 1,1 --no-alone --processes \
    --shards results/planted-870-columns,results/planted-2900-columns,results/planted-8700-columns,results/planted-26100-columns,results/planted-87000-columns
result scale-nn 600 bench fdml-scale --model nn --shards results/planted-5000000 --epochs 4 \
    --standardize --learning-rate 1 --no-alone --batch-size 1000 --batches-per-message 1
result scale-phases 80 bench fdml-scale --shards results/planted-1111112 --learning-rate 30 \
    --epochs 2 --no-alone --batch-size 10000,1000 --batches-per-message 1,1 --profile
