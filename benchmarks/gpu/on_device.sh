#!/usr/bin/env bash
# bash benchmarks/gpu/on_device.sh [--cpu] check|report|tune|compile ...
#
# Runs in the project's root on the GPU machine, with the wheels of prepare.sh in .wheels. Each stage writes what it
# prints to $OUT/STAGE.txt, and its figures to $OUT/STAGE.json ($OUT: work_dirs/gpu):
#   check    the tests of the kernels
#   report   benchmarks/gpu/report.py: the kernels against the reference, and all backbones, eager
#   tune     the same for the kernels alone, with other launch options, compute-sanitizer and Nsight Compute
#   compile  the same for backbones with torch.compile, beside eager
# A stage ends after $LIMIT seconds (570). The exit status is 1 if a stage failed, and the next ones run all the same.
# --cpu shows on a CPU, on small maps, that all of it works. It installs nothing.
set -uo pipefail
OUT=${OUT:-work_dirs/gpu} LIMIT=${LIMIT:-570} PYTHON=${PYTHON:-python3}
PEERS=mmdet,timm,transformers,torchvision
TESTS=(tests/backends/triton tests/benchmarks/gpu/test_{operations,gpu_models,checks}.py)

stop() {
    echo "on_device: $*" >&2
    exit 2
}

[ -f benchmarks/gpu/report.py ] || stop "run it in the project's root"
cpu=
[ "${1:-}" = --cpu ] && cpu=yes && shift
[ $# -gt 0 ] || stop "name a stage: check, report, tune or compile"
for stage in "$@"; do
    case $stage in check | report | tune | compile) ;; *) stop "there is no stage $stage: name check, report, tune or compile" ;; esac
done

if [ -z "$cpu" ]; then
    site=$PWD/.wheels/installed
    if [ ! -d "$site" ]; then
        "$PYTHON" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --target "$site" .wheels/*.whl || { rm -rf "$site"; stop "the wheels in .wheels do not install"; }
    fi
    export PYTHONPATH=$site:$PWD
fi
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
mkdir -p "$OUT"

size=(--batch 2)
[ -n "$cpu" ] && size=(--device cpu --arch nano --size 32 --batch 1 --v2-window 4 --windows 3 --runs 1)

failed=0
for stage in "$@"; do
    case $stage in
    check)
        options=(--verbose)
        [ -n "$cpu" ] && options=(--collect-only) # the suite runs these tests on a CPU anyway
        # Without TF32: the tests compare a GPU's float32 with a CPU's.
        command=(env NVIDIA_TF32_OVERRIDE=0 "$PYTHON" -m pytest "${options[@]}" "${TESTS[@]}")
        ;;
    report) command=(--peers "$PEERS") ;;
    tune) command=(--only kernels --tune --tools) ;;
    compile) command=(--only backbones --peers "$PEERS" --compile) ;;
    esac
    [ "$stage" = check ] || command=("$PYTHON" -m benchmarks.gpu.report "${size[@]}" --json "$OUT/$stage.json" "${command[@]}")
    timeout "$LIMIT" "${command[@]}" 2>&1 | tee "$OUT/$stage.txt"
    status=${PIPESTATUS[0]}
    [ "$status" = 124 ] && echo "on_device: $stage was stopped after $LIMIT s" | tee -a "$OUT/$stage.txt"
    [ "$status" = 0 ] || failed=1
done
exit "$failed"
