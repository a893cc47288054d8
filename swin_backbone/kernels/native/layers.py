"""The computations of Swin layers: block, patch embedding, patch merging, output norm.

Maps and weights are float32. With `dtype=torch.bfloat16` the matrix products are in bfloat16, like autocast's. Sums,
norms and softmax are in float32.

Layout: B batch, H W height and width of a map, C channels, D hidden channels, h heads, N places of a window; in
`ProjectionComputation`, K input channels and N output channels of the linear layer.
"""

import math
from collections.abc import Sequence
from ctypes import byref, c_int64, c_void_p
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ...models.windows import Windows
from ...sizes import Size
from .computation import MakeWeights, ResultShapes, Weights
from .library import (
    DTYPES,
    GEMM_DTYPES,
    PADDING_AFTER_ROLL,
    PADDING_ATTENDED,
    PADDING_MASKED,
    Block,
    BlockGradients,
    Images,
    Maps,
    Projection,
    ProjectionGradients,
)
from .memory import (
    LINE,
    Cache,
    Packed,
    Unsupported,
    cached_while_unchanged,
    checked_address,
    empty,
    empty_aligned,
    libswin,
    pack_linear,
    require_sizes,
    require_tensor,
)


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

    heads: int
    hidden: int  # channels
    scale: float  # the factor on q k^T
    eps: tuple[float, ...]  # of norm1, norm2 and, if present, norm3
    bias_window: Size  # of the table of position biases (V1), or of pre-training (V2)
    pads_first: bool = True  # whether a map is padded, then rolled. False: it is rolled, then padded (timm).


class BlockComputation(NamedTuple):
    """A Swin block, V1 or V2, from maps (B, H, W, C) and `BlockWeights` to maps; see `Computation`.

    A call may have `drop_path_2B`, the factors of both branches for the images, and without gradients `out`, memory for
    the output.

    Attributes:
        dtype: in which torch would compute linear layers. The library computes them in `GEMM_DTYPES[dtype]`.
        cache: of packed weights.
        saves: whether the forward saves more than the input for backward, see `saved_blocks.saves_activations`.
        saved_bytes: capacity for the saved activations. If they need more, none are saved. None: no limit.
    """

    settings: BlockSettings
    windows: Windows
    dtype: torch.dtype
    cache: Cache
    saves: bool = False
    saved_bytes: Optional[int] = None

    @property
    def operator(self) -> str:
        return 'block'

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        (h, D, *_), C = self.settings, weights[1].shape[0]
        require_sizes('block', self.dtype, 1, 1, 1, C, D, h, *self.windows.window_size, *self.windows.shift)
        for name, tensor, size in zip(BlockWeights._fields, weights, self.shapes(C)):
            require_tensor(name, tensor, size)

    def arguments(self, weights: Weights, drop_path_2B: Optional[Tensor] = None) -> tuple[Any, ...]:
        windows, settings = self.windows, self.settings
        window_args = [*windows.window_size], [*windows.shift], windows.mask_padding, settings.pads_first
        return *weights, drop_path_2B, *window_args, settings.scale, [*settings.eps], self.dtype, self.saves

    def shapes_of_results(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        return ResultShapes(shape, [shape, *self.shapes(weights[1].shape[0])], self.max_saved_bytes(shape, *weights))

    def prepare(self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> Block:
        (h, D, scale, eps, bias_window, pads_first), windows, (B, H, W, C) = self.settings, self.windows, shape
        (Wh, Ww), (down, right) = windows.window_size, windows.shift
        require_sizes('block', self.dtype, B, H, W, C, D, h, Wh, Ww, down, right)
        key = self.dtype, C, h, D, windows.window_size, bias_window
        packed = cached_while_unchanged(parameters, key, lambda: self.pack(C, make_weights(*parameters)), self.cache)
        prepared = Block(
            dtype=DTYPES.index(GEMM_DTYPES[self.dtype]), threads=torch.get_num_threads(),
            batch=B, height=H, width=W, channels=C, hidden=D, heads=h,
            window_height=Wh, window_width=Ww, shift_height=down, shift_width=right,
            padding=PADDING_MASKED if windows.mask_padding else PADDING_ATTENDED if pads_first else PADDING_AFTER_ROLL,
            scale=scale, has_norm3=len(eps) == 3, **dict(zip(('eps1', 'eps2', 'eps3'), eps)), **packed.addresses,
        )  # fmt: skip
        prepared.memory = packed.tensors
        return prepared

    def pack(self, C: int, weights: Sequence[Any]) -> Packed:
        """Return `BlockWeights` in the library's order."""
        h, gemm_dtype = self.settings.heads, GEMM_DTYPES[self.dtype]
        for name, tensor, shape in zip(BlockWeights._fields, weights, self.shapes(C)):
            checked_address(name, tensor, shape, allows_gaps=True)
        panels = [pack_linear(weight, self.dtype, unit) for weight, unit in zip(weights, (C // h, 1, 1, 1))]
        vectors = [
            tensor if tensor is None else tensor.clone(memory_format=torch.contiguous_format) for tensor in weights[4:]
        ]
        linear = tuple(checked_address('packed weight', tensor, dtype=gemm_dtype) for tensor in panels)
        bias = tuple(checked_address('bias', tensor) for tensor in vectors[:4])
        others = {name: checked_address(name, tensor) for name, tensor in zip(VECTORS, vectors[4:])}
        return Packed([*panels, *vectors], dict(linear=linear, bias=bias, **others))

    def shapes(self, C: int) -> Sequence[tuple[int, ...]]:
        """Return the shapes of the tensors of `BlockWeights`."""
        (h, D, *_), N = self.settings, math.prod(self.windows.window_size)
        return (3 * C, C), (C, C), (D, C), (C, D), (3 * C,), (C,), (D,), *[(C,)] * 7, (h, N, N), (h,)

    def forward(
        self, x_BHWC: Tensor, prepared: Block, drop_path_2B: Optional[Tensor] = None, out: Optional[Tensor] = None
    ) -> Sequence[Tensor]:
        copies: list[Any] = []
        y_BHWC = empty(x_BHWC.shape) if out is None else out
        prepared.drop_path = checked_address('drop_path', drop_path_2B, (2, len(x_BHWC)))
        saved, groups, saved_ptr = self.allocate_saved(prepared) if self.saves else ((), 0, None)
        x, y = checked_address('x', x_BHWC, copies=copies), checked_address('y', y_BHWC, x_BHWC.shape)
        libswin().block_forward(byref(prepared), x, y, saved_ptr, groups)
        return y_BHWC, *saved

    def allocate_saved(self, prepared: Block) -> tuple[Sequence[Tensor], int, Optional[int]]:
        """Return memory for activations, the number of groups of windows that save them, and their address."""
        groups, size = _saved_size(prepared, 0)
        needed = LINE + groups * size
        memory = empty_aligned(needed if self.saved_bytes is None else self.saved_bytes)
        groups = groups if needed <= len(memory) else 0
        _groups_in(memory).fill_(groups)
        return (memory,), groups, _address_of_saved(memory, groups * size) if groups else None

    def max_saved_bytes(self, shape: Sequence[int], *weights: Any) -> int:
        """Return bytes for the saved activations in the worst grouping of windows. The processor decides the groups.

        The activations of a group of more than 32 windows may not fit. The terms are those of `Saved` in
        csrc/block/block_group.h: 4 C + D elements of queries, keys, values, attended and hidden tokens, and C of
        float32.
        """
        if not self.saves:
            return 0
        (h, D, *_), C, N = self.settings, shape[3], math.prod(self.windows.window_size)
        rows, columns = self.windows.grid()
        L, is_v2 = shape[0] * rows * columns, BlockWeights(*weights).cosine_scale_h is not None
        # Without instructions for bfloat16, rounded numbers of 4 bytes are saved.
        itemsize = GEMM_DTYPES[self.dtype].itemsize if libswin().has_bf16_gemm else 4
        bytes_per_token = itemsize * (4 * C + D) + 4 * C + (8 * C + 12 * h if is_v2 else 0)
        bytes_per_window = -(-N // 32) * 32 * bytes_per_token + 16 * itemsize * C // h + 8 * LINE
        bound: int = LINE + (L + torch.sym_min(L, 32)) * bytes_per_window
        return bound

    def backward(
        self,
        grad_BHWC: Tensor,
        _: Any,
        x_BHWC: Tensor,
        prepared: Any,
        weights: Any,
        *saved: Tensor,
        drop_path_2B: Optional[Tensor] = None,
    ) -> Weights:
        copies: list[Any] = []
        prepared.drop_path = checked_address('drop_path', drop_path_2B, (2, len(x_BHWC)))
        (C, shape), units = (x_BHWC.shape[3], x_BHWC.shape), (1, x_BHWC.shape[3] // self.settings.heads, 1, 1)
        transposed = [pack_linear(weight, self.dtype, unit, transposed=True) for weight, unit in zip(weights, units)]
        groups, saved_ptr = 0, None
        for memory in saved:
            if memory.data_ptr() % LINE:  # hooks of saved tensors may return memory anywhere
                memory = empty_aligned(memory.nbytes).copy_(memory)
            groups = int(_groups_in(memory))
            saved_ptr = _address_of_saved(memory, math.prod(_saved_size(prepared, groups))) if groups else None
        grad_x, *grad_weights = results = [empty(size) for size in (shape, *self.shapes(C))]
        x_ptr, *ptrs = [checked_address('gradient', tensor) for tensor in results]
        linear, bias, vectors = tuple(ptrs[:4]), tuple(ptrs[4:8]), dict(zip(VECTORS, ptrs[8:]))
        panels = [checked_address('packed weight', tensor, dtype=GEMM_DTYPES[self.dtype]) for tensor in transposed]
        libswin().block_backward(
            *(byref(prepared), (c_void_p * 4)(*panels), checked_address('x', x_BHWC, copies=copies)),
            *(checked_address('gradient', grad_BHWC, shape), saved_ptr, groups),
            byref(BlockGradients(x=x_ptr, linear=linear, bias=bias, **vectors)),
        )
        return grad_x, *grad_weights


def _saved_size(block: Block, groups: int) -> tuple[int, int]:
    """Return the number of groups that save activations, and the bytes of a group. `groups=0`: the library decides."""
    number, size = c_int64(groups), c_int64()
    libswin().block_saved_size(byref(block), byref(number), byref(size))
    return number.value, size.value


def _groups_in(memory: Tensor) -> Tensor:
    """Return the header of a block's saved memory: the number of groups whose activations follow. 0: none."""
    return memory[:8].view(torch.int64)


def _address_of_saved(memory: Tensor, size: int) -> int:
    """Return the address of the saved activations in a block's memory."""
    first = checked_address('saved', memory[: LINE + size], (LINE + size,), torch.uint8)
    return LINE + (first or 0)


VECTORS = *BlockWeights._fields[8:14], 'position_bias', 'cosine_scale'  # fields of `Block`
PROJECTION = 'weight', 'vector', 'vector', 'vector'  # names of a projection's tensors in errors
PROJECTION_VECTORS = 'bias', 'norm_weight', 'norm_bias'  # fields of `Projection`


class ProjectionComputation(NamedTuple):
    """Patch embedding or patch merging: a linear layer over patches or neighbours, and a norm; see `Computation`.

    The tensors are an image (B, C, H, W) or a map (B, H, W, C), the weight and the bias of the projection, and the
    weight and the bias of the norm. Merging has a weight (N, 4C), in the order of `nn.Unfold`, and no bias.

    Attributes:
        is_merging: True: 2 x 2 neighbours of a map are projected. False: patches of an image are.
        eps: of the norm; None: no norm.
        post_norm: whether the norm is behind the projection.
        dtype: in which torch would compute linear layers. The library computes them in `GEMM_DTYPES[dtype]`.
        cache: of packed weights.
        has_gradients: whether autograd records.
    """

    is_merging: bool
    eps: Optional[float]
    post_norm: bool
    dtype: torch.dtype
    cache: Cache
    has_gradients: bool

    @property
    def operator(self) -> str:
        return 'project'

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        N, C, *patch = weights[0].shape  # numbers, but the sizes of a map may be free
        if self.is_merging:
            C //= 4
        if shape[3 if self.is_merging else 1] != C:
            raise Unsupported(f'The compiled library takes {C} channels, not {shape[3 if self.is_merging else 1]}.')
        sizes = (1, 1, 1, C) if self.is_merging else (1, C, 1, 1, *patch)
        require_sizes('merge' if self.is_merging else 'embed', self.dtype, *sizes, N, self.has_gradients)
        for name, tensor, size in zip(PROJECTION, weights, self.shapes(N, C, patch)):
            require_tensor(name, tensor, size)

    def arguments(self, weights: Weights) -> tuple[Any, ...]:
        return *weights, self.is_merging, self.eps, self.post_norm, self.dtype, self.has_gradients

    def shapes_of_results(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        (weight, *_), (N, K) = weights, weights[0].flatten(1).shape
        B, H, W = shape[:3] if self.is_merging else (shape[0], *shape[2:])
        down, across = (2, 2) if self.is_merging else weight.shape[2:]
        normed = 0 if self.eps is None else N if self.post_norm else K
        y_shape = B, (H + down - 1) // down, (W + across - 1) // across, N
        return ResultShapes(y_shape, [shape, weight.shape, (N,), (normed,), (normed,)])

    def prepare(
        self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights
    ) -> tuple[Any, Any, tuple[int, ...]]:
        """Return the structures of the input and of the layer, and the shape of the output."""
        N, (down, across) = len(parameters[0]), (2, 2) if self.is_merging else parameters[0].shape[2:]
        B, H, W, C = shape if self.is_merging else (shape[0], *shape[2:], shape[1])
        sizes = (*shape, N) if self.is_merging else (*shape, down, across, N)
        require_sizes('merge' if self.is_merging else 'embed', self.dtype, *sizes, self.has_gradients)
        packed = cached_while_unchanged(
            parameters, (self.dtype, C, self.post_norm), lambda: self.pack(C, make_weights(*parameters)), self.cache
        )
        projection = Projection(
            dtype=DTYPES.index(GEMM_DTYPES[self.dtype]), threads=torch.get_num_threads(), outputs=N,
            has_norm=self.eps is not None, eps=self.eps or 0.0, **packed.addresses,
        )  # fmt: skip
        projection.memory = packed.tensors
        source: Any = Maps(batch=B, height=H, width=W, channels=C, norm_after=self.post_norm)
        if not self.is_merging:
            source = Images(batch=B, channels=C, height=H, width=W, patch_height=down, patch_width=across)
        return source, projection, (B, -(-H // down), -(-W // across), N)

    def pack(self, C: int, weights: Sequence[Any]) -> Packed:
        """Return weight, bias and norm in the library's order."""
        weight, bias, *norm = weights
        for name, tensor, shape in zip(PROJECTION, weights, self.shapes(len(weight), C, weight.shape[2:])):
            checked_address(name, tensor, shape, allows_gaps=True)
        panels = self.pack_weight(weight)
        copy_norm = neighbours_first if self.is_merging and not self.post_norm else Tensor.clone
        tensors = [
            tensor if tensor is None else copy(tensor)
            for copy, tensor in zip((Tensor.clone, copy_norm, copy_norm), (bias, *norm))
        ]
        addresses = {name: checked_address('vector', tensor) for name, tensor in zip(PROJECTION_VECTORS, tensors)}
        addresses['linear'] = checked_address('packed weight', panels, dtype=panels.dtype)
        return Packed([panels, *tensors], addresses)

    def forward(self, x: Tensor, prepared: tuple[Any, Any, tuple[int, ...]]) -> Sequence[Tensor]:
        copies: list[Any] = []
        source, projection, shape = prepared
        y_BHWN = empty(shape)
        if self.is_merging:
            source.x = checked_address('x', x, copies=copies)
        else:  # an image may have any strides
            source.pixels, source.stride = checked_address('x', x, allows_gaps=True), tuple(x.stride())
        forward = libswin().merge_forward if self.is_merging else libswin().embed_forward
        forward(byref(source), byref(projection), checked_address('y', y_BHWN, shape))
        return (y_BHWN,)

    def shapes(self, N: int, C: int, patch: Sequence[int]) -> Sequence[tuple[int, ...]]:
        """Return the shapes of weight, bias and norm."""
        normed = N if self.post_norm else 4 * C
        return (N, 4 * C) if self.is_merging else (N, C, *patch), (N,), (normed,), (normed,)

    def pack_weight(self, weight: Tensor, transposed: bool = False) -> Tensor:
        """Return the packed weight, with inputs in the library's order."""
        return pack_linear(neighbours_first(weight) if self.is_merging else weight, self.dtype, 1, transposed)

    def backward(
        self, grad_BHWN: Tensor, needed: Sequence[bool], x: Tensor, prepared: Any, weights: Any, *saved: Tensor
    ) -> Weights:
        copies: list[Any] = []
        (source, projection, shape), weight = prepared, weights[0]
        if self.is_merging:
            source.x = checked_address('x', x, copies=copies)
        else:  # an image may have any strides
            source.pixels, source.stride = checked_address('x', x, allows_gaps=True), tuple(x.stride())
        (N, K), needs_grad_x = weight.flatten(1).shape, needed[0] or (not self.post_norm and any(needed[3:]))
        normed = 0 if self.eps is None else N if self.post_norm else K
        transposed = self.pack_weight(weight, transposed=True) if needs_grad_x else empty(0)
        grad_x = empty(x.shape) if needs_grad_x else empty(0)  # a norm before the projection needs `grad_x` too
        grad_weight, grad_bias, grad_norm = empty(N, K), empty(N), [empty(normed), empty(normed)]
        gradients = dict(x=grad_x, linear=grad_weight, bias=grad_bias, norm_weight=grad_norm[0], norm_bias=grad_norm[1])
        addresses = {name: checked_address('gradient', tensor) or None for name, tensor in gradients.items()}
        backward = libswin().merge_backward if self.is_merging else libswin().embed_backward
        backward(
            *(byref(source), byref(projection)),
            checked_address('packed weight', transposed, dtype=transposed.dtype),
            checked_address('gradient', grad_BHWN, shape),
            byref(ProjectionGradients(**addresses)),
        )
        if self.is_merging:
            grad_weight = neighbours_last(grad_weight)
        if self.is_merging and not self.post_norm:
            grad_norm = [neighbours_last(gradient) for gradient in grad_norm]
        return grad_x, grad_weight.view_as(weight), grad_bias, *grad_norm


class OutputNormComputation(NamedTuple):
    """Layer norm from tokens (B, H, W, C) to a contiguous map (B, C, H, W); see `Computation`."""

    eps: float

    @property
    def operator(self) -> str:
        return 'normalise_output'

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        for tensor in weights:
            require_tensor('vector', tensor, (shape[3],))

    def arguments(self, weights: Weights) -> tuple[Any, ...]:
        return *weights, self.eps

    def shapes_of_results(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        B, H, W, C = shape
        return ResultShapes((B, C, H, W), [shape, (C,), (C,)])

    def prepare(self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> tuple[Any, Any]:
        """Return the addresses of weight and bias, and their memory."""
        B, H, W, C = shape
        require_sizes('output_norm', B, H * W, C)
        copies = [*parameters]
        return [checked_address('vector', tensor, (C,), copies=copies) for tensor in parameters], copies

    def forward(self, x_BHWC: Tensor, prepared: tuple[Any, Any]) -> Sequence[Tensor]:
        copies: list[Any] = []
        B, H, W, C = x_BHWC.shape
        y_BCHW = empty(B, C, H, W)
        libswin().output_norm_forward(
            *(checked_address('x', x_BHWC, (B, H, W, C), copies=copies), B, H * W, C, *prepared[0]),
            *(self.eps, torch.get_num_threads(), checked_address('y', y_BCHW, (B, C, H, W))),
        )
        return (y_BCHW,)

    def backward(
        self, grad_BCHW: Tensor, _: Sequence[bool], x_BHWC: Tensor, prepared: Any, weights: Any, *saved: Tensor
    ) -> Weights:
        copies: list[Any] = []
        B, H, W, C = x_BHWC.shape
        gradients = empty(B, H, W, C), empty(C), empty(C)
        libswin().output_norm_backward(
            checked_address('x', x_BHWC, (B, H, W, C), copies=copies),
            checked_address('gradient', grad_BCHW, (B, C, H, W)),
            *(B, H * W, C, prepared[0][0], self.eps, torch.get_num_threads()),
            *(checked_address('gradient', tensor) for tensor in gradients),
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
