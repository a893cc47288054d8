#!/usr/bin/env bash
# Build the compiled operators with AddressSanitizer and UBSan in a folder of their own, and run with them the library's own
# test, random calls of it (csrc/tests/fuzz.cpp) and the operators' tests, or a script.
#
# bash tests/kernels/native/sanitize.sh [PYTHON [SCRIPT ARGUMENT...]]     a minute to build, three to run
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=$(realpath --no-symlinks "$(command -v "${1:-python}")") # a link into a virtual environment stays a link
shift || true
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# The instruction sets of this processor, by the installed library: those of other processors would be compiled for nothing
isas=$("$python" - swin_backbone/kernels/native/libswin.so <<'ISAS'
import ctypes, sys
swin = ctypes.CDLL(sys.argv[1])
swin.swin_isas.restype = ctypes.c_char_p
print(*[isa.decode() for isa in swin.swin_isas().split() if swin.swin_use_isa(isa) == 0])
ISAS
)
files=(swin_backbone csrc tests pyproject.toml)
git ls-files -z --cached --others --exclude-standard "${files[@]}" | tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"
flags='-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined' # -g1: lines alone
native=$copy/swin_backbone/kernels/native
"$python" - "$native/libswin.so" "$flags" "$isas" <<'BUILD'
import sys
from pathlib import Path
from csrc.build import compile_sources, link_library, target
library, flags, isas = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
link_library(Path(library), compile_sources(Path('build'), target(), flags, isas), target(), flags)
BUILD
printf '%s\n' unit fuzz | xargs -P 2 -I{} \
  "${CXX:-c++}" -std=c++17 $flags "csrc/tests/{}.cpp" "$native/libswin.so" "-Wl,-rpath,$native" -o {}
# torch's own allocations are not leaks of ours, and torch itself refuses one that is too large; the runtimes must be there
# before Python.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH=$copy
if [ $# -gt 0 ]; then
  "$python" "$@"
else
  printf '%s\n' ./unit "./fuzz ${SEED:-1} 3000" | xargs -P 2 -I{} sh -c '{}'
  OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider --numprocesses 2 --dist worksteal tests/kernels/native/operators
fi
