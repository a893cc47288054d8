#!/usr/bin/env bash
# The program of `make install`. A finished step is skipped without a network request.
set -euo pipefail

stop() {
    echo "install: $*" >&2
    exit 1
}

python="$VENV/bin/python"
# Most modules are never imported, and Python compiles the imported ones.
pip_install=("$python" -m pip --disable-pip-version-check install --quiet --no-compile)
pip=("${pip_install[@]}" --constraint "$VENV/constraints.txt")

if [ ! -x "$python" ]; then
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
        stop "PYTHON=$PYTHON is no Python 3.9 or newer; name one with: make install PYTHON=..."
    "$PYTHON" -m venv "$VENV" || stop "$PYTHON cannot make a virtual environment (on Debian: apt install python3-venv)"
fi

# Read pip's output while ninja compiles: lines begin with [files done/all files]. Show the progress: on a terminal in one
# changing line, in a log at each tenth.
show_progress() {
    local line said=0 tenth
    while IFS= read -r line; do
        [[ $line =~ ^[[:space:]]*\[([0-9]+)/([0-9]+)\] ]] || continue
        tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
        if [ -t 1 ]; then
            printf '\rinstall: mmcv: %s of %s files compiled' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        elif ((tenth > said)); then
            echo "install: mmcv: ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} files compiled"
        fi
        said=$tenth
    done
    if [ -t 1 ]; then echo; fi
}

# The stand-in of this package has no file.
mmcv_is_built() { "$python" -c 'import torch, mmcv._ext; mmcv._ext.__file__' 2>/dev/null; }

# mmcv is installed without C++ operators, and swin_backbone's operators replace them (docs/measurements/mmcv_ops.md). An
# installed mmcv stays. MMCV=compiled builds the operators, after a check of compiler and headers: no wheel fits this torch.
case "${MMCV:=none}" in
none | compiled) ;;
*) stop "MMCV takes compiled or none, got $MMCV" ;;
esac
if [ "$MMCV" = compiled ] && ! mmcv_is_built; then
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        stop "mmcv is built from source and needs a C++ compiler, and there is none (on Debian: apt install g++)"
    header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h
    [ -f "$header" ] || stop "mmcv is built from source and needs Python's headers, and there is no $header (on Debian: apt install python3-dev)"
fi

# The package's library needs only a compiler, and is compiled while pip installs the packages.
"${pip_install[@]}" --constraint "constraints/$STACK.txt" \
    setuptools wheel ninja packaging psutil
library_log="$VENV/library-build.log"
"$python" setup.py --quiet build_ext --inplace >"$library_log" 2>&1 &
library=$!
trap 'kill "$library" 2>/dev/null || true' EXIT

if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "install: $TORCH"
    "${pip_install[@]}" "$TORCH"
fi
# No step below may replace torch, nor the triton of a CUDA build.
pin_what_is_there() { "$python" -c "import $1; print('$1==' + $1.__version__)" 2>/dev/null; }
{
    grep -v '^triton==' "constraints/$STACK.txt"
    pin_what_is_there torch
    pin_what_is_there triton || grep '^triton==' "constraints/$STACK.txt"
} >"$VENV/constraints.txt"

mmcv=$(sed -n '/^\(onedl-\)\?mmcv==/p' "constraints/$STACK.txt")
if [ "$MMCV" = compiled ] && ! mmcv_is_built; then
    echo "install: building mmcv (10 to 20 minutes on 2 cores)"
    log="$VENV/mmcv-build.log"
    # An installed mmcv without operators is replaced. With ninja on the PATH, torch compiles on all cores. One --verbose
    # cancels --quiet, and the second prints the output of ninja. pip's cache is off: a wheel without operators has the same
    # name and version.
    "$python" -m pip --disable-pip-version-check uninstall --quiet --yes "${mmcv%%==*}" 2>/dev/null
    PATH="$(cd "$VENV" && pwd)/bin:$PATH" MMCV_WITH_OPS=1 "${pip[@]}" -vv --no-build-isolation --no-cache-dir "$mmcv" 2>&1 |
        tee "$log" | show_progress ||
        stop "mmcv did not build; the compiler's output is in $log"
    mmcv_is_built || stop "mmcv has no compiled operators; the output of its build is in $log"
elif ! "$python" -c 'import mmcv' 2>/dev/null; then
    # An isolated build has no torch, so that mmcv builds without operators, in seconds. pip's cache is off: a wheel with
    # operators has the same name.
    echo "install: $mmcv, without its compiled operators"
    PIP_CONSTRAINT="$VENV/constraints.txt" "${pip[@]}" --use-pep517 --no-cache-dir "$mmcv" || stop "pip cannot install $mmcv"
fi
SWIN_BACKBONE_NATIVE=0 "${pip[@]}" --no-build-isolation --editable ".[$STACK,test,lint]"
wait "$library" || stop "the library did not build; what was said is in $library_log"
grep '^swin_backbone: ' "$library_log" >&2 || true # the reason of a missing library
echo "install: $VENV is ready"
