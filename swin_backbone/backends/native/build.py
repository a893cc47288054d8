"""Build the compiled operators with setuptools: the same sources once for each instruction set.

Each instruction set has its own library, and only one library is loaded. So the linker cannot mix their functions, and
no instruction runs on a processor that does not support it. `setup.py` runs this file without importing the package.
"""

import copy
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Optional

from setuptools import Extension
from setuptools.command.build_ext import build_ext

SWITCH = 'SWIN_BACKBONE_NATIVE'
SOURCES = sorted(Path(__file__).parent.joinpath('csrc').glob('*.cpp'))
AVX512 = [
    '-mavx512f',
    '-mavx512bw',
    '-mavx512vl',
    '-mavx512dq',
    '-mfma',
    '-mf16c',
    *('-DCPU_CAPABILITY' + end for end in ('=AVX512', '_AVX512')),
]
INSTRUCTION_SETS = {
    'avx2': ['-mavx2', '-mfma', '-mf16c', '-DCPU_CAPABILITY=AVX2', '-DCPU_CAPABILITY_AVX2'],
    'avx512': AVX512,
    'avx512_bf16': [*AVX512, '-mavx512bf16'],
}
# The -Wno-*uninitialized flags: GCC warns about its own intrinsics header, where a value is undefined on purpose.
FLAGS = [
    '-std=c++17',
    '-O3',
    '-fopenmp',
    '-fno-math-errno',
    '-fno-trapping-math',
    '-fvisibility=hidden',
    '-Wno-maybe-uninitialized',
    '-Wno-uninitialized',
    '-Wno-unknown-pragmas',
]

# A program that asks the environment's own torch. It runs in a separate process, since an isolated build of pip may not
# see or import torch.
ASK_TORCH = """
import json, torch
from torch.utils import cpp_extension
print(json.dumps([torch.__version__, cpp_extension.include_paths(), cpp_extension.library_paths(),
                  int(torch.compiled_with_cxx11_abi())]))
"""


def library_name(instruction_set: str, torch_version: str) -> str:
    """The name of a library. It has torch's minor version, since each one has a different C++ interface."""
    major, minor = torch_version.split('.')[:2]
    return f'_{instruction_set}_torch_{major}_{minor}'


def extensions() -> list[Extension]:
    """The extensions to build. Where they cannot be built, the list is empty and one printed sentence says why."""
    if os.environ.get(SWITCH) == '0':
        return []
    if sys.platform != 'linux' or platform.machine() != 'x86_64':
        return _without(f'they are for Linux on x86-64, not {sys.platform} on {platform.machine()}')
    asked = subprocess.run([sys.executable, '-I', '-c', ASK_TORCH], capture_output=True, text=True)
    if asked.returncode:
        return _without('there is no torch to build them with; install torch first')
    version, include, libraries, abi = json.loads(asked.stdout.splitlines()[-1])
    return [
        Extension(
            f'swin_backbone.backends.native.{library_name(name, version)}',
            [os.path.relpath(source) for source in SOURCES],
            depends=[str(header) for header in SOURCES[0].parent.glob('*.h')],
            language='c++',
            extra_compile_args=[
                *FLAGS,
                *flags,
                f'-D_GLIBCXX_USE_CXX11_ABI={abi}',
                *(f'-isystem{path}' for path in include),
            ],
            extra_link_args=['-fopenmp'],
            library_dirs=libraries,
            libraries=['torch_cpu', 'c10'],
            optional=True,
        )
        for name, flags in INSTRUCTION_SETS.items()
    ]


class BuildNative(build_ext):
    """Build the libraries in parallel, and say in one sentence which ones failed."""

    def finalize_options(self):
        super().finalize_options()
        given: Optional[int] = getattr(self, 'parallel', None)
        self.parallel = given or min(len(INSTRUCTION_SETS), os.cpu_count() or 1)

    def build_extension(self, ext):
        # The same sources make objects of the same names: each library has a folder of its own for them.
        own = copy.copy(self)
        own.build_temp = str(Path(self.build_temp, ext.name))
        super(BuildNative, own).build_extension(ext)

    def run(self):
        super().run()
        missing = [e.name for e in self.extensions if not Path(self.get_ext_fullpath(e.name)).is_file()]
        if missing:
            _without(f'the compiler did not make {", ".join(missing)}')


def _without(reason: str) -> list[Extension]:
    print(f'swin_backbone: the compiled CPU operators are not built, and not needed: {reason}.', file=sys.stderr)
    return []
