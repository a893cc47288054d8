#!/usr/bin/env bash
# tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# For several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT. Without CUDA: processes on the CPU, over gloo.
set -euo pipefail
if [[ ! ${2:-} =~ ^[1-9][0-9]*$ ]]; then
    echo "$0 CONFIG GPUS takes a number of processes, got '${2:-}'" >&2
    exit 2
fi
exec "${PYTHON:-python}" -m torch.distributed.run --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${PORT:-29500}" --nproc-per-node "$2" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
