#!/usr/bin/env bash
# tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# NNODES, NODE_RANK, MASTER_ADDR, PORT: for several machines, as torchrun takes them. Without CUDA: CPU, over gloo.
set -euo pipefail
exec "${PYTHON:-python}" "$(dirname "$0")/launch.py" \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$2" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
