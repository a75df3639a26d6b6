#!/usr/bin/env bash
# Three banks and a relay on one machine, each in a folder of its own: run.sh [FOLDER]
# Between companies each bank's commands run at that bank, and people read the six words aloud
# where --yes stands here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
relay=127.0.0.1:${PORT:-7000}
mkdir -p "${1:-three-banks}" && cd "${1:-three-banks}"
mkdir north south west
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

python "$here/people.py"
for bank in north south west; do
    securevfl party init $bank --folder $bank
    cp "$here/$bank.toml" $bank/party.toml
done
sed "s/127.0.0.1:7000/$relay/" "$here/loans.toml" > north/loans.toml
securevfl relay --listen "$relay" 2> relay.log &

# North invites; south and west join, each with a code of its own.
(cd north && exec securevfl party invite loans.toml --yes) > invitation.txt &
signing=($!)
for bank in south west; do
    until code=$(grep "^tell $bank, " invitation.txt | grep -o '[^ ]*$'); do sleep 0.2; done
    (cd $bank && exec securevfl party join "$code" --yes) > $bank/agreed.txt &
    signing+=($!)
done
for each in "${signing[@]}"; do wait "$each"; done
cat invitation.txt

training=()
for bank in west south north; do
    (cd $bank && exec securevfl party run loans.toml) > $bank/run.txt 2>&1 &
    training+=($!)
done
for each in "${training[@]}"; do wait "$each"; done
cat north/run.txt
ls ./*/models/*
