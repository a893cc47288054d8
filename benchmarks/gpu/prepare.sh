#!/usr/bin/env bash
# bash benchmarks/gpu/prepare.sh [3.12]
#
# Fetches what a GPU machine without network lacks, as wheels for its version of CPython on x86-64 Linux, into .wheels,
# which git ignores. Run it on a machine with network, in the project's root, and take .wheels along.
set -euo pipefail
requirements=benchmarks/gpu/requirements.txt
[ -f "$requirements" ] || { echo "prepare: run it in the project's root" >&2; exit 1; }

pip() { "${PYTHON:-python3}" -m pip --disable-pip-version-check --quiet "$@" --no-deps --constraint constraints/onedl.txt; }
platforms=()
for libc in _2_28 _2_27 _2_24 _2_17 2014 1; do platforms+=(--platform "manylinux${libc}_x86_64"); done

rm -rf .wheels
pip download --dest .wheels --requirement "$requirements" --only-binary :all: \
    --python-version "${1:-3.12}" --implementation cp "${platforms[@]}"
# These have no wheels. They are built in an environment without torch, in which mmcv compiles nothing.
MMCV_WITH_OPS=0 pip wheel --wheel-dir .wheels onedl-mmcv onedl-mmdetection
echo "prepare: .wheels has $(ls .wheels | wc -l) wheels, $(du -sm .wheels | cut -f 1) MiB"
