"""Functions of tensors for layers by the compiled library: block, patch embedding, patch merging, output norm.

Maps and weights are float32. Under `dtype=torch.bfloat16` the matrix products are in bfloat16, like autocast's. Sums,
norms and softmax are in float32. Each function has gradients.

Layout: B batch, H W height and width of a map, C channels, D hidden channels, h heads, N places of a window; in
`ProjectionOperator`, K input channels and N output channels of the linear layer.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int64, c_void_p
from typing import Any, NamedTuple, Optional, Protocol

import torch
from torch import Tensor

from ...models.windows import Windows
from ...modes import is_batched
from ...positions import Size
from ...replace import refuse
from . import library as c_structures
from .library import DTYPES, PRODUCTS
from .memory import LINE, Cache, address, aligned, cached_while_unchanged, empty, is_readable, libswin, pack_linear

LARGEST_WINDOW = 16  # places along a side
HEAD_DIMS = range(8, 65, 8)  # channels of a head


class Operator(Protocol):
    """A computation by the library, with gradients."""

    def compute(self, x: Tensor, *weights: Any) -> Sequence[Tensor]:
        """Return the output, and tensors to store for `gradients` beside the arguments."""

    def gradients(self, grad: Tensor, needed: Sequence[bool], x: Tensor, *stored: Any) -> Sequence[Optional[Tensor]]:
        """Return the gradients for the arguments of `compute`.

        Args:
            grad: of the output, contiguous.
            needed: whether the gradient of an argument is needed. Unneeded gradients are ignored.
            stored: the weights, then the stored tensors.
        """


Derive = Callable[..., Sequence[Optional[Tensor]]]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operator: Operator, derive: Derive, by_torch: Callable[..., Tensor], *tensors: Optional[Tensor]
    ) -> Tensor:
        x, *parameters = tensors
        output, *more = operator.compute(x, *derive(*parameters))  # type: ignore[arg-type]
        ctx.save_for_backward(*tensors, *more)
        ctx.operator, ctx.derive, ctx.by_torch = operator, derive, by_torch
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # Hooks of saved tensors may return tensors at any address.
        stored = [t if t is None or is_readable(t) else t.clone() for t in ctx.saved_tensors]
        needed = ctx.needs_input_grad[3:]
        needed_x, needed_parameters = needed[0], needed[1:]
        (x, *parameters), more = stored[: len(needed)], stored[len(needed) :]
        grad = grad.resolve_neg().contiguous()
        # The library has no second derivatives (`create_graph=True`), and takes one gradient, not a batch of them.
        if torch.is_grad_enabled() or is_batched(grad) or not is_readable(grad):
            return None, None, None, *_gradients_by_autograd(ctx.by_torch, [x, *parameters], needed, grad)
        with torch.enable_grad():
            leaves = [p if p is None else p.detach().requires_grad_(n) for p, n in zip(parameters, needed_parameters)]
            weights = ctx.derive(*leaves)
        detached, needed_weights = [w if w is None else w.detach() for w in weights], [_is_needed(w) for w in weights]
        of_x, *of_weights = ctx.operator.gradients(grad, [needed_x, *needed_weights], x, *detached, *more)
        pairs = [(w, g) for w, g, is_needed in zip(weights, of_weights, needed_weights) if is_needed]
        inputs = [leaf for leaf, n in zip(leaves, needed_parameters) if n]
        of_inputs = iter(_apply_chain_rule(pairs, inputs))
        of_parameters = [next(of_inputs) if n else None for n in needed_parameters]
        return None, None, None, of_x if needed_x else None, *of_parameters


def _is_needed(weight: Optional[Tensor]) -> bool:
    return weight is not None and weight.requires_grad


def _apply_chain_rule(pairs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Any]) -> Sequence[Optional[Tensor]]:
    """Return the gradients of inputs, given pairs of an output and its gradient."""
    if not inputs:
        return ()
    outputs, of_outputs = zip(*pairs)
    return torch.autograd.grad(outputs, inputs, of_outputs, allow_unused=True)


def run_operator(
    operator: Operator,
    by_torch: Callable[..., Tensor],
    x: Tensor,
    *parameters: Optional[Tensor],
    derive: Derive = lambda *parameters: parameters,
) -> Tensor:
    """Return the output of an operator, with gradients if autograd records.

    Args:
        by_torch: computes the output in torch operations, for second derivatives and batches of gradients.
        derive: makes the operator's weights from the parameters, in torch operations.
    """
    if torch.is_grad_enabled():
        y: Tensor = _Function.apply(operator, derive, by_torch, x, *parameters)  # type: ignore[no-untyped-call]
        return y
    return operator.compute(x, *derive(*parameters))[0]


def _gradients_by_autograd(
    function: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], needed: Sequence[bool], grad: Tensor
) -> list[Optional[Tensor]]:
    """Return the gradients of `function(*tensors)` for the tensors; None: no gradient is needed."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # If two layers share a weight, the input may depend on the weight. Views separate the tensors, so the gradient
        # of the weight excludes the path through the input.
        views = [t.view_as(t) if t is not None and n else t for t, n in zip(tensors, needed)]
        y = _outside_vmap(function, *views) if is_batched(grad) else function(*views)
        y = y.view(grad.shape)  # some layers return tokens without the shape of the map
    inputs = [view for view, n in zip(views, needed) if n]
    gradients = iter(
        torch.autograd.grad(y, inputs, grad, create_graph=create_graph, allow_unused=True)  # type: ignore[arg-type]
    )
    return [next(gradients) if n else None for n in needed]


def _outside_vmap(function: Callable[..., Tensor], *tensors: Optional[Tensor]) -> Tensor:
    """Call a function in a new thread, which has no vmap: under vmap, no random numbers of drop path can be drawn."""

    def call() -> Tensor:
        with torch.enable_grad():
            return function(*tensors)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


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


class BlockSettings(NamedTuple):
    """The numbers of a Swin block beside the tensors."""

    scale: float  # the factor on q k^T
    eps: tuple[float, ...]  # of norm1, norm2 and, if present, norm3


def can_compute_block(
    tensors: Mapping[str, Any],
    heads: int,
    window: Size,
    more_shapes: Sequence[Sequence[int]] = (),
    raise_error: bool = False,
) -> bool:
    """Return whether the library computes blocks of these sizes.

    Args:
        tensors: by name, in the order of `BlockWeights`, but for the position bias and the scale.
        more_shapes: of the tensors behind these.
    """
    _, proj, fc1, *_ = tensors.values()
    C, D, reason = len(proj), len(fc1), None
    for (name, tensor), shape in zip(tensors.items(), (*_block_shapes(C, D, heads, window)[:-2], *more_shapes)):
        if tensor is not None and tensor.shape != shape:
            reason = f'The compiled library takes a {name} of {list(shape)}, not {list(tensor.shape)}.'
            return refuse('native', reason, raise_error)
    if not 1 <= min(window) <= max(window) <= LARGEST_WINDOW:
        reason = f'The compiled library takes windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {tuple(window)}.'
    elif not heads or C % heads or C // heads not in HEAD_DIMS:
        reason = f'The compiled library takes heads of 8, 16, ... 64 channels, not {heads} heads for {C} channels.'
    elif not D or D % 8:
        reason = f'The compiled library takes MLPs of a multiple of 8 channels, not {D}.'
    return reason is None or refuse('native', reason, raise_error)


def _block_shapes(C: int, D: int, h: int, window: Size) -> Sequence[tuple[int, ...]]:
    """Return the shapes of the tensors of `BlockWeights`."""
    N = window[0] * window[1]
    return (3 * C, C), (C, C), (D, C), (C, D), (3 * C,), (C,), (D,), *[(C,)] * 7, (h, N, N), (h,)


class BlockOperator(NamedTuple):
    """A Swin block, V1 or V2, from maps (B, H, W, C) and `BlockWeights` to maps; see `Operator`.

    Attributes:
        dtype: of the matrix products, equal to autocast's dtype.
        cache: of packed weights.
        drop_path_2B: the factors of both branches for the images; None: 1.
        stores: whether the forward stores more than the input for backward, see `availability.is_stored`.
        out: memory for the output; None: new memory. Must be None with gradients.
    """

    settings: BlockSettings
    windows: Windows
    dtype: torch.dtype
    cache: Cache
    drop_path_2B: Optional[Tensor] = None
    stores: bool = False
    out: Optional[Tensor] = None

    def compute(self, x_BHWC: Tensor, *weights: Any) -> Sequence[Tensor]:
        described = self.describe(x_BHWC, BlockWeights(*weights))
        y_BHWC = torch.empty_like(x_BHWC) if self.out is None else self.out
        groups, memory = 0, []
        if self.stores:
            groups, size = _saved_size(described, 0)
            memory = [aligned(groups * size).view(groups, size)]
        saved = memory[0].data_ptr() if memory else None
        libswin().block_forward(byref(described), x_BHWC.data_ptr(), y_BHWC.data_ptr(), saved, groups)
        return y_BHWC, *memory

    def describe(self, x_BHWC: Tensor, w: BlockWeights) -> c_structures.Block:
        """Return the library's description of the block. `can_compute_block` has checked shapes and dtypes."""
        (B, H, W, C), D, h, windows = x_BHWC.shape, len(w.fc1_weight), len(w.position_bias_hNN), self.windows
        linear, (scale, eps) = w[:4], self.settings

        def make() -> list[Tensor]:
            return [pack_linear(weight, self.dtype, unit) for weight, unit in zip(linear, (C // h, 1, 1, 1))]

        packed = cached_while_unchanged(linear, (self.dtype, h), make, self.cache)
        padding = 1 if windows.mask_padding else 0 if windows.pads_first else 2  # `swin_padding`
        others = [None if tensor is None else tensor.contiguous() for tensor in (*w[4:], self.drop_path_2B)]
        p = [None if tensor is None else tensor.data_ptr() for tensor in others]
        described = c_structures.Block(
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
        C, h = x_BHWC.shape[3], len(w.position_bias_hNN)
        shapes, units = _block_shapes(C, len(w.fc1_weight), h, self.windows.window_size), (1, C // h, 1, 1)
        for name, tensor, shape in zip(w._fields, w, shapes):  # hooks of saved tensors may return any tensor
            if tensor is not None and (tensor.shape != shape or tensor.dtype is not torch.float32):
                raise ValueError(f'{name} must be {list(shape)}, float32, got {list(tensor.shape)}, {tensor.dtype}')
        x, described = address('x', x_BHWC, x_BHWC.shape), self.describe(x_BHWC, w)
        transposed = [pack_linear(weight, self.dtype, unit, transposed=True) for weight, unit in zip(w[:4], units)]
        groups, saved = 0, None
        if self.stores:
            groups, memory = len(stored[-1]), stored[-1]
            if memory.data_ptr() % LINE:  # hooks of saved tensors may return memory anywhere
                memory = aligned(memory.nbytes).copy_(memory.flatten()).view(memory.shape)
            saved = address('saved', memory, _saved_size(described, groups), torch.uint8)
        of_x, of_weights = torch.empty_like(x_BHWC), [empty(shape) for shape in shapes]
        g = [gradient.data_ptr() for gradient in of_weights]
        libswin().block_backward(
            *(byref(described), (c_void_p * 4)(*[panels.data_ptr() for panels in transposed])),
            *(x, grad_BHWC.data_ptr(), saved, groups),
            byref(c_structures.BlockGradients(of_x.data_ptr(), tuple(g[:4]), tuple(g[4:8]), *g[8:])),
        )
        return of_x, *of_weights


def _saved_size(block: c_structures.Block, groups: int) -> tuple[int, int]:
    """Return the number of groups with saved values, and the bytes of a group. For `groups=0` the library decides."""
    number, size = c_int64(groups), c_int64()
    libswin().block_saved_size(byref(block), byref(number), byref(size))
    return number.value, size.value


class ProjectionOperator(NamedTuple):
    """Patch embedding or patch merging: a linear layer over patches or neighbours, and a norm; see `Operator`.

    The tensors are an image (B, C, H, W) or a map (B, H, W, C), the weight and the bias of the projection, and the
    weight and the bias of the norm. Merging has a weight (N, 4C), in the order of `nn.Unfold`, and no bias.

    Attributes:
        merges: True: 2 x 2 neighbours of a map are projected. False: patches of an image are.
        eps: of the norm; None: no norm.
        post_norm: whether the norm is behind the projection.
        dtype: of the matrix products, equal to autocast's dtype.
        cache: of packed weights.
    """

    merges: bool
    eps: Optional[float]
    post_norm: bool
    dtype: torch.dtype
    cache: Cache

    def compute(self, x: Tensor, weight: Tensor, *vectors: Optional[Tensor]) -> Sequence[Tensor]:
        places, projection, (rows, columns) = self.describe(x, weight, *vectors)
        y_BHWN = empty(len(x), rows, columns, len(weight))
        forward = libswin().merge_forward if self.merges else libswin().embed_forward
        forward(byref(places), byref(projection), y_BHWN.data_ptr())
        return (y_BHWN,)

    def describe(
        self, x: Tensor, weight: Tensor, bias: Optional[Tensor], *norm: Optional[Tensor]
    ) -> tuple[Any, c_structures.Projection, Size]:
        """Return the library's description of the input and of the layer, and the rows and columns of the output."""
        (N, K), patch = weight.flatten(1).shape, (2, 2) if self.merges else tuple(weight.shape[2:])
        C, H, W = x.permute(0, 3, 1, 2).shape[1:] if self.merges else x.shape[1:]
        if K != C * patch[0] * patch[1] or x.dtype is not torch.float32 or not is_readable(x):
            raise ValueError(f'a weight {list(weight.shape)} must fit float32 maps, got {x.dtype} {list(x.shape)}')
        normed = N if self.post_norm else K
        places: Any = c_structures.Maps(x.data_ptr(), *x.shape, self.post_norm)
        if not self.merges:
            places = c_structures.Images(x.data_ptr(), *x.shape, tuple(x.stride()), *patch)
        elif not self.post_norm:
            norm = tuple(v if v is None else neighbours_first(v) for v in norm)
        vectors = [None if v is None else v.contiguous() for v in (bias, *norm)]
        (panels,) = cached_while_unchanged((weight,), (self.dtype,), lambda: [self.pack(weight)], self.cache)
        projection = c_structures.Projection(
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
        (N, K), needs_of_x = weight.flatten(1).shape, needed[0] or (not self.post_norm and any(needed[3:]))
        normed = 0 if self.eps is None else N if self.post_norm else K
        transposed = self.pack(weight, transposed=True) if needs_of_x else empty(0)
        of_x = empty(x.shape) if needs_of_x else empty(0)  # a norm before the projection needs `of_x` too
        of_weight, of_bias, of_norm = empty(N, K), empty(N), [empty(normed), empty(normed)]
        g = [gradient.data_ptr() or None for gradient in (of_x, of_weight, of_bias, *of_norm)]
        backward = libswin().merge_backward if self.merges else libswin().embed_backward
        backward(
            *(byref(places), byref(projection), transposed.data_ptr(), grad_BHWN.data_ptr()),
            byref(c_structures.ProjectionGradients(*g)),
        )
        if self.merges:
            of_weight = neighbours_last(of_weight)
        if self.merges and not self.post_norm:
            of_norm = [neighbours_last(gradient) for gradient in of_norm]
        return of_x, of_weight.view_as(weight), of_bias, *of_norm


class OutputNormOperator(NamedTuple):
    """Layer norm from tokens (B, H, W, C) to a contiguous map (B, C, H, W); see `Operator`."""

    eps: float

    def compute(self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Sequence[Tensor]:
        B, H, W, C = x_BHWC.shape
        y_BCHW, vectors = empty(B, C, H, W), [None if v is None else v.contiguous() for v in (weight, bias)]
        libswin().output_norm_forward(
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
        libswin().output_norm_backward(
            *(address('x', x_BHWC, x_BHWC.shape), grad_BCHW.data_ptr(), B, H * W, C),
            *(address('weight', weight, (C,)), self.eps, torch.get_num_threads()),
            *(gradient.data_ptr() for gradient in gradients),
        )
        return gradients


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
