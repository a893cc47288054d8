#!/usr/bin/env bash
# Build the compiled operators with AddressSanitizer and UBSan in a folder of their own, and run with them the library's own
# test, random calls of it (csrc/tests/fuzz.cpp) and the operators' tests, or a script.
#
# bash tests/kernels/native/sanitize.sh [PYTHON [SCRIPT ARGUMENT...]]     a minute to build, some more to run
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=$(realpath --no-symlinks "$(command -v "${1:-python}")") # a link into a virtual environment stays a link
shift || true
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
files=(swin_backbone csrc tests setup.py README.md pyproject.toml)
git ls-files -z --cached --others --exclude-standard "${files[@]}" | tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"
flags='-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined'
CFLAGS=$flags LDFLAGS='-fsanitize=address,undefined' "$python" setup.py --quiet build_ext --inplace >&2
native=$copy/swin_backbone/kernels/native
for program in unit fuzz; do
  "${CXX:-c++}" -std=c++17 $flags "csrc/tests/$program.cpp" "$native/libswin.so" "-Wl,-rpath,$native" -o "$program"
done
# torch's own allocations are not leaks of ours, and torch itself refuses one that is too large; the runtimes must be there
# before Python.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH=$copy
if [ $# -gt 0 ]; then
  "$python" "$@"
else
  ./unit
  ./fuzz "${SEED:-1}" 3000
  "$python" -m pytest -q -p no:cacheprovider tests/kernels/native/operators
fi
