"""Whether the library computes a call, by the modes of torch, the device, the dtype and the processor.

`size_limits.py` has the sizes, and `swin/` the settings of a layer.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ...compat import GRAPH_TRACERS, changes_functions, constant_when_compiled, count_function_modes, has_global_hooks
from ...modes import find_tracer, is_plain_or_fake, needs_torch_op
from ...replace import Reason, is_library_disabled
from .library import DTYPES, GEMM_DTYPES, ISA_VARIABLE, ImagesStruct, ProjectionStruct, get_libswin, load_library
from .memory import empty, is_readable, pack_linear

PRECISION_ATTRIBUTE = '_swin_backbone_precision'  # the attribute of a layer with the precision of `accelerate`


def find_reason_against(x: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> Optional[Reason]:
    """Return the reason why the library refuses `x`; None: it takes `x`.

    The device, the dtype and the modes of torch decide.

    Args:
        dtypes: allowed for `x`; ignored under autocast, where any floating dtype is allowed.
    """
    tracer = find_tracer(x)
    if x.device.type != 'cpu':
        return f'The compiled library is for CPUs, not {x.device.type}.'
    if tracer not in (None, *GRAPH_TRACERS) or (tracer and _is_onnx_export()):
        return f'{tracer} cannot record the compiled library.'
    is_autocast = torch.is_autocast_enabled('cpu') and x.is_floating_point()
    if x.dtype not in dtypes and not is_autocast:
        allowed = ', '.join(map(str, dtypes))
        return f'The compiled library takes {allowed}, or any floating dtype under autocast, not {x.dtype}.'
    if has_global_hooks():
        return 'The compiled library calls no modules, and a hook on all modules is registered.'
    if tracer is None and count_function_modes() and changes_functions():
        return 'The compiled library calls no functions of torch, and a mode of torch receives them.'
    if not (is_plain_or_fake(x) if needs_torch_op() else is_readable(x)):
        return f'The compiled library reads memory, and this {type(x).__name__} has no memory of its own on the CPU.'
    dtype = torch.get_autocast_dtype('cpu') if is_autocast else x.dtype
    return _find_reason_against_process(dtype, tracer != 'torch.export')  # torch.export switches oneDNN off


def find_dtype_and_gradients(layer: nn.Module, *tensors: Optional[Tensor]) -> tuple[torch.dtype, bool]:
    """Return the dtype of a layer's linear layers in torch, and whether autograd records one of the tensors.

    The dtype is autocast's, or float32; or int8, if `accelerate` chose so and no gradient is recorded.
    """
    has_gradients = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if not has_gradients and vars(layer).get(PRECISION_ATTRIBUTE) == 'int8':
        return torch.int8, False
    is_autocast = torch.is_autocast_enabled('cpu')
    return torch.get_autocast_dtype('cpu') if is_autocast else torch.float32, has_gradients


@constant_when_compiled
def _is_onnx_export() -> bool:
    return 'torch.onnx' in sys.modules and torch.onnx.is_in_onnx_export()


@constant_when_compiled
def _find_reason_against_process(dtype: torch.dtype, needs_onednn: bool) -> Optional[Reason]:
    """Return why the library cannot run in the process or the thread; None: it can."""
    if needs_onednn and not torch.backends.mkldnn.enabled:
        return 'torch.backends.mkldnn is switched off; the compiled library follows that switch.'
    if is_library_disabled():
        return 'The compiled library is disabled in this thread.'
    return find_reason_against_dtype(dtype)


@lru_cache(maxsize=len(GEMM_DTYPES) + 1)
def find_reason_against_dtype(dtype: torch.dtype) -> Optional[Reason]:
    """Return why the library does not compute in `dtype` here, see `GEMM_DTYPES`; None: it does."""
    if dtype not in GEMM_DTYPES:
        return f'The compiled library computes in {", ".join(map(str, GEMM_DTYPES))}, not {dtype}.'
    library, reason = load_library()
    if library is None:
        return reason
    if library.isa == 'amx' and not is_gemm_correct(dtype):
        return f'AMX multiplies wrongly here: please report it. {ISA_VARIABLE}=avx512_bf16 takes other instructions.'
    return None


def is_gemm_correct(dtype: torch.dtype) -> bool:
    """Compare one matrix product of the library with torch's, in about 1 ms: return whether they are equal.

    On processors without AMX, tests run the AMX code by emulation.
    """
    with ThreadPoolExecutor(1) as thread:  # without the modes of the caller's thread: fake tensors, autocast, a device
        return thread.submit(_is_gemm_correct, dtype).result()


def _is_gemm_correct(dtype: torch.dtype) -> bool:
    options: dict[str, Any] = dict(dtype=torch.float32, device='cpu')
    image_BCHW = torch.linspace(-1, 1, 2 * 4 * 48 * 32, **options).sin().view(2, 4, 48, 32)
    weight_NCHW = torch.linspace(-9, 9, 96 * 4 * 16 * 16, **options).cos().view(96, 4, 16, 16)
    panels, y_BHWN = pack_linear(weight_NCHW, dtype, unit=1), empty(2, 3, 2, 96)
    images = ImagesStruct(
        pixels=image_BCHW.data_ptr(), batch=2, channels=4, height=48, width=32, stride=tuple(image_BCHW.stride()),
        patch_height=16, patch_width=16,
    )  # fmt: skip
    projection = ProjectionStruct(
        dtype=DTYPES.index(GEMM_DTYPES[dtype]), threads=1, outputs=96, weight=panels.data_ptr()
    )
    get_libswin().embed_forward(byref(images), byref(projection), y_BHWN.data_ptr())
    expected = torch.nn.functional.conv2d(image_BCHW.double(), weight_NCHW.double(), stride=16)
    error = (y_BHWN.permute(0, 3, 1, 2) - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    return bool(error < (1e-5 if GEMM_DTYPES[dtype] is torch.float32 else 2e-2))
