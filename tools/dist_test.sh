#!/usr/bin/env bash
# tools/dist_test.sh CONFIG CKPT GPUS [arguments of tools/test.py]
# For several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT. Without CUDA: processes on the CPU, over gloo.
set -euo pipefail
if [[ ! ${3:-} =~ ^[1-9][0-9]*$ ]]; then
    echo "$0 CONFIG CKPT GPUS takes a number of processes, got '${3:-}'" >&2
    exit 2
fi
exec "${PYTHON:-python}" -m torch.distributed.run --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${PORT:-29500}" --nproc-per-node "$3" \
    "$(dirname "$0")/test.py" "$1" "$2" --launcher pytorch "${@:4}"
