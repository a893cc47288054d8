"""The operators `torch.ops.swin_backbone.*`, which call the compiled library.

The library gets addresses and sizes (csrc/swin.h). An operator checks shapes, dtypes and devices, and that a tensor has
all of its memory. The library checks everything else. Without a library, an operator raises the reason.

Layout: B batch, H W height and width of a map, C channels.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_int64, c_void_p
from functools import wraps
from typing import Any, Optional

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .library import (
    DTYPES,
    PRODUCTS,
    Block,
    BlockGradients,
    Images,
    Library,
    Maps,
    Projection,
    ProjectionGradients,
    load,
)

WEIGHTS = tuple(f'packed {name} weight' for name in ('qkv', 'proj', 'fc1', 'fc2'))
TRANSPOSED = tuple(name.replace('packed', 'transposed') for name in WEIGHTS)
# The order of vectors in the arguments of a block, and of their gradients.
VECTORS = (
    *("norm1's weight", "norm1's bias", "qkv's bias", "proj's bias", "norm2's weight", "norm2's bias"),
    *("fc1's bias", "fc2's bias", "norm3's weight", "norm3's bias"),
)
LINE = 64  # bytes; saved memory begins at a multiple
LARGEST_WINDOW = 16  # places along a side
HEAD_DIMS = range(8, 65, 8)  # channels of a head
Sizes = Sequence[int]
float32 = torch.float32
Optionals = Sequence[Optional[Tensor]]
Compute = Callable[..., Any]

_torch_library = torch.library.Library('swin_backbone', 'FRAGMENT')


class NotInMemory(ValueError):
    """The numbers of a tensor are not at its address: a view that negates, or a subclass that stores them elsewhere."""


class Misaligned(NotInMemory):
    """The address of a tensor is no multiple of the size of its numbers."""


def operator(schema: str) -> Callable[[Compute], Compute]:
    """Register a function as the operator of this schema, for tensors on a CPU.

    A direct call of the function saves the time of torch's dispatcher.
    """
    name, arguments = schema.split(' -> ')[0].rstrip(')').split('(', 1)
    required = [
        (i, declared.split()[1])
        for i, declared in enumerate(arguments.split(', '))
        if re.match(r'Tensor(\(a!\))? ', declared)
    ]

    def register(function: Compute) -> Compute:
        def with_tensors(*args: Any) -> Any:
            for i, argument in required:  # torch takes None for any tensor
                if args[i] is None:
                    raise ValueError(f'{argument} must be a tensor, got None')
            try:
                return function(*args)
            except Misaligned:
                copies = tree_map_only(Tensor, align, args)
                found = function(*copies)
                if '(a!)' in schema:
                    args[0].copy_(copies[0])
                return found

        @wraps(function)
        def call_directly(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except NotInMemory:
                return getattr(torch.ops.swin_backbone, name)(*args, **kwargs)

        _torch_library.define(schema)
        _torch_library.impl(name, with_tensors, 'CPU')
        return call_directly

    return register


def library() -> Library:
    """Return the loaded library. Without one, raise a RuntimeError with the reason."""
    found, reason = load()
    if found is None:
        raise RuntimeError(reason)
    return found


# --- What the library computes ----------------------------------------------------------------------------------------


def why_not_block(weights: Sequence[Optional[Tensor]], heads: int, window: Sizes) -> Optional[str]:
    """Return why the library cannot compute a block of these weights, in one sentence; None: it can.

    The function raises no errors, and takes a few microseconds. `why_not_in(dtype)` answers for the processor.

    Args:
        weights: of qkv (3C, C), proj (C, C), fc1 (D, C) and fc2 (C, D), then any other weights of the block, in any
            order. None: the block has none.
        heads: the number of heads.
        window: height and width.
    """
    sizes = [None if weight is None else tuple(weight.shape) for weight in weights[:4]]
    C, D = (size[0] if size else 0 for size in sizes[1:3])
    if sizes != [(3 * C, C), (C, C), (D, C), (C, D)]:
        return f'The compiled operators take layers (3C, C), (C, C), (D, C) and (C, D), not {sizes}.'
    if not heads or C % heads or C // heads not in HEAD_DIMS:
        return f'The compiled operators take heads of 8, 16, ... 64 channels, not {heads} heads for {C} channels.'
    if not D or D % 8:
        return f'The compiled operators take MLPs of a multiple of 8 channels, not {D}.'
    if not 1 <= min(window) <= max(window) <= LARGEST_WINDOW:
        return f'The compiled operators take windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {tuple(window)}.'
    return why_not_weights(weights)


def why_not_weights(weights: Sequence[Optional[Tensor]]) -> Optional[str]:
    """Return why the library cannot read these weights of any layer, in one sentence, or None, as `why_not_block`."""
    for w in weights:
        if w is not None and (w.dtype is not float32 or not w.is_cpu or w.layout is not torch.strided):
            return f'The compiled operators take dense float32 weights on a CPU, not {w.dtype} on {w.device}.'
    return None


# --- Tensors ----------------------------------------------------------------------------------------------------------


def align(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if its address is no multiple of the size of its numbers."""
    aligned = not tensor.is_cpu or tensor.layout is not torch.strided or tensor.data_ptr() % tensor.itemsize == 0
    return tensor if aligned else tensor.clone()


def memory_address(name: str, tensor: Tensor, dtype: torch.dtype, extent: int) -> int:
    """Return the address of a tensor that reaches over `extent` numbers. A storage may have been made shorter."""
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise ValueError(f'{name} must be a dense tensor on a CPU, got a {tensor.layout} one on {tensor.device}')
    if tensor.dtype is not dtype:
        raise ValueError(f'{name} must be {dtype}, got {tensor.dtype}')
    stored = tensor.untyped_storage().nbytes()
    if (tensor.storage_offset() + extent) * tensor.itemsize > stored:
        raise ValueError(
            f'{name} must be a tensor with all of its memory, got one of {list(tensor.shape)} with {stored} bytes'
        )
    first = tensor.data_ptr()
    if tensor.is_neg() or (extent and not first):
        raise NotInMemory(f'{name} must be a tensor whose numbers are in its memory, got a {type(tensor).__name__}')
    if first % tensor.itemsize:
        raise Misaligned(f'{name} must begin at a multiple of {tensor.itemsize} bytes, got the address {first}')
    return first


def address(name: str, tensor: Tensor, sizes: Sizes, dtype: torch.dtype = float32) -> int:
    """Return the address of a contiguous tensor of these sizes."""
    if tensor.shape != sizes or not tensor.is_contiguous():
        raise ValueError(
            f'{name} must be contiguous and of {list(sizes)}, got {list(tensor.shape)} with strides '
            f'{list(tensor.stride())}'
        )
    return memory_address(name, tensor, dtype, tensor.numel())


def map_address(name: str, x: Tensor, dtype: torch.dtype = float32) -> int:
    """Return the address of maps (B, H, W, C)."""
    if x.dim() != 4:
        raise ValueError(f'{name} must be maps (B, H, W, C), got {list(x.shape)}')
    return address(name, x, x.shape, dtype)


def vector_address(name: str, tensor: Optional[Tensor], size: int, copies: list[Tensor]) -> Optional[int]:
    """Return the address of `size` numbers of any floating dtype; None: no tensor. `copies` gets the copy, if any."""
    if tensor is None:
        return None
    if (  # The usual case. The checks below are the same, and take twice the time.
        tensor.dtype is float32
        and tensor.numel() == size
        and tensor.is_cpu
        and tensor.is_contiguous()
        and 4 * (tensor.storage_offset() + size) <= tensor.untyped_storage().nbytes()
        and not tensor.is_neg()
        and (first := tensor.data_ptr())
        and not first % 4
    ):
        return first
    if not tensor.is_floating_point() or tensor.numel() != size:
        raise ValueError(f'{name} must be {size} floating numbers, got {tensor.dtype} of {list(tensor.shape)}')
    with suppress(NotInMemory):  # the copy is
        memory_address(name, tensor, tensor.dtype, extent_of(tensor))
    copies.append(empty(size).copy_(tensor.detach().reshape(size)))
    return copies[-1].data_ptr()


def extent_of(tensor: Tensor) -> int:
    """Return over how many numbers of its storage a tensor of any strides reaches."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0


def empty(*sizes: int, dtype: torch.dtype = float32) -> Tensor:
    """Return memory, whatever torch's default dtype and device are."""
    return torch.empty(sizes, dtype=dtype, device='cpu')


def dtype_number(name: str, dtype: torch.dtype) -> int:
    """Return the number of a dtype in swin.h."""
    if dtype not in DTYPES:
        raise ValueError(f'{name} must be float32 or bfloat16, got {dtype}')
    return DTYPES.index(dtype)


# --- Weights ----------------------------------------------------------------------------------------------------------


def packed_size(dtype: torch.dtype, outputs: int, inputs: int) -> int:
    """Return how many numbers of `dtype` a packed weight has.

    Products of bfloat16 take inputs in pairs. Without these products, a rounded number has the memory of two.
    """
    if dtype is not torch.bfloat16:
        return outputs * inputs
    found, _ = load()
    pairs = found is None or found.multiplies_bfloat16
    return outputs * (inputs + inputs % 2 if pairs else 2 * inputs)


@operator('pack_linear(Tensor weight, ScalarType dtype, int unit, bool transposed=False) -> Tensor')
def pack_linear(weight: Tensor, dtype: torch.dtype, unit: int, transposed: bool = False) -> Tensor:
    """Return a weight (out, in...), or its transpose, in the order in which the operators read it.

    Products of float16 are computed in float32.
    """
    dtype = PRODUCTS.get(dtype, dtype)
    if weight.dim() < 2 or not weight.dtype.is_floating_point:
        raise ValueError(f'a floating weight (out, in...) was expected, got {weight.dtype} of {list(weight.shape)}')
    memory_address('weight', weight, weight.dtype, extent_of(weight))
    wide = weight.to(float32).flatten(1).contiguous()
    rows, columns = wide.shape
    N, K = (columns, rows) if transposed else (rows, columns)
    number, panels = dtype_number('the dtype of a packed weight', dtype), empty(packed_size(dtype, N, K), dtype=dtype)
    library().pack(
        *(number, address('weight', wide, wide.shape), rows, columns, unit, transposed),
        *(torch.get_num_threads(), panels.data_ptr()),
    )
    return panels


@operator('checksum(Tensor[] tensors) -> int')
def checksum(tensors: Sequence[Tensor]) -> int:
    """A hash of all bytes of the tensors. Every change of one number changes it."""
    dense = [t if t.is_contiguous() else t.contiguous() for t in tensors]
    count, found = len(dense), c_int64()
    pieces = (c_void_p * count)(*[memory_address('a tensor', t, t.dtype, t.numel()) for t in dense])
    sizes = (c_int64 * count)(*[t.nbytes for t in dense])
    library().checksum(pieces, sizes, count, torch.get_num_threads(), byref(found))
    return found.value


# --- A block ----------------------------------------------------------------------------------------------------------

_BLOCK = (
    'Tensor[] packed, Tensor?[] vectors, Tensor position_bias, Tensor? cosine_scale, Tensor? drop_path, int heads, '
    'int[] window, int[] shift, int padding, float scale, float[] eps'
)


def describe_block(
    x: Tensor,
    packed: Sequence[Tensor],
    vectors: Optionals,
    position_bias: Tensor,
    cosine_scale: Optional[Tensor],
    drop_path: Optional[Tensor],
    heads: int,
    window: Sizes,
    shift: Sizes,
    padding: int,
    scale: float,
    eps: Sequence[float],
) -> tuple[Block, list[tuple[int, int]]]:
    """The library's description of a block, and the sizes (out, in) of its linear layers."""
    if not (len(packed), len(vectors), len(window), len(shift)) == (4, 10, 2, 2) or len(eps) not in (2, 3):
        raise ValueError(
            '4 packed weights, 10 vectors, 2 sides of a window and of a shift, and 2 or 3 eps were expected'
        )
    if x.dim() != 4:
        raise ValueError(f'x must be maps (B, H, W, C), got {list(x.shape)}')
    B, H, W, C = x.shape
    N, dtype = window[0] * window[1], packed[0].dtype
    D = packed[2].numel() // packed_size(dtype, 1, C) if C else 0
    if position_bias.shape != (heads, N, N):
        raise ValueError(f'position_bias must be ({heads}, {N}, {N}), got {list(position_bias.shape)}')
    copies: list[Tensor] = []
    sizes = [(3 * C, C), (C, C), (D, C), (C, D)]
    numbers = [packed_size(dtype, rows, columns) for rows, columns in sizes]
    weights = [address(name, weight, (count,), dtype) for name, weight, count in zip(WEIGHTS, packed, numbers)]
    lengths = C, C, 3 * C, C, C, C, D, C, C, C
    v = [vector_address(name, one, length, copies) for name, one, length in zip(VECTORS, vectors, lengths)]
    described = Block(
        *(dtype_number(WEIGHTS[0], packed[0].dtype), torch.get_num_threads(), B, H, W, C, D, heads, *window, *shift),
        *(padding, len(eps) == 3, scale, eps[0], eps[1], eps[2] if len(eps) == 3 else 0.0),
        *(tuple(weights), (v[2], v[3], v[6], v[7]), v[0], v[1], v[4], v[5], v[8], v[9]),
        vector_address('position_bias', position_bias, heads * N * N, copies),
        vector_address('cosine_scale', cosine_scale, heads, copies),
        vector_address('drop_path', drop_path, 2 * B, copies),
    )
    described.copies = copies
    return described, sizes


def saved_size(described: Block, groups: int) -> tuple[int, int]:
    """How many groups, of 0 the best, and how many bytes each."""
    found, size = c_int64(groups), c_int64()
    library().block_saved_size(byref(described), byref(found), byref(size))
    return found.value, size.value


@operator(f'block(Tensor x, {_BLOCK}) -> Tensor')
def block(x: Tensor, *arguments: Any) -> Tensor:
    """A block over maps (B, H, W, C)."""
    described, _ = describe_block(x, *arguments)
    first, out = map_address('x', x), torch.empty_like(x)
    library().block_forward(byref(described), first, out.data_ptr(), None, 0)
    return out


@operator(f'block_(Tensor(a!) x, {_BLOCK}) -> ()')
def block_(x: Tensor, *arguments: Any) -> None:
    """The same in the place of the maps."""
    described, _ = describe_block(x, *arguments)
    first = map_address('x', x)
    library().block_forward(byref(described), first, first, None, 0)


def aligned_bytes(groups: int, size: int) -> Tensor:
    """Bytes (groups, size) that begin at a whole cache line."""
    memory = empty(groups * size + LINE, dtype=torch.uint8)
    offset = -memory.data_ptr() % LINE
    return memory[offset : offset + groups * size].view(groups, size)


@operator(f'block_saving(Tensor x, {_BLOCK}) -> (Tensor, Tensor)')
def block_saving(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """The same, and what its backward pass would compute again: (groups, bytes)."""
    described, _ = describe_block(x, *arguments)
    first, out = map_address('x', x), torch.empty_like(x)
    groups, size = saved_size(described, 0)
    saved = aligned_bytes(groups, size)
    library().block_forward(byref(described), first, out.data_ptr(), saved.data_ptr(), groups)
    return out, saved


@operator(
    'block_backward(Tensor x, Tensor grad, Tensor[] packed, Tensor[] transposed, '
    + _BLOCK.removeprefix('Tensor[] packed, ')
    + ', Tensor? saved=None) -> Tensor[]'
)
def block_backward(
    x: Tensor, grad: Tensor, packed: Sequence[Tensor], transposed: Sequence[Tensor], *more: Any, saved: Any = None
) -> list[Tensor]:
    """Gradients of x, the 4 weights (out, in), the 10 vectors, the position bias and the cosine scale."""
    if len(more) == 11:
        more, saved = more[:-1], more[-1]
    if grad.shape != x.shape or len(transposed) != len(WEIGHTS):
        raise ValueError(
            f"a gradient of x's shape and 4 packed weights were expected, got {list(grad.shape)} for {list(x.shape)} "
            f'and {len(transposed)}'
        )
    described, sizes = describe_block(x, packed, *more)
    of_transpose = (c_void_p * 4)(
        *(
            address(TRANSPOSED[i], transposed[i], (packed_size(packed[0].dtype, rows, columns),), packed[0].dtype)
            for i, (rows, columns) in enumerate(sizes)
        )
    )
    first, of_y = map_address('x', x), map_address('grad', grad)
    groups, memory = 0, None
    if saved is not None and x.numel():
        if saved.dim() != 2:
            raise ValueError(f'saved must be (groups, bytes), got {list(saved.shape)}')
        groups = len(saved)
        memory = address('saved', saved, saved_size(described, groups), torch.uint8)
    C, D, h = described.channels, described.hidden, described.heads
    N = described.window_height * described.window_width
    of_vectors = [empty(n) for n in (C, C, 3 * C, C, C, C, D, C, C, C)]
    of_x, of_weights = torch.empty_like(x), [empty(*size) for size in sizes]
    of_position, of_scale = empty(h, N, N), empty(h)
    p = [g.data_ptr() for g in of_vectors]
    gradients = BlockGradients(
        *(of_x.data_ptr(), tuple(g.data_ptr() for g in of_weights), (p[2], p[3], p[6], p[7])),
        *(p[0], p[1], p[4], p[5], p[8], p[9], of_position.data_ptr(), of_scale.data_ptr()),
    )
    library().block_backward(byref(described), of_transpose, first, of_y, memory, groups, byref(gradients))
    return [of_x, *of_weights, *of_vectors, of_position, of_scale]


# --- Patch embedding and patch merging --------------------------------------------------------------------------------


def describe_projection(
    packed: Tensor,
    inputs: int,
    bias: Optional[Tensor],
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    norm_after: bool,
) -> Projection:
    """The library's description of a linear layer of rows of `inputs` numbers."""
    dtype = dtype_number('packed weight', packed.dtype)
    padded = packed_size(packed.dtype, 1, inputs)
    copies: list[Tensor] = []
    outputs = packed.numel() // padded if padded else 0
    normed = outputs if norm_after else inputs
    described = Projection(
        *(dtype, torch.get_num_threads(), outputs),
        *(
            address('packed weight', packed, (outputs * padded,), packed.dtype),
            vector_address('bias', bias, outputs, copies),
        ),
        *(eps is not None, eps or 0.0),
    )
    if eps is not None:
        described.norm_weight = vector_address("the norm's weight", norm_weight, normed, copies)
        described.norm_bias = vector_address("the norm's bias", norm_bias, normed, copies)
    described.copies = copies
    return described


def describe_gradients(
    described: Projection, x: Tensor, inputs: int, transposed: Optional[Tensor], dtype: torch.dtype, norm_after: bool
) -> tuple[list[Tensor], ProjectionGradients, Optional[int]]:
    """The gradients that are written, the library's description of them, and where the transposed weight is."""
    outputs = described.outputs
    normed = (outputs if norm_after else inputs) if described.has_norm else 0
    size = packed_size(dtype, inputs, outputs)
    of_transpose = None if transposed is None else address('transposed weight', transposed, (size,), dtype)
    of_x = empty(*x.shape) if of_transpose is not None else empty(0)
    gradients = [of_x, empty(outputs, inputs), *(empty(n) for n in (outputs, normed, normed))]
    return gradients, ProjectionGradients(*(g.data_ptr() or None for g in gradients)), of_transpose


def describe_images(image: Tensor, patch: Sizes) -> tuple[Images, int]:
    """The library's description of images (B, C, H, W) of any strides, and how many numbers a patch has."""
    if image.dim() != 4 or len(patch) != 2:
        raise ValueError(
            f'images (B, C, H, W) and the 2 sides of a patch were expected, got {list(image.shape)} and {list(patch)}'
        )
    first = memory_address('image', image, float32, extent_of(image))
    described = Images(first, *image.shape, tuple(image.stride()), *patch)
    return described, image.shape[1] * patch[0] * patch[1]


def patch_counts(image: Tensor, patch: Sizes) -> list[int]:
    """Images, and rows and columns of patches."""
    return [len(image), *(-(-n // max(side, 1)) for n, side in zip(image.shape[2:], patch))]


def empty_tokens(sizes: Sizes) -> Tensor:
    """Memory for tokens. Sizes that no memory holds are none: the library says what is wrong with what they are of."""
    numbers = 1
    for size in sizes:
        numbers *= size
    return empty(*sizes) if numbers < 2**40 else empty(0)


_NORM = 'Tensor? norm_weight, Tensor? norm_bias, float? eps'


@operator(f'embed(Tensor image, Tensor packed, Tensor? bias, {_NORM}, int[] patch) -> Tensor')
def embed(
    image: Tensor,
    packed: Tensor,
    bias: Optional[Tensor],
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    patch: Sizes,
) -> Tensor:
    """Patches of images (B, C, H, W) to tokens (B, rows, columns, N)."""
    described, inputs = describe_images(image, patch)
    weights = describe_projection(packed, inputs, bias, norm_weight, norm_bias, eps, True)
    out = empty_tokens([*patch_counts(image, patch), weights.outputs])
    library().embed_forward(byref(described), byref(weights), out.data_ptr() or None)
    return out


@operator(
    'embed_backward(Tensor image, Tensor grad, Tensor packed, Tensor? transposed, Tensor? bias, '
    f'{_NORM}, int[] patch) -> Tensor[]'
)
def embed_backward(
    image: Tensor,
    grad: Tensor,
    packed: Tensor,
    transposed: Optional[Tensor],
    bias: Optional[Tensor],
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    patch: Sizes,
) -> list[Tensor]:
    """Gradients of the images, if `transposed` is given, of the weight (N, inputs), the bias, and the norm's two."""
    described, inputs = describe_images(image, patch)
    weights = describe_projection(packed, inputs, bias, norm_weight, norm_bias, eps, True)
    of_y = address('grad', grad, (*patch_counts(image, patch), weights.outputs))
    found, to, of_transpose = describe_gradients(weights, image, inputs, transposed, packed.dtype, True)
    library().embed_backward(byref(described), byref(weights), of_transpose, of_y, byref(to))
    return found


@operator(f'merge(Tensor x, Tensor packed, {_NORM}, bool post_norm) -> Tensor')
def merge(
    x: Tensor,
    packed: Tensor,
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    post_norm: bool,
) -> Tensor:
    """2 x 2 neighbours of maps (B, H, W, C) to tokens (B, rows, columns, N)."""
    first = map_address('x', x)
    B, H, W, C = x.shape
    weights = describe_projection(packed, 4 * C, None, norm_weight, norm_bias, eps, post_norm)
    out = empty_tokens([B, (H + 1) // 2, (W + 1) // 2, weights.outputs])
    described = Maps(first, B, H, W, C, post_norm)
    library().merge_forward(byref(described), byref(weights), out.data_ptr() or None)
    return out


@operator(
    f'merge_backward(Tensor x, Tensor grad, Tensor packed, Tensor? transposed, {_NORM}, bool post_norm) -> Tensor[]'
)
def merge_backward(
    x: Tensor,
    grad: Tensor,
    packed: Tensor,
    transposed: Optional[Tensor],
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    post_norm: bool,
) -> list[Tensor]:
    """As `embed_backward`."""
    first = map_address('x', x)
    B, H, W, C = x.shape
    weights = describe_projection(packed, 4 * C, None, norm_weight, norm_bias, eps, post_norm)
    of_y = address('grad', grad, (B, (H + 1) // 2, (W + 1) // 2, weights.outputs))
    found, to, of_transpose = describe_gradients(weights, x, 4 * C, transposed, packed.dtype, post_norm)
    described = Maps(first, B, H, W, C, post_norm)
    library().merge_backward(byref(described), byref(weights), of_transpose, of_y, byref(to))
    return found


# --- Output norm ------------------------------------------------------------------------------------------------------


@operator('output_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor')
def output_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """LayerNorm of the tokens of maps (B, H, W, C), as (B, C, H, W)."""
    first = map_address('x', x)
    B, H, W, C = x.shape
    copies: list[Tensor] = []
    w, b = vector_address("the norm's weight", weight, C, copies), vector_address("the norm's bias", bias, C, copies)
    out = empty(B, C, H, W)
    library().output_norm_forward(first, B, H * W, C, w, b, eps, torch.get_num_threads(), out.data_ptr() or None)
    return out


@operator('output_norm_backward(Tensor x, Tensor grad, Tensor? weight, Tensor? bias, float eps) -> Tensor[]')
def output_norm_backward(
    x: Tensor, grad: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float
) -> list[Tensor]:
    """Gradients of x, the weight and the bias."""
    first = map_address('x', x)
    B, H, W, C = x.shape
    of_y = address('grad', grad, (B, C, H, W))
    copies: list[Tensor] = []
    gradients = [torch.empty_like(x), empty(C), empty(C)]
    w, _ = vector_address("the norm's weight", weight, C, copies), vector_address("the norm's bias", bias, C, copies)
    library().output_norm_backward(
        *(first, of_y, B, H * W, C, w, eps, torch.get_num_threads()), *(g.data_ptr() or None for g in gradients)
    )
    return gradients


from . import fake  # noqa: E402, F401  what torch.compile and export see of them
