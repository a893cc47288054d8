#!/usr/bin/env bash
# tools/dist_test.sh CONFIG CKPT GPUS [arguments of tools/test.py]
# NNODES, NODE_RANK, MASTER_ADDR, PORT: for several machines, as torchrun takes them. Without CUDA: CPU, over gloo.
set -euo pipefail
source "$(dirname "$0")/dist_common.sh"
[[ ${3:-} =~ ^[1-9][0-9]*$ ]] || stop "$0 CONFIG CKPT GPUS takes a number of processes, got '${3:-}'"
start "$3" test.py "$1" "$2" "${@:4}"
