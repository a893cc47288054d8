"""Load the compiled library (csrc/, swin.h) and choose an instruction set.

One file serves every Python and every torch, because the package calls it through ctypes. The structures repeat
csrc/swin.h, field by field. csrc/swin.h explains the fields.
"""

import ctypes
import os
import sys
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

import torch

SWITCH = 'SWIN_BACKBONE_NATIVE'
ISA_VARIABLE = 'SWIN_BACKBONE_ISA'
DTYPES = (torch.float32, torch.bfloat16, torch.int8)  # in the order of `swin_dtype`
# The dtype of matrix products by the dtype of linear layers under autocast. int8 is for inference alone. Without
# instructions for bfloat16, numbers are rounded like autocast's, and multiplied in float32.
GEMM_DTYPES = {**dict(zip(DTYPES, DTYPES)), torch.float16: torch.float32}
PADDING_ATTENDED, PADDING_MASKED, PADDING_AFTER_ROLL = range(3)  # in the order of `swin_padding`
VERSION = 11  # SWIN_VERSION of csrc/swin.h
FILE_NAME = {'win32': 'swin.dll', 'darwin': 'libswin.dylib'}.get(sys.platform, 'libswin.so')
PATH = Path(__file__).with_name(FILE_NAME)


def _make_fields(**of_type: str) -> list[tuple[str, Any]]:
    types = {'i32': c_int32, 'i64': c_int64, 'f32': c_float, 'p': c_void_p, 'p4': c_void_p * 4, 'i64x4': c_int64 * 4}
    return [(name, types[kind]) for kind, names in of_type.items() for name in names.split()]


class BlockStruct(ctypes.Structure):
    """`swin_block`."""

    memory: Any  # tensors, whose addresses the structure has
    _fields_ = [
        *_make_fields(i32='dtype threads', i64='batch height width channels hidden heads'),
        *_make_fields(i64='window_height window_width shift_height shift_width', i32='padding has_norm3'),
        *_make_fields(f32='scale eps1 eps2 eps3', p4='weight bias'),
        *_make_fields(p='norm1_weight norm1_bias norm2_weight norm2_bias norm3_weight norm3_bias'),
        *_make_fields(p='position_bias cosine_scale drop_path'),
    ]


class BlockGradientsStruct(ctypes.Structure):
    """`swin_block_gradients`."""

    _fields_ = [
        *_make_fields(p='x', p4='weight bias'),
        *_make_fields(p='norm1_weight norm1_bias norm2_weight norm2_bias norm3_weight norm3_bias'),
        *_make_fields(p='position_bias cosine_scale'),
    ]


class ProjectionStruct(ctypes.Structure):
    """`swin_projection`."""

    memory: Any  # as in `BlockStruct`
    _fields_ = [
        *_make_fields(i32='dtype threads', i64='outputs', p='weight bias'),
        *_make_fields(i32='has_norm norm_after', f32='eps', p='norm_weight norm_bias'),
    ]


class ProjectionGradientsStruct(ctypes.Structure):
    """`swin_projection_gradients`."""

    _fields_ = _make_fields(p='x weight bias norm_weight norm_bias')


class ImagesStruct(ctypes.Structure):
    """`swin_images`."""

    _fields_ = [
        *_make_fields(p='pixels', i64='batch channels height width', i64x4='stride'),
        *_make_fields(i64='patch_height patch_width'),
    ]


class MapsStruct(ctypes.Structure):
    """`swin_maps`."""

    _fields_ = _make_fields(p='x', i64='batch height width channels')


class ConvolutionStruct(ctypes.Structure):
    """`swin_convolution`."""

    _fields_ = _make_fields(i32='dtype threads tile', i64='batch height width channels outputs', p='weight bias')


class RoiAlignStruct(ctypes.Structure):
    """`swin_roi_align`."""

    _fields_ = [
        *_make_fields(i32='dtype threads', i64='batch channels height width', i64x4='stride'),
        *_make_fields(i64='regions', p='boxes'),
        *_make_fields(i64='bins_height bins_width samples', f32='scale', i32='aligned'),
    ]


class DeformableStruct(ctypes.Structure):
    """`swin_deformable`."""

    _fields_ = _make_fields(i32='threads', i64='batch queries tokens heads channels levels points', p='shapes')


INT64_POINTER = POINTER(c_int64)
PROJECTION_BACKWARD = [POINTER(ProjectionStruct), c_void_p, c_void_p, POINTER(ProjectionGradientsStruct)]
SIGNATURES = {  # of the functions with a `swin_status`
    'swin_use_isa': [c_char_p],
    'swin_pack': [c_int32, c_void_p, c_int64, c_int64, c_int64, c_int32, c_int32, c_void_p],
    'swin_checksum': [c_void_p, c_void_p, c_int64, c_int32, POINTER(c_uint64)],
    'swin_block_saved_size': [POINTER(BlockStruct), INT64_POINTER, INT64_POINTER],
    'swin_block_forward': [POINTER(BlockStruct), c_void_p, c_void_p, c_void_p, c_int64],
    'swin_block_backward': [POINTER(BlockStruct), *[c_void_p] * 4, c_int64, POINTER(BlockGradientsStruct)],
    'swin_embed_forward': [POINTER(ImagesStruct), POINTER(ProjectionStruct), c_void_p],
    'swin_embed_backward': [POINTER(ImagesStruct), *PROJECTION_BACKWARD],
    'swin_merge_forward': [POINTER(MapsStruct), POINTER(ProjectionStruct), c_void_p],
    'swin_merge_backward': [POINTER(MapsStruct), *PROJECTION_BACKWARD],
    'swin_output_norm_forward': [c_void_p, *[c_int64] * 3, *[c_void_p] * 2, c_float, c_int32, c_void_p],
    'swin_output_norm_backward': [*[c_void_p] * 2, *[c_int64] * 3, c_void_p, c_float, c_int32, *[c_void_p] * 3],
    'swin_pack_convolution': [c_void_p, c_int32, c_int64, c_int64, c_int32, c_void_p],
    'swin_convolution_forward': [POINTER(ConvolutionStruct), c_void_p, c_void_p],
    'swin_roi_align_forward': [POINTER(RoiAlignStruct), c_void_p, c_void_p],
    'swin_roi_align_backward': [POINTER(RoiAlignStruct), c_void_p, c_void_p],
    'swin_nms': [c_void_p, c_void_p, c_int64, c_float, c_float, c_int32, c_void_p, INT64_POINTER],
    'swin_deformable_forward': [POINTER(DeformableStruct), *[c_void_p] * 4],
    'swin_deformable_backward': [POINTER(DeformableStruct), *[c_void_p] * 7],
}
ERRORS = {1: ValueError, 2: ValueError, 3: MemoryError}  # SWIN_INVALID, SWIN_UNSUPPORTED, SWIN_NO_MEMORY


class Library:
    """The functions of the library, named without `swin_`. A function raises the library's error."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ('swin_error', 'swin_isa', 'swin_isas', 'swin_int8_products'):
            getattr(library, name).restype = c_char_p
        library.swin_packed_size.argtypes, library.swin_packed_size.restype = [c_int32, c_int64, c_int64], c_int64
        for name, types in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype, function.errcheck = types, c_int32, self._check
            setattr(self, name[len('swin_') :], function)

    def _check(self, status: int, *_: Any) -> None:
        if status:
            raise ERRORS.get(status, RuntimeError)(self._library.swin_error().decode())

    def __getattr__(self, name: str) -> Any:  # for mypy: `__init__` sets them
        raise AttributeError(name)

    def packed_size(self, dtype: torch.dtype, N: int, K: int) -> int:
        """Return how many numbers of `dtype` a packed weight (N, K) has."""
        return self._library.swin_packed_size(DTYPES.index(dtype), N, K)

    @property
    def has_bf16_gemm(self) -> bool:
        """Whether the instruction set in use has products of bfloat16.

        Without products of bfloat16, the library rounds, and multiplies in float32.
        """
        return self.packed_size(torch.bfloat16, 1, 2) == 2  # otherwise 4, since packed numbers have 4 bytes

    @property
    def isa(self) -> str:
        """The name of the instruction set in use."""
        return self._library.swin_isa().decode()

    @property
    def int8_products(self) -> str:
        """The instructions of products in eight bits of the instruction set in use."""
        return self._library.swin_int8_products().decode()

    @property
    def isas(self) -> list[str]:
        """The names of all instruction sets of the build, the best first."""
        return self._library.swin_isas().decode().split()


@lru_cache(maxsize=1)
def load_library() -> tuple[Optional[Library], Optional[str]]:
    """Load the library with the instruction set that the environment names, or else the processor's best.

    The variables are SWIN_BACKBONE_ISA and ATEN_CPU_CAPABILITY.

    Returns:
        The library and None; or None and the reason of the failure, in a sentence.
    """
    if os.environ.get(SWITCH) == '0':
        return None, f'{SWITCH}=0 is set.'
    if not PATH.is_file():
        return None, 'The compiled library is not built: reinstall swin_backbone.'
    try:
        loaded = ctypes.CDLL(str(PATH))
        if loaded.swin_version() != VERSION:
            return None, 'The compiled library was built for another version of swin_backbone: reinstall it.'
        library = Library(loaded)
    except (OSError, AttributeError) as error:
        return None, f'The compiled library does not load: {error}.'
    try:
        library.use_isa(_read_isa())
    except ValueError as error:
        return None, f'The compiled library does not run: {error}.'
    return library, None


@lru_cache(maxsize=1)
def get_libswin() -> Library:
    """Return the loaded library. Without a library, raise a RuntimeError with the reason."""
    library, reason = load_library()
    if library is None:
        raise RuntimeError(reason)
    return library


def library_path() -> str:
    """Return the path of the compiled library, for `register_custom_ops_library` of ONNX Runtime's options.

    Raises:
        RuntimeError: if the library is not built or does not run here. The message has the reason.
    """
    get_libswin()
    return str(PATH)


def _read_isa() -> Optional[bytes]:
    """Return the instruction set of the environment, also of torch's variable; None: the best."""
    limit = os.environ.get('ATEN_CPU_CAPABILITY', '').lower()
    name = os.environ.get(ISA_VARIABLE) or (limit if limit in ('default', 'avx2') else None)
    return name.encode() if name else None
