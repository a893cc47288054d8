#!/usr/bin/env bash
# tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# For several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT, or torchrun's options (docs/measurements/gpus.md). Without
# CUDA: CPU, over gloo.
set -euo pipefail
source "$(dirname "$0")/dist_common.sh"
[[ ${2:-} =~ ^[1-9][0-9]*$ ]] || stop "$0 CONFIG GPUS takes a number of processes, got '${2:-}'"
start "$2" train.py "$1" "${@:3}"
