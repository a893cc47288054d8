#!/usr/bin/env bash
# tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS, as the toolboxes' script takes them. srun starts one
# process for each GPU. GPUS_PER_NODE=0: on machines without GPUs, over gloo.
set -euo pipefail

if [ $# -lt 4 ]; then
    echo "$0 takes PARTITION JOB_NAME CONFIG WORK_DIR, got $# arguments" >&2
    exit 2
fi
tasks=${GPUS:-8} on_node=${GPUS_PER_NODE:-8}
gres=(--gres="gpu:$on_node" --ntasks-per-node="$on_node")
[ "$on_node" != 0 ] || gres=()
read -ra more <<<"${SRUN_ARGS:-}"
# --kill-on-bad-exit: a process that is lost ends the others
exec srun --partition="$1" --job-name="$2" "${gres[@]}" --ntasks="$tasks" --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 "${more[@]}" \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$3" --work-dir "$4" --launcher slurm "${@:5}"
