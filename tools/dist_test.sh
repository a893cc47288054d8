#!/usr/bin/env bash
# tools/dist_test.sh CONFIG CKPT GPUS [arguments of tools/test.py]
# NNODES, NODE_RANK, MASTER_ADDR, PORT: for several machines, as torchrun takes them. Without CUDA: CPU, over gloo.
set -euo pipefail
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$3" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$1" "$2" --launcher pytorch "${@:4}"
