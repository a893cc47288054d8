"""Functions of tensors for layers by the compiled library: block, patch embedding, patch merging, output norm.

Maps and weights are float32. Under `dtype=torch.bfloat16` the matrix products are in bfloat16, like autocast's. Sums,
norms and softmax are in float32. Each function has gradients.

Layout: B batch, H W height and width of a map, C channels, D hidden channels, h heads, N places of a window.
"""

from collections.abc import Callable, Sequence
from ctypes import byref, c_int64, c_void_p
from typing import Any, NamedTuple, Optional, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...compat import is_batched
from ...windows.grid import Size, Windows
from ..weight_cache import WeightCache
from . import library as structures
from .library import DTYPES, PRODUCTS
from .memory import LINE, address, empty, is_readable, library, made_from, pack_linear, why_not_weights
from .torch_layers import block_by_torch, embed_by_torch, merge_by_torch

LARGEST_WINDOW = 16  # places along a side
HEAD_DIMS = range(8, 65, 8)  # channels of a head


class Operator(Protocol):
    """A computation by the library, with gradients."""

    def compute(self, *tensors: Any) -> Sequence[Tensor]:
        """Return the output, and tensors to store for `gradients` beside the arguments."""

    def gradients(self, grad: Tensor, needed: Sequence[bool], *stored: Any) -> Sequence[Optional[Tensor]]:
        """Return the gradients for the arguments of `compute`.

        Args:
            grad: of the output, contiguous.
            needed: whether the gradient of an argument is needed. Unneeded gradients are ignored.
            stored: the arguments of `compute`, then the stored tensors.
        """

    def by_torch(self, *tensors: Any) -> Tensor:
        """Return the output of `compute` by torch operations."""


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, *tensors: Optional[Tensor]) -> Tensor:
        output, *more = operator.compute(*tensors)
        ctx.save_for_backward(*tensors, *more)
        ctx.operator = operator
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        operator, stored, needed = ctx.operator, ctx.saved_tensors, ctx.needs_input_grad[1:]
        grad = grad.resolve_neg().contiguous()
        # The library has no second derivatives (`create_graph=True`), and takes a gradient, no batch of gradients.
        if torch.is_grad_enabled() or is_batched(grad) or not is_readable(grad):
            return None, *_gradients_by_autograd(operator.by_torch, stored[: len(needed)], needed, grad)
        gradients = operator.gradients(grad, needed, *stored)
        return None, *(g if n else None for g, n in zip(gradients, needed))


def run(operator: Operator, *tensors: Optional[Tensor]) -> Tensor:
    """Return `operator.compute(*tensors)[0]`, with gradients if autograd records."""
    if torch.is_grad_enabled():
        y: Tensor = _Function.apply(operator, *tensors)  # type: ignore[no-untyped-call]
        return y
    return operator.compute(*tensors)[0]


def _gradients_by_autograd(
    function: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], needed: Sequence[bool], grad: Tensor
) -> list[Optional[Tensor]]:
    """Return the gradients of `function(*tensors)` for the tensors; None: no gradient is needed."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # If two layers share a weight, a tensor may depend on the weight. Views separate the tensors: the gradient of a
        # weight excludes the path through the input.
        views = [t.view_as(t) if t is not None and n else t for t, n in zip(tensors, needed)]
        y = function(*views)
    inputs = [view for view, n in zip(views, needed) if n]
    gradients = iter(torch.autograd.grad(y, inputs, grad, create_graph=create_graph))  # type: ignore[arg-type]
    return [next(gradients) if n else None for n in needed]


class BlockWeights(NamedTuple):
    """The tensors of a Swin block, in the order of csrc/swin.h; the weights of linear layers are (out, in)."""

    qkv_weight: Tensor
    proj_weight: Tensor
    fc1_weight: Tensor
    fc2_weight: Tensor
    qkv_bias: Optional[Tensor]
    proj_bias: Optional[Tensor]
    fc1_bias: Optional[Tensor]
    fc2_bias: Optional[Tensor]
    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    norm3_weight: Optional[Tensor]  # Swin V2 alone
    norm3_bias: Optional[Tensor]
    position_bias_hNN: Tensor
    cosine_scale_h: Optional[Tensor] = None  # Swin V2: the factor on cosines of query and key; None: dot products
    drop_path_2B: Optional[Tensor] = None  # the factors of branches and images; None: 1


class BlockSettings(NamedTuple):
    """The numbers of a Swin block beside the tensors."""

    scale: float  # the factor on q k^T
    eps: tuple[float, ...]  # of norm1, norm2 and, if present, norm3


def why_not_block(w: BlockWeights, window: Size) -> Optional[str]:
    """Return why the library cannot compute a block of weights `w`, in a sentence; None: no reason.

    `why_not_in(dtype)` answers for the processor.
    """
    C, D, h = len(w.proj_weight), len(w.fc1_weight), len(w.position_bias_hNN)
    for name, tensor, shape in zip(w._fields, w, _block_shapes(C, D, h, window)):
        if tensor is not None and tensor.shape != shape:
            return f'The compiled library takes a {name} of {list(shape)}, not {list(tensor.shape)}.'
    if not 1 <= min(window) <= max(window) <= LARGEST_WINDOW:
        return f'The compiled library takes windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {tuple(window)}.'
    if not h or C % h or C // h not in HEAD_DIMS:
        return f'The compiled library takes heads of 8, 16, ... 64 channels, not {h} heads for {C} channels.'
    if not D or D % 8:
        return f'The compiled library takes MLPs of a multiple of 8 channels, not {D}.'
    return why_not_weights(w)


def _block_shapes(C: int, D: int, h: int, window: Size) -> Sequence[tuple[int, ...]]:
    """Return the shapes of the tensors of `BlockWeights`, except `drop_path_2B`."""
    N = window[0] * window[1]
    return (3 * C, C), (C, C), (D, C), (C, D), (3 * C,), (C,), (D,), *[(C,)] * 7, (h, N, N), (h,)


def block(
    x_BHWC: Tensor,
    w: BlockWeights,
    settings: BlockSettings,
    windows: Windows,
    dtype: torch.dtype,
    cache: WeightCache,
    stores: bool = False,
    overwrites: bool = False,
) -> Tensor:
    """Return the output (B, H, W, C) of a Swin block, V1 or V2.

    Args:
        dtype: of the matrix products, equal to autocast's dtype.
        cache: of packed weights.
        stores: whether a training step stores more than the input, see `availability.is_stored`.
        overwrites: whether the output may take the memory of the input. With gradients, the output takes new memory.
    """
    x_BHWC = x_BHWC.float().contiguous()
    if not torch.is_grad_enabled():
        described = _Block(settings, windows, dtype, cache, False).describe(x_BHWC, w)
        y_BHWC = x_BHWC if overwrites else torch.empty_like(x_BHWC)
        library().block_forward(byref(described), x_BHWC.data_ptr(), y_BHWC.data_ptr(), None, 0)
        return y_BHWC
    stores = stores and any(t is not None and t.requires_grad for t in (x_BHWC, *w))
    return run(_Block(settings, windows, dtype, cache, stores), x_BHWC, *w)


class _Block(NamedTuple):
    """See `Operator`."""

    settings: BlockSettings
    windows: Windows
    dtype: torch.dtype
    cache: WeightCache
    stores: bool

    def compute(self, x_BHWC: Tensor, *tensors: Any) -> Sequence[Tensor]:
        described = self.describe(x_BHWC, BlockWeights(*tensors))
        y_BHWC, groups, memory = torch.empty_like(x_BHWC), 0, []
        if self.stores:
            groups, size = _saved_size(described, 0)
            unaligned = empty(groups * size + LINE, dtype=torch.uint8)
            memory = [unaligned[-unaligned.data_ptr() % LINE :][: groups * size].view(groups, size)]
        saved = memory[0].data_ptr() if memory else None
        library().block_forward(byref(described), x_BHWC.data_ptr(), y_BHWC.data_ptr(), saved, groups)
        return y_BHWC, *memory

    def describe(self, x_BHWC: Tensor, w: BlockWeights) -> structures.Block:
        """Return the library's description of the block."""
        (B, H, W, C), D, h, windows = x_BHWC.shape, len(w.fc1_weight), len(w.position_bias_hNN), self.windows
        linear, (scale, eps), shapes = w[:4], self.settings, (*_block_shapes(C, D, h, windows.window_size), (2, B))
        if any(weight.shape != shape for weight, shape in zip(linear, shapes)):
            raise ValueError(f'qkv, proj, fc1 and fc2 must be {shapes[:4]}, got {[list(one.shape) for one in linear]}')

        def make() -> list[Tensor]:
            return [pack_linear(weight, self.dtype, unit) for weight, unit in zip(linear, (C // h, 1, 1, 1))]

        packed = made_from(linear, (self.dtype, h), make, self.cache)
        padding = 1 if windows.mask_padding else 0 if windows.pads_first else 2  # `swin_padding`
        others = [None if tensor is None else tensor.contiguous() for tensor in w[4:]]
        p = [address(*one) for one in zip(w._fields[4:], others, shapes[4:])]
        described = structures.Block(
            *(DTYPES.index(PRODUCTS[self.dtype]), torch.get_num_threads(), B, H, W, C, D, h),
            *(*windows.window_size, *windows.shift, padding, len(eps) == 3),
            *(scale, *eps, *[0.0] * (3 - len(eps)), tuple(panels.data_ptr() for panels in packed)),
            *(tuple(p[:4]), *p[4:]),
        )
        described.copies = [*packed, *(tensor for tensor in others if tensor is not None)]
        return described

    def gradients(
        self, grad_BHWC: Tensor, _: Sequence[bool], x_BHWC: Tensor, *stored: Any
    ) -> Sequence[Optional[Tensor]]:
        w = BlockWeights(*stored[: len(BlockWeights._fields)])
        x, described = address('x', x_BHWC, x_BHWC.shape), self.describe(x_BHWC, w)
        C, h = x_BHWC.shape[3], len(w.position_bias_hNN)
        shapes, units = _block_shapes(C, len(w.fc1_weight), h, self.windows.window_size), (1, C // h, 1, 1)
        transposed = [pack_linear(weight, self.dtype, unit, transposed=True) for weight, unit in zip(w[:4], units)]
        groups, saved = 0, None
        if self.stores:
            groups = len(stored[-1])
            saved = address('saved', stored[-1], _saved_size(described, groups), torch.uint8)
        of_x, of_weights = torch.empty_like(x_BHWC), [empty(shape) for shape in shapes]
        g = [gradient.data_ptr() for gradient in of_weights]
        library().block_backward(
            *(byref(described), (c_void_p * 4)(*[panels.data_ptr() for panels in transposed])),
            *(x, grad_BHWC.data_ptr(), saved, groups),
            byref(structures.BlockGradients(of_x.data_ptr(), tuple(g[:4]), tuple(g[4:8]), *g[8:])),
        )
        return of_x, *of_weights, None

    def by_torch(self, x_BHWC: Tensor, *tensors: Any) -> Tensor:
        return block_by_torch(x_BHWC, BlockWeights(*tensors), self.settings, self.windows)


def _saved_size(block: structures.Block, groups: int) -> tuple[int, int]:
    """Return the number of groups with saved values, and the bytes of a group. For 0 groups: the best number."""
    number, size = c_int64(groups), c_int64()
    library().block_saved_size(byref(block), byref(number), byref(size))
    return number.value, size.value


Norm = tuple[Optional[Tensor], Optional[Tensor], Optional[float]]  # weight, bias, eps; eps is None: no norm


def embed(
    image_BCHW: Tensor,
    weight_NCHW: Tensor,
    bias_N: Optional[Tensor],
    norm: Norm,
    dtype: torch.dtype,
    cache: WeightCache,
) -> Tensor:
    """Return the tokens (B, ceil(H / patch), ceil(W / patch), N) of images.

    Args:
        weight_NCHW: of the convolution over patches.
        norm: of tokens.
        dtype, cache: see `block`.
    """
    *vectors, eps = norm
    return run(_Projection(False, eps, True, dtype, cache), image_BCHW.float(), weight_NCHW, bias_N, *vectors)


def merge(
    x_BHWC: Tensor, weight_NC: Tensor, norm: Norm, post_norm: bool, dtype: torch.dtype, cache: WeightCache
) -> Tensor:
    """Return maps (B, ceil(H / 2), ceil(W / 2), N) of 2 x 2 neighbours, concatenated and projected.

    Args:
        weight_NC: (N, 4C), over neighbours in the order of `nn.Unfold`.
        post_norm: whether the norm is behind the projection.
        dtype, cache: see `block`.
    """
    *vectors, eps = norm
    x_BHWC = x_BHWC.float().contiguous()
    return run(_Projection(True, eps, post_norm, dtype, cache), x_BHWC, weight_NC, None, *vectors)


class _Projection(NamedTuple):
    """A linear layer over the patches of an image or the neighbours of a map, see `Operator`."""

    merges: bool  # neighbours
    eps: Optional[float]
    post_norm: bool
    dtype: torch.dtype
    cache: WeightCache

    def compute(self, x: Tensor, weight: Tensor, *vectors: Optional[Tensor]) -> Sequence[Tensor]:
        places, projection, (rows, columns) = self.describe(x, weight, *vectors)
        y_BHWN = empty(len(x), rows, columns, len(weight))
        forward = library().merge_forward if self.merges else library().embed_forward
        forward(byref(places), byref(projection), y_BHWN.data_ptr())
        return (y_BHWN,)

    def describe(
        self, x: Tensor, weight: Tensor, bias: Optional[Tensor], *norm: Optional[Tensor]
    ) -> tuple[Any, structures.Projection, Size]:
        """Return the library's description of the input and of the layer, and the rows and columns of the output."""
        (N, K), patch = weight.flatten(1).shape, (2, 2) if self.merges else tuple(weight.shape[2:])
        C, H, W = x.permute(0, 3, 1, 2).shape[1:] if self.merges else x.shape[1:]
        if K != C * patch[0] * patch[1] or x.dtype is not torch.float32 or not is_readable(x):
            raise ValueError(f'a weight {list(weight.shape)} must fit float32 maps, got {x.dtype} {list(x.shape)}')
        normed = N if self.post_norm else K
        places: Any = structures.Maps(x.data_ptr(), *x.shape, self.post_norm)
        if not self.merges:
            places = structures.Images(x.data_ptr(), *x.shape, tuple(x.stride()), *patch)
        elif not self.post_norm:
            norm = tuple(v if v is None else neighbours_first(v) for v in norm)
        vectors = [None if v is None else v.contiguous() for v in (bias, *norm)]
        (panels,) = made_from((weight,), (self.dtype,), lambda: [self.pack(weight)], self.cache)
        projection = structures.Projection(
            *(DTYPES.index(PRODUCTS[self.dtype]), torch.get_num_threads(), N, panels.data_ptr()),
            *(address('bias', vectors[0], (N,)), self.eps is not None, self.eps or 0.0),
            *(address('a tensor of the norm', v, (normed,)) for v in vectors[1:]),
        )
        projection.copies = [panels, *(v for v in vectors if v is not None)]
        return places, projection, (-(-H // patch[0]), -(-W // patch[1]))

    def pack(self, weight: Tensor, transposed: bool = False) -> Tensor:
        """Return the packed weight, with inputs in the library's order."""
        return pack_linear(neighbours_first(weight) if self.merges else weight, self.dtype, 1, transposed)

    def gradients(
        self, grad_BHWN: Tensor, needed: Sequence[bool], x: Tensor, weight: Tensor, *vectors: Any
    ) -> Sequence[Optional[Tensor]]:
        places, projection, _ = self.describe(x, weight, *vectors)
        (N, K), is_packed = weight.flatten(1).shape, needed[0] or (not self.post_norm and any(needed[3:]))
        normed = 0 if self.eps is None else N if self.post_norm else K
        transposed = self.pack(weight, transposed=True) if is_packed else empty(0)
        of_x = empty(x.shape) if is_packed else empty(0)  # a norm before the projection needs `of_x` too
        of_weight, of_bias, of_norm = empty(N, K), empty(N), [empty(normed), empty(normed)]
        g = [gradient.data_ptr() or None for gradient in (of_x, of_weight, of_bias, *of_norm)]
        backward = library().merge_backward if self.merges else library().embed_backward
        backward(
            *(byref(places), byref(projection), transposed.data_ptr(), grad_BHWN.data_ptr()),
            byref(structures.ProjectionGradients(*g)),
        )
        if self.merges:
            of_weight = neighbours_last(of_weight)
        if self.merges and not self.post_norm:
            of_norm = [neighbours_last(gradient) for gradient in of_norm]
        return of_x, of_weight.view_as(weight), of_bias, *of_norm

    def by_torch(self, x: Tensor, *weights: Any) -> Tensor:
        if self.merges:
            return merge_by_torch(x, weights, self.eps, self.post_norm)
        return embed_by_torch(x, weights, self.eps)


def output_norm(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """Return the layer norm of tokens in the order of necks and heads: (B, C, H, W), contiguous."""
    return run(_OutputNorm(eps), x_BHWC.float().contiguous(), weight, bias)


class _OutputNorm(NamedTuple):
    """See `Operator`."""

    eps: float

    def compute(self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Sequence[Tensor]:
        B, H, W, C = x_BHWC.shape
        y_BCHW, vectors = empty(B, C, H, W), [None if v is None else v.contiguous() for v in (weight, bias)]
        library().output_norm_forward(
            *(x_BHWC.data_ptr(), B, H * W, C, *(address('a tensor of the norm', v, (C,)) for v in vectors)),
            *(self.eps, torch.get_num_threads(), y_BCHW.data_ptr()),
        )
        return (y_BCHW,)

    def gradients(
        self, grad_BCHW: Tensor, _: Sequence[bool], x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]
    ) -> Sequence[Optional[Tensor]]:
        B, H, W, C = x_BHWC.shape
        gradients = torch.empty_like(x_BHWC), empty(C), empty(C)
        weight = None if weight is None else weight.contiguous()
        library().output_norm_backward(
            *(address('x', x_BHWC, x_BHWC.shape), grad_BCHW.data_ptr(), B, H * W, C),
            *(address('weight', weight, (C,)), self.eps, torch.get_num_threads()),
            *(gradient.data_ptr() for gradient in gradients),
        )
        return gradients

    def by_torch(self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
        return F.layer_norm(x_BHWC, x_BHWC.shape[-1:], weight, bias, self.eps).permute(0, 3, 1, 2)


def neighbours_first(weight: Tensor) -> Tensor:
    """Reorder the last dimension from (C, 2, 2), the order of `nn.Unfold`, to (2, 2, C), the order of whole tokens."""
    channels = weight.dim() - 1
    moved: Tensor = weight.detach().unflatten(channels, (-1, 2, 2)).movedim(channels, channels + 2)
    return moved.flatten(channels)


def neighbours_last(weight: Tensor) -> Tensor:
    """Undo `neighbours_first`."""
    channels = weight.dim() - 1
    moved: Tensor = weight.unflatten(channels, (2, 2, weight.shape[-1] // 4)).movedim(channels + 2, channels)
    return moved.flatten(channels)
