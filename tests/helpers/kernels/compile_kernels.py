"""Compile the Triton kernels for GPUs that need not be there, and say what a program of each needs.

python tests/helpers/kernels/compile_kernels.py [--capability 80 90] [--window 7 12] [--head-dim 32] [--dtype bfloat16]

Prints a line of JSON for each kernel: registers and bytes of stack, to which registers are spilled, of a thread;
bytes of shared memory of a program. It must run without TRITON_INTERPRET.
"""

import argparse
import json
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from swin_backbone.kernels.triton import tiles
from swin_backbone.kernels.triton.kernels import backward, forward

CUOBJDUMP = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'
IN_FLOAT32 = ('bias_ptr', 'lse_ptr', 'delta_ptr', 'grad_bias_ptr', 'grad_padding_ptr')
POINTERS = {torch.float16: '*fp16', torch.bfloat16: '*bf16', torch.float32: '*fp32'}


def compile_kernel(kernel, capability, options, constants, dtype):
    options = dict(options)
    launch = {name: options.pop(name) for name in ('num_warps', 'num_stages')}
    constants = {**constants, **options}
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = 'constexpr'
        elif name.endswith('_ptr'):
            signature[name] = '*fp32' if name in IN_FLOAT32 else POINTERS[dtype]
        else:
            signature[name] = 'fp32' if name == 'scale' else 'i32'
        if name.endswith(('_ptr', '_stride')):
            attributes[(i,)] = [['tt.divisibility', 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget('cuda', capability, 32), options=launch)
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(compiled.asm['cubin'])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, '--dump-resource-usage', file.name], capture_output=True, text=True).stdout
    registers, stack = map(int, re.search(r'REG:(\d+) STACK:(\d+)', usage).groups())
    return dict(registers=registers, stack=stack, shared=compiled.metadata.shared, **launch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--capability', nargs='+', type=int, default=[80, 90])
    parser.add_argument('--window', nargs='+', type=int, default=[7, 12])
    parser.add_argument('--head-dim', nargs='+', type=int, default=[32])
    parser.add_argument('--dtype', choices=[str(dtype).split('.')[1] for dtype in POINTERS], default='bfloat16')
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    torch.backends.cuda.matmul.allow_tf32 = True
    for capability, side, head_dim, shifted in product(args.capability, args.window, args.head_dim, (False, True)):
        qkv_13C = torch.empty(1, 3 * 4 * head_dim, dtype=dtype, device='meta')
        bias_hNN = torch.empty(4, side**2, side**2, dtype=dtype, device='meta')
        cut = tiles.Tiles(qkv_13C, bias_hNN, 2, 200, 336, [side, side], [side // 2 * shifted] * 2, False)
        constants = cut.make_constants()
        kernels = [(forward.attend, cut.make_query_options(), constants)]
        kernels.append((backward.attend_backward, cut.make_key_options(), {**constants, 'NEEDS_PADDING': True}))
        if cut.choose_grid(cut.make_key_options())[2] > 1:
            kernels.append((backward.attend_backward_queries, cut.make_query_options(num_stages=1), constants))
        for kernel, options, constants in kernels:
            what = dict(kernel=kernel.__name__, capability=capability, window=side, head_dim=head_dim, shifted=shifted)
            print(json.dumps({**what, **compile_kernel(kernel, capability, options, constants, dtype)}), flush=True)


if __name__ == '__main__':
    main()
