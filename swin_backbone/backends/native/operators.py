"""What torch sees of the compiled library: the operators `torch.ops.swin_backbone.*`.

Each checks that its tensors are what the library takes them for, with all of their memory: it gets addresses and sizes
(csrc/swin.h), and checks these. Where the library is not there, they raise why.

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

from .library import DTYPES, Block, BlockGradients, Images, Library, Maps, Projection, ProjectionGradients, load

WEIGHTS = tuple(f'packed {name} weight' for name in ('qkv', 'proj', 'fc1', 'fc2'))
TRANSPOSED = tuple(name.replace('packed', 'transposed') for name in WEIGHTS)
# The order of vectors in the arguments of a block, and of their gradients.
VECTORS = (
    *("norm1's weight", "norm1's bias", "qkv's bias", "proj's bias", "norm2's weight", "norm2's bias"),
    *("fc1's bias", "fc2's bias", "norm3's weight", "norm3's bias"),
)
LINE = 64  # bytes at whose multiples saved memory begins
LARGEST_WINDOW = 16
LARGEST_PATCH = 2**20  # numbers
Sizes = Sequence[int]
float32 = torch.float32
Optionals = Sequence[Optional[Tensor]]
Compute = Callable[..., Any]

_torch_library = torch.library.Library('swin_backbone', 'FRAGMENT')


class NotInMemory(ValueError):
    """A tensor's numbers are not in its memory: torch negates them when they are read, or a subclass keeps others."""


def operator(schema: str) -> Callable[[Compute], Compute]:
    """Register a function as the operator of this schema, for tensors on a CPU.

    Who calls the function itself saves the time in which torch finds it, and what torch does with tensors first.
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
            return function(*args)

        @wraps(function)
        def directly(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except NotInMemory:
                return getattr(torch.ops.swin_backbone, name)(*args, **kwargs)

        _torch_library.define(schema)
        _torch_library.impl(name, with_tensors, 'CPU')
        return directly

    return register


def library() -> Library:
    """It is loaded, or nobody would call these."""
    found, reason = load()
    if found is None:
        raise RuntimeError(reason)
    return found


# --- Tensors ----------------------------------------------------------------------------------------------------------


def begin(name: str, tensor: Tensor, dtype: torch.dtype, extent: int) -> int:
    """Where a tensor begins that reaches over so many numbers. All of them: a storage may have been made shorter."""
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise ValueError(f'{name} must be a dense tensor on a CPU, got a {tensor.layout} one on {tensor.device}')
    if tensor.dtype is not dtype:
        raise ValueError(f'{name} must be {dtype}, got {tensor.dtype}')
    held = tensor.untyped_storage().nbytes()
    if (tensor.storage_offset() + extent) * tensor.itemsize > held:
        raise ValueError(
            f'{name} must be a tensor with all of its memory, got one of {list(tensor.shape)} with {held} bytes'
        )
    first = tensor.data_ptr()
    if tensor.is_neg() or (extent and not first):
        raise NotInMemory(f'{name} must be a tensor whose numbers are in its memory, got a {type(tensor).__name__}')
    return first


def address(name: str, tensor: Tensor, sizes: Sizes, dtype: torch.dtype = float32) -> int:
    """Where a contiguous tensor of these sizes begins."""
    if tensor.shape != sizes or not tensor.is_contiguous():
        raise ValueError(
            f'{name} must be contiguous and of {list(sizes)}, got {list(tensor.shape)} with strides '
            f'{list(tensor.stride())}'
        )
    return begin(name, tensor, dtype, tensor.numel())


def maps(name: str, x: Tensor, dtype: torch.dtype = float32) -> int:
    """Where maps (B, H, W, C) begin."""
    if x.dim() != 4:
        raise ValueError(f'{name} must be maps (B, H, W, C), got {list(x.shape)}')
    return address(name, x, x.shape, dtype)


def vector(name: str, tensor: Optional[Tensor], size: int, kept: list[Tensor]) -> Optional[int]:
    """Where the numbers of a vector are, of any floating dtype; None: there is none. A copy of them is `kept`."""
    if tensor is None:
        return None
    if (  # The usual case: what follows would say the same, in twice the time.
        tensor.dtype is float32
        and tensor.numel() == size
        and tensor.is_cpu
        and tensor.is_contiguous()
        and 4 * (tensor.storage_offset() + size) <= tensor.untyped_storage().nbytes()
        and not tensor.is_neg()
        and (first := tensor.data_ptr())
    ):
        return first
    if not tensor.is_floating_point() or tensor.numel() != size:
        raise ValueError(f'{name} must be {size} floating numbers, got {tensor.dtype} of {list(tensor.shape)}')
    with suppress(NotInMemory):  # a copy is
        begin(name, tensor, tensor.dtype, extent_of(tensor))
    kept.append(empty(size).copy_(tensor.detach().reshape(size)))
    return kept[-1].data_ptr()


def extent_of(tensor: Tensor) -> int:
    """Over how many numbers of its storage a tensor of any strides reaches."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0


def empty(*sizes: int, dtype: torch.dtype = float32) -> Tensor:
    """Memory, whatever torch's default dtype and device are."""
    return torch.empty(sizes, dtype=dtype, device='cpu')


def within(name: str, value: int, most: int) -> None:
    """Check a number of which others are made here. The library checks all of them."""
    if not 1 <= value <= most:
        raise ValueError(f'{name} must be from 1 to {most}, got {value}')


def dtype_number(name: str, dtype: torch.dtype) -> int:
    """The number of a dtype in swin.h."""
    if dtype not in DTYPES:
        raise ValueError(f'{name} must be float32 or bfloat16, got {dtype}')
    return DTYPES.index(dtype)


# --- Weights ----------------------------------------------------------------------------------------------------------


def packed_size(dtype: torch.dtype, outputs: int, inputs: int) -> int:
    """How many numbers a packed weight has: inputs are multiplied in pairs in bfloat16."""
    return outputs * (inputs + inputs % 2 if dtype is torch.bfloat16 else inputs)


@operator('pack_linear(Tensor weight, ScalarType dtype, int unit, bool transposed=False) -> Tensor')
def pack_linear(weight: Tensor, dtype: torch.dtype, unit: int, transposed: bool = False) -> Tensor:
    """A weight (out, in...), or its transpose, in the order in which the operators read it."""
    if weight.dim() < 2 or not weight.dtype.is_floating_point:
        raise ValueError(f'a floating weight (out, in...) was expected, got {weight.dtype} of {list(weight.shape)}')
    if dtype not in DTYPES:
        raise ValueError(f'weights are packed in float32 or bfloat16, not {dtype}')
    begin('weight', weight, weight.dtype, extent_of(weight))
    within("a weight's numbers", weight.numel(), 2**31 - 1)
    wide = weight.to(float32).flatten(1).contiguous()
    rows, columns = wide.shape
    N, K = (columns, rows) if transposed else (rows, columns)
    panels = empty(packed_size(dtype, N, K), dtype=dtype)
    library().pack(
        *(DTYPES.index(dtype), address('weight', wide, wide.shape), rows, columns, unit, transposed),
        *(torch.get_num_threads(), panels.data_ptr()),
    )
    return panels


@operator('checksum(Tensor[] tensors) -> int')
def checksum(tensors: Sequence[Tensor]) -> int:
    """A hash of all bytes of the tensors. Every change of one number changes it."""
    dense = [t if t.is_contiguous() else t.contiguous() for t in tensors]
    count, found = len(dense), c_int64()
    pieces = (c_void_p * count)(*[begin('a tensor', t, t.dtype, t.numel()) for t in dense])
    sizes = (c_int64 * count)(*[t.nbytes for t in dense])
    library().checksum(pieces, sizes, count, torch.get_num_threads(), byref(found))
    return found.value


# --- A block ----------------------------------------------------------------------------------------------------------

_BLOCK = (
    'Tensor[] packed, Tensor?[] vectors, Tensor position_bias, Tensor? cosine_scale, Tensor? drop_path, int heads, '
    'int[] window, int[] shift, bool mask_padding, float scale, float[] eps'
)


def block_arguments(
    x: Tensor,
    packed: Sequence[Tensor],
    vectors: Optionals,
    position_bias: Tensor,
    cosine_scale: Optional[Tensor],
    drop_path: Optional[Tensor],
    heads: int,
    window: Sizes,
    shift: Sizes,
    mask_padding: bool,
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
    for side in window:
        within('a side of the window', side, LARGEST_WINDOW)
    N, D, dtype = window[0] * window[1], packed[2].numel() // C if C else 0, packed[0].dtype
    if position_bias.shape != (heads, N, N):
        raise ValueError(f'position_bias must be ({heads}, {N}, {N}), got {list(position_bias.shape)}')
    kept: list[Tensor] = []
    sizes = [(3 * C, C), (C, C), (D, C), (C, D)]
    weights = [address(WEIGHTS[i], packed[i], (rows * columns,), dtype) for i, (rows, columns) in enumerate(sizes)]
    lengths = C, C, 3 * C, C, C, C, D, C, C, C
    v = [vector(name, one, length, kept) for name, one, length in zip(VECTORS, vectors, lengths)]
    described = Block(
        *(dtype_number(WEIGHTS[0], packed[0].dtype), torch.get_num_threads(), B, H, W, C, D, heads, *window, *shift),
        *(mask_padding, len(eps) == 3, scale, eps[0], eps[1], eps[2] if len(eps) == 3 else 0.0),
        *(tuple(weights), (v[2], v[3], v[6], v[7]), v[0], v[1], v[4], v[5], v[8], v[9]),
        vector('position_bias', position_bias, heads * N * N, kept),
        vector('cosine_scale', cosine_scale, heads, kept),
        vector('drop_path', drop_path, 2 * B, kept),
    )
    described.kept = kept
    return described, sizes


def saved_size(described: Block, groups: int) -> tuple[int, int]:
    """How many groups, of 0 the best, and how many bytes each."""
    found, size = c_int64(groups), c_int64()
    library().block_saved_size(byref(described), byref(found), byref(size))
    return found.value, size.value


@operator(f'block(Tensor x, {_BLOCK}) -> Tensor')
def block(x: Tensor, *arguments: Any) -> Tensor:
    """A block over maps (B, H, W, C)."""
    described, _ = block_arguments(x, *arguments)
    first, out = maps('x', x), torch.empty_like(x)
    library().block_forward(byref(described), first, out.data_ptr(), None, 0)
    return out


@operator(f'block_(Tensor(a!) x, {_BLOCK}) -> ()')
def block_(x: Tensor, *arguments: Any) -> None:
    """The same in the place of the maps."""
    described, _ = block_arguments(x, *arguments)
    first = maps('x', x)
    library().block_forward(byref(described), first, first, None, 0)


def aligned_bytes(groups: int, size: int) -> Tensor:
    """Bytes (groups, size) that begin at a whole cache line."""
    memory = empty(groups * size + LINE, dtype=torch.uint8)
    offset = -memory.data_ptr() % LINE
    return memory[offset : offset + groups * size].view(groups, size)


@operator(f'block_saving(Tensor x, {_BLOCK}) -> (Tensor, Tensor)')
def block_saving(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """The same, and what its backward pass would compute again: (groups, bytes)."""
    described, _ = block_arguments(x, *arguments)
    first, out = maps('x', x), torch.empty_like(x)
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
    described, sizes = block_arguments(x, packed, *more)
    of_transpose = (c_void_p * 4)(
        *(
            address(TRANSPOSED[i], transposed[i], (rows * columns,), packed[0].dtype)
            for i, (rows, columns) in enumerate(sizes)
        )
    )
    first, of_y = maps('x', x), maps('grad', grad)
    groups, memory = 0, None
    if saved is not None and x.numel():
        if saved.dim() != 2:
            raise ValueError(f'saved must be (groups, bytes), got {list(saved.shape)}')
        groups = len(saved)
        count = described.batch * -(-described.height // described.window_height)
        count *= -(-described.width // described.window_width)
        if not 1 <= groups <= count:
            raise ValueError(f"saved's groups must be from 1 to {count}, got {groups}")
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


def projection(
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
    kept: list[Tensor] = []
    outputs = packed.numel() // padded if padded else 0
    normed = outputs if norm_after else inputs
    described = Projection(
        *(dtype, torch.get_num_threads(), outputs),
        *(address('packed weight', packed, (outputs * padded,), packed.dtype), vector('bias', bias, outputs, kept)),
        *(eps is not None, eps or 0.0),
    )
    if eps is not None:
        described.norm_weight = vector("the norm's weight", norm_weight, normed, kept)
        described.norm_bias = vector("the norm's bias", norm_bias, normed, kept)
    described.kept = kept
    return described


def projection_gradients(
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


def images(image: Tensor, patch: Sizes) -> tuple[Images, int]:
    """The library's description of images (B, C, H, W) of any strides, and how many numbers a patch has."""
    if image.dim() != 4 or len(patch) != 2:
        raise ValueError(
            f'images (B, C, H, W) and the 2 sides of a patch were expected, got {list(image.shape)} and {list(patch)}'
        )
    for side in patch:
        within('a side of the patch', side, LARGEST_PATCH)
    within('the numbers of a patch', image.shape[1] * patch[0] * patch[1], LARGEST_PATCH)
    first = begin('image', image, float32, extent_of(image))
    described = Images(first, *image.shape, tuple(image.stride()), *patch)
    return described, image.shape[1] * patch[0] * patch[1]


def patch_counts(image: Tensor, patch: Sizes) -> list[int]:
    """Images, and rows and columns of patches."""
    return [len(image), *(-(-n // side) for n, side in zip(image.shape[2:], patch))]


def tokens(sizes: Sizes) -> Tensor:
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
    described, inputs = images(image, patch)
    weights = projection(packed, inputs, bias, norm_weight, norm_bias, eps, True)
    out = tokens([*patch_counts(image, patch), weights.outputs])
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
    described, inputs = images(image, patch)
    weights = projection(packed, inputs, bias, norm_weight, norm_bias, eps, True)
    of_y = address('grad', grad, (*patch_counts(image, patch), weights.outputs))
    found, to, of_transpose = projection_gradients(weights, image, inputs, transposed, packed.dtype, True)
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
    first = maps('x', x)
    B, H, W, C = x.shape
    weights = projection(packed, 4 * C, None, norm_weight, norm_bias, eps, post_norm)
    out = tokens([B, (H + 1) // 2, (W + 1) // 2, weights.outputs])
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
    first = maps('x', x)
    B, H, W, C = x.shape
    weights = projection(packed, 4 * C, None, norm_weight, norm_bias, eps, post_norm)
    of_y = address('grad', grad, (B, (H + 1) // 2, (W + 1) // 2, weights.outputs))
    found, to, of_transpose = projection_gradients(weights, x, 4 * C, transposed, packed.dtype, post_norm)
    described = Maps(first, B, H, W, C, post_norm)
    library().merge_backward(byref(described), byref(weights), of_transpose, of_y, byref(to))
    return found


# --- Output norm ------------------------------------------------------------------------------------------------------


@operator('output_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor')
def output_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """LayerNorm of the tokens of maps (B, H, W, C), as (B, C, H, W)."""
    first = maps('x', x)
    B, H, W, C = x.shape
    kept: list[Tensor] = []
    w, b = vector("the norm's weight", weight, C, kept), vector("the norm's bias", bias, C, kept)
    out = empty(B, C, H, W)
    library().output_norm_forward(first, B, H * W, C, w, b, eps, torch.get_num_threads(), out.data_ptr() or None)
    return out


@operator('output_norm_backward(Tensor x, Tensor grad, Tensor? weight, Tensor? bias, float eps) -> Tensor[]')
def output_norm_backward(
    x: Tensor, grad: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float
) -> list[Tensor]:
    """Gradients of x, the weight and the bias."""
    first = maps('x', x)
    B, H, W, C = x.shape
    of_y = address('grad', grad, (B, C, H, W))
    kept: list[Tensor] = []
    gradients = [torch.empty_like(x), empty(C), empty(C)]
    w, _ = vector("the norm's weight", weight, C, kept), vector("the norm's bias", bias, C, kept)
    library().output_norm_backward(
        *(first, of_y, B, H * W, C, w, eps, torch.get_num_threads()), *(g.data_ptr() or None for g in gradients)
    )
    return gradients


from . import fake  # noqa: E402, F401  what torch.compile and export see of them
