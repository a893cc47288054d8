#!/usr/bin/env bash
# tools/dist_test.sh CONFIG CKPT GPUS [arguments of tools/test.py]
# For several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT, or torchrun's options (docs/measurements/gpus.md). Without
# CUDA: CPU, over gloo.
set -euo pipefail
source "$(dirname "$0")/dist_common.sh"
[[ ${3:-} =~ ^[1-9][0-9]*$ ]] || stop "$0 CONFIG CKPT GPUS takes a number of processes, got '${3:-}'"
start "$3" test.py "$1" "$2" "${@:4}"
