"""The computations of Swin layers: block, patch embedding, patch merging, output norm.

Maps and weights are float32. With `dtype=torch.bfloat16` the matrix products are in bfloat16, like autocast's. Sums,
norms and softmax are in float32. For int8 see "Eight bits" in csrc/swin.h.

Layout: B batch, H W height and width of a map, C channels, D hidden channels, h heads, N places of a window; in
`ProjectionComputation`, K input channels and N output channels of the linear layer.
"""

import math
from collections.abc import Sequence
from ctypes import byref, c_int64, c_void_p
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ...compat import find_number
from ...models.windows import Windows
from ...replace import Unsupported
from ...sizes import Size
from .interface import MakeWeights, ResultShapes, Weights
from .library import (
    DTYPES,
    GEMM_DTYPES,
    PADDING_AFTER_ROLL,
    PADDING_ATTENDED,
    PADDING_MASKED,
    BlockGradientsStruct,
    BlockStruct,
    ImagesStruct,
    MapsStruct,
    ProjectionGradientsStruct,
    ProjectionStruct,
    get_libswin,
)
from .memory import (
    LINE,
    Cache,
    PackedWeights,
    empty,
    empty_aligned,
    make_once,
    pack_linear,
    require_address,
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

    @property
    def linear(self) -> tuple[Any, ...]:
        """The weights of the linear layers."""
        return self[:4]

    @property
    def vectors(self) -> tuple[Any, ...]:
        """The other tensors, which are not packed."""
        return self[4:]


def name_fields(addresses: Sequence[Any]) -> dict[str, Any]:
    """Return addresses of tensors, in the order of `BlockWeights`, by field of the structures of a block."""
    norms = dict(zip(BlockWeights._fields[8:14], addresses[8:14]))
    others = dict(position_bias=addresses[14], cosine_scale=addresses[15])
    return dict(weight=tuple(addresses[:4]), bias=tuple(addresses[4:8]), **norms, **others)


class BlockSettings(NamedTuple):
    """The numbers of a Swin block beside the tensors."""

    heads: int
    hidden: int  # channels
    scale: float  # the factor on q k^T
    eps: tuple[float, ...]  # of norm1, norm2 and, if present, norm3
    bias_window: Size  # of the table (V1) or of pre-training (V2), in the cache's key
    pads_first: bool = True  # whether a map is padded, then rolled. False: it is rolled, then padded (timm).


class BlockComputation(NamedTuple):
    """A Swin block, V1 or V2, from maps (B, H, W, C) and `BlockWeights` to maps; see `Computation`.

    Attributes:
        dtype: of linear layers in torch. The library computes their products in `GEMM_DTYPES[dtype]`.
        cache: of packed weights.
        saves_activations: whether the forward saves more than the input for backward, see `saved_blocks.py`.
        saved_capacity: bytes for the saved activations. If they need more, none are saved. None: no limit.
        drop_path_2B: the factors of both branches for the maps of one call, set by its plan; None: all are 1.
        out: memory for the output of one call without gradients, set by its plan. That of the input is allowed.
    """

    settings: BlockSettings
    windows: Windows
    dtype: torch.dtype
    cache: Cache
    saves_activations: bool = False
    saved_capacity: Optional[int] = None
    drop_path_2B: Optional[Tensor] = None
    out: Optional[Tensor] = None

    @property
    def operator_name(self) -> str:
        return 'block'

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        settings, windows, C = self.settings, self.windows, len(BlockWeights(*weights).proj_weight)
        window_size = [find_number(side) for side in windows.window_size]
        if any(side is None for side in window_size):
            raise Unsupported('In a graph the compiled library takes windows of one size, and these are of any size.')
        sizes = 1, 1, 1, C, settings.hidden, settings.heads, *window_size, *windows.shift
        require_sizes('block', self.dtype, *sizes)
        for name, tensor, tensor_shape in zip(BlockWeights._fields, weights, self.list_shapes(C)):
            require_tensor(name, tensor, tensor_shape)

    def list_operator_arguments(self, weights: Weights) -> tuple[Any, ...]:
        settings, windows = self.settings, self.windows
        window_arguments = [*windows.window_size], [*windows.shift], windows.mask_padding, settings.pads_first
        others = settings.scale, [*settings.eps], self.dtype, self.saves_activations
        return *weights, self.drop_path_2B, *window_arguments, *others

    def infer_shapes(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        gradients = [shape, *self.list_shapes(len(BlockWeights(*weights).proj_weight))]
        return ResultShapes(shape, gradients, self.bound_saved_bytes(shape, *weights))

    def prepare(self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> BlockStruct:
        h, D, scale, eps, bias_window, pads_first = self.settings
        windows = self.windows
        (Wh, Ww), (down, right) = windows.window_size, windows.shift
        B, H, W, C = shape
        require_sizes('block', self.dtype, B, H, W, C, D, h, Wh, Ww, down, right)
        key = self.dtype, C, h, D, windows.window_size, bias_window
        packed = make_once(parameters, key, lambda: self.pack(C, make_weights(*parameters)), self.cache)
        prepared = BlockStruct(
            dtype=DTYPES.index(GEMM_DTYPES[self.dtype]), threads=torch.get_num_threads(),
            batch=B, height=H, width=W, channels=C, hidden=D, heads=h,
            window_height=Wh, window_width=Ww, shift_height=down, shift_width=right,
            padding=PADDING_MASKED if windows.mask_padding else PADDING_ATTENDED if pads_first else PADDING_AFTER_ROLL,
            scale=scale, has_norm3=len(eps) == 3, **dict(zip(('eps1', 'eps2', 'eps3'), eps)), **packed.addresses,
        )  # fmt: skip
        prepared.memory = packed.tensors
        return prepared

    def pack(self, C: int, weights: Sequence[Any]) -> PackedWeights:
        """Return `BlockWeights` in the library's order."""
        w, h, gemm_dtype = BlockWeights(*weights), self.settings.heads, GEMM_DTYPES[self.dtype]
        for name, tensor, shape in zip(w._fields, w, self.list_shapes(C)):
            require_address(name, tensor, shape, allows_gaps=True)
        panels = [pack_linear(weight, self.dtype, unit) for weight, unit in zip(w.linear, (C // h, 1, 1, 1))]
        vectors = [
            tensor if tensor is None else tensor.clone(memory_format=torch.contiguous_format) for tensor in w.vectors
        ]
        addresses: list[Any] = [require_address('packed weight', tensor, dtype=gemm_dtype) for tensor in panels]
        addresses += [require_address('vector', tensor) for tensor in vectors]
        return PackedWeights([*panels, *vectors], name_fields(addresses))

    def list_shapes(self, C: int) -> Sequence[tuple[int, ...]]:
        """Return the shapes of the tensors of `BlockWeights`."""
        h, D, N = self.settings.heads, self.settings.hidden, math.prod(self.windows.window_size)
        return (3 * C, C), (C, C), (D, C), (C, D), (3 * C,), (C,), (D,), *[(C,)] * 7, (h, N, N), (h,)

    def forward(self, x_BHWC: Tensor, prepared: BlockStruct) -> Sequence[Tensor]:
        x_BHWC = x_BHWC.contiguous()
        y_BHWC = empty(x_BHWC.shape) if self.out is None else self.out
        prepared.drop_path = require_address('drop_path', self.drop_path_2B, (2, len(x_BHWC)))
        saved, groups, saved_ptr = self.allocate_saved(prepared) if self.saves_activations else ((), 0, None)
        x_ptr = require_address('x', x_BHWC)
        y_ptr = require_address('y', y_BHWC, x_BHWC.shape)
        get_libswin().block_forward(byref(prepared), x_ptr, y_ptr, saved_ptr, groups)
        return y_BHWC, *saved

    def allocate_saved(self, prepared: BlockStruct) -> tuple[Sequence[Tensor], int, Optional[int]]:
        """Return memory for activations, the number of groups of windows that save them, and their address."""
        groups, group_bytes = _find_saved_size(prepared, 0)
        num_bytes = LINE + groups * group_bytes
        memory = empty_aligned(num_bytes if self.saved_capacity is None else self.saved_capacity)
        groups = groups if num_bytes <= len(memory) else 0
        _find_header(memory).fill_(groups)
        return (memory,), groups, _find_saved_address(memory, groups * group_bytes) if groups else None

    def bound_saved_bytes(self, shape: Sequence[int], *weights: Any) -> int:
        """Return bytes for the saved activations, whatever groups of windows the library chooses.

        The library cannot compute them: in a graph, sizes are symbols. This is an upper bound for groups of at most 32
        windows. Activations of larger groups may not fit; then the forward saves none, and backward recomputes them.
        Terms as in `SavedActivations` of csrc/block/block_group.h: in the dtype of the products 3 C of queries,
        keys and values, C of attended and D of hidden tokens; in float32 C. The rows of a group are a multiple of 32
        (TILE_TERMS); qkv has 16 rows of a head more (ROW_STEP); each of 7 arrays and the group begin at a cache line.
        """
        if not self.saves_activations:
            return 0
        h, D, C, N = self.settings.heads, self.settings.hidden, shape[3], math.prod(self.windows.window_size)
        rows, columns = self.windows.count_windows()
        L = shape[0] * rows * columns
        is_v2 = BlockWeights(*weights).cosine_scale_h is not None
        # Without instructions for bfloat16, rounded numbers of 4 bytes are saved.
        itemsize = GEMM_DTYPES[self.dtype].itemsize if get_libswin().has_bf16_gemm else 4
        bytes_per_token = itemsize * (4 * C + D) + 4 * C + (8 * C + 12 * h if is_v2 else 0)
        bytes_per_window = -(-N // 32) * 32 * bytes_per_token + 16 * itemsize * C // h + 8 * LINE
        return LINE + (L + torch.sym_min(L, 32)) * bytes_per_window

    def backward(
        self, grad_BHWC: Tensor, _: Any, x_BHWC: Tensor, prepared: BlockStruct, weights: Any, saved: Sequence[Tensor]
    ) -> Weights:
        x_BHWC = x_BHWC.contiguous()
        shape, C = x_BHWC.shape, x_BHWC.shape[3]
        prepared.drop_path = require_address('drop_path', self.drop_path_2B, (2, len(x_BHWC)))
        units = 1, C // self.settings.heads, 1, 1
        transposed = [
            pack_linear(weight, self.dtype, unit, transposed=True)
            for weight, unit in zip(BlockWeights(*weights).linear, units)
        ]
        groups, saved_ptr = 0, None
        if saved:
            (memory,) = saved
            if memory.data_ptr() % LINE:  # hooks of saved tensors may return memory anywhere
                memory = empty_aligned(memory.nbytes).copy_(memory)
            groups = int(_find_header(memory))
            if groups:
                saved_ptr = _find_saved_address(memory, groups * _find_saved_size(prepared, groups)[1])
        gradients = [empty(gradient_shape) for gradient_shape in (shape, *self.list_shapes(C))]
        addresses: list[Any] = [require_address('gradient', tensor) for tensor in gradients]
        panel_ptrs = [require_address('packed weight', tensor, dtype=GEMM_DTYPES[self.dtype]) for tensor in transposed]
        structure = BlockGradientsStruct(x=addresses[0], **name_fields(addresses[1:]))
        x_ptr = require_address('x', x_BHWC)
        grad_ptr = require_address('gradient', grad_BHWC, shape)
        get_libswin().block_backward(
            byref(prepared), (c_void_p * 4)(*panel_ptrs), x_ptr, grad_ptr, saved_ptr, groups, byref(structure)
        )
        return gradients


def _find_saved_size(block: BlockStruct, groups: int) -> tuple[int, int]:
    """Return the number of groups that save activations, and the bytes of a group. `groups=0`: the library decides."""
    number, group_bytes = c_int64(groups), c_int64()
    get_libswin().block_saved_size(byref(block), byref(number), byref(group_bytes))
    return number.value, group_bytes.value


def _find_header(memory: Tensor) -> Tensor:
    """Return the header of a block's saved memory: the number of groups whose activations follow. 0: none.

    Backward gets tensors alone, and the number of threads, by which the library chooses groups, may have changed.
    """
    return memory[:8].view(torch.int64)


def _find_saved_address(memory: Tensor, saved_bytes: int) -> int:
    """Return the address of the saved activations in a block's memory, behind the header."""
    header = require_address('saved', memory[: LINE + saved_bytes], (LINE + saved_bytes,), torch.uint8)
    return LINE + (header or 0)


class PreparedProjection(NamedTuple):
    """Structures for a projection of inputs of one shape, and the shape of the output."""

    source: Any  # `ImagesStruct` or `MapsStruct`
    projection: ProjectionStruct
    y_shape: tuple[int, ...]


PROJECTION_TENSORS = 'weight', 'bias', 'norm weight', 'norm bias'  # in errors
PROJECTION_VECTORS = 'bias', 'norm_weight', 'norm_bias'  # fields of `ProjectionStruct`


class ProjectionComputation(NamedTuple):
    """Patch embedding or patch merging: a linear layer over patches or neighbours, and a norm; see `Computation`.

    The tensors are an image (B, C, H, W) or a map (B, H, W, C), the weight and the bias of the projection, and the
    weight and the bias of the norm. Merging has a weight (N, 4C), in the order of `nn.Unfold`, and no bias.

    Attributes:
        is_merging: True: 2 x 2 neighbours of a map are projected. False: patches of an image are.
        eps: of the norm; None: no norm.
        post_norm: whether the norm is behind the projection, as it is in every patch embedding.
        dtype: of linear layers in torch. The library computes their products in `GEMM_DTYPES[dtype]`.
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
    def operator_name(self) -> str:
        return 'project'

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        N, C, *patch = weights[0].shape  # ints; sizes in `shape` may be symbols of a graph
        sizes: list[int]
        if self.is_merging:
            C, channels = C // 4, shape[3]
            function, sizes = 'merge', [1, 1, 1, C]
        else:
            function, channels, sizes = 'embed', shape[1], [1, C, 1, 1, *patch]
        if channels != C:
            raise Unsupported(f'The compiled library takes {C} channels, not {channels}.')
        require_sizes(function, self.dtype, *sizes, N, self.has_gradients)
        for name, tensor, tensor_shape in zip(PROJECTION_TENSORS, weights, self.list_shapes(N, C, patch)):
            require_tensor(name, tensor, tensor_shape)

    def list_operator_arguments(self, weights: Weights) -> tuple[Any, ...]:
        return *weights, self.is_merging, self.eps, self.post_norm, self.dtype, self.has_gradients

    def infer_shapes(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        N, _, *patch = weights[0].shape
        if self.is_merging:
            (B, H, W, C), (down, across) = shape, (2, 2)
        else:
            (B, C, H, W), (down, across) = shape, patch
        y_shape = B, (H + down - 1) // down, (W + across - 1) // across, N
        return ResultShapes(y_shape, [shape, weights[0].shape, *self.list_shapes(N, C, patch)[1:]])

    def list_shapes(self, N: int, C: int, patch: Sequence[int]) -> Sequence[tuple[int, ...]]:
        """Return the shapes of weight, bias and norm."""
        weight_shape = (N, 4 * C) if self.is_merging else (N, C, *patch)
        normed = 0 if self.eps is None else N if self.post_norm else 4 * C
        return weight_shape, (N,), (normed,), (normed,)

    def prepare(self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> PreparedProjection:
        N, _, *patch = parameters[0].shape
        if self.is_merging:
            (B, H, W, C), (down, across) = shape, (2, 2)
            require_sizes('merge', self.dtype, *shape, N, self.has_gradients)
            source: Any = MapsStruct(batch=B, height=H, width=W, channels=C)
        else:
            (B, C, H, W), (down, across) = shape, patch
            require_sizes('embed', self.dtype, *shape, down, across, N, self.has_gradients)
            source = ImagesStruct(batch=B, channels=C, height=H, width=W, patch_height=down, patch_width=across)
        key = self.dtype, C, self.post_norm
        packed = make_once(parameters, key, lambda: self.pack(C, make_weights(*parameters)), self.cache)
        projection = ProjectionStruct(
            dtype=DTYPES.index(GEMM_DTYPES[self.dtype]), threads=torch.get_num_threads(), outputs=N,
            has_norm=self.eps is not None, norm_after=self.post_norm, eps=self.eps or 0.0, **packed.addresses,
        )  # fmt: skip
        projection.memory = packed.tensors
        return PreparedProjection(source, projection, (B, -(-H // down), -(-W // across), N))

    def pack(self, C: int, weights: Sequence[Any]) -> PackedWeights:
        """Return weight, bias and norm in the library's order."""
        weight, bias, *norm = weights
        for name, tensor, shape in zip(PROJECTION_TENSORS, weights, self.list_shapes(len(weight), C, weight.shape[2:])):
            require_address(name, tensor, shape, allows_gaps=True)
        panels = self.pack_weight(weight)
        copy_norm = Tensor.clone if self.post_norm else move_neighbours_first
        vectors = [
            tensor if tensor is None else copy(tensor)
            for copy, tensor in zip((Tensor.clone, copy_norm, copy_norm), (bias, *norm))
        ]
        addresses = {name: require_address(name, tensor) for name, tensor in zip(PROJECTION_VECTORS, vectors)}
        addresses['weight'] = require_address('packed weight', panels, dtype=panels.dtype)
        return PackedWeights([panels, *vectors], addresses)

    def pack_weight(self, weight: Tensor, transposed: bool = False) -> Tensor:
        """Return the packed weight, with inputs in the library's order."""
        return pack_linear(move_neighbours_first(weight) if self.is_merging else weight, self.dtype, 1, transposed)

    def forward(self, x: Tensor, prepared: PreparedProjection) -> Sequence[Tensor]:
        x = x.contiguous() if self.is_merging else x
        source, projection, y_shape = prepared
        y_BHWN = empty(y_shape)
        self.write_address(x, source)
        forward = get_libswin().merge_forward if self.is_merging else get_libswin().embed_forward
        forward(byref(source), byref(projection), require_address('y', y_BHWN, y_shape))
        return (y_BHWN,)

    def write_address(self, x: Tensor, source: Any) -> None:
        """Write the address of the input into its structure."""
        if self.is_merging:
            source.x = require_address('x', x)
        else:  # an image may have any strides
            source.pixels, source.stride = require_address('x', x, allows_gaps=True), tuple(x.stride())

    def backward(
        self,
        grad_BHWN: Tensor,
        needed: Sequence[bool],
        x: Tensor,
        prepared: PreparedProjection,
        weights: Any,
        saved: Sequence[Tensor],
    ) -> Weights:
        x = x.contiguous() if self.is_merging else x
        source, projection, y_shape = prepared
        self.write_address(x, source)
        # The gradients of a norm in front are computed from those of x.
        needs_grad_x = needed[0] or (not self.post_norm and any(needed[3:]))
        transposed = self.pack_weight(weights[0], transposed=True) if needs_grad_x else empty(0)
        x_shape, *shapes = self.infer_shapes(x.shape, *weights).gradients
        gradients = [empty(shape) for shape in (x_shape if needs_grad_x else (0,), *shapes)]
        addresses = [require_address('gradient', tensor) or None for tensor in gradients]
        panels_ptr = require_address('packed weight', transposed, dtype=transposed.dtype)
        grad_ptr = require_address('gradient', grad_BHWN, y_shape)
        backward = get_libswin().merge_backward if self.is_merging else get_libswin().embed_backward
        backward(byref(source), byref(projection), panels_ptr, grad_ptr, byref(ProjectionGradientsStruct(*addresses)))
        grad_x, grad_weight, grad_bias, *grad_norm = gradients
        if self.is_merging:
            grad_weight = move_neighbours_last(grad_weight)
        if not self.post_norm:
            grad_norm = [move_neighbours_last(gradient) for gradient in grad_norm]
        return grad_x, grad_weight, grad_bias, *grad_norm


OUTPUT_NORM_TENSORS = 'weight', 'bias'  # in errors


class PreparedNorm(NamedTuple):
    """The addresses of weight and bias, and the tensors that hold their memory."""

    weight: Optional[int]
    bias: Optional[int]
    tensors: Sequence[Any]


class OutputNormComputation(NamedTuple):
    """Layer norm from tokens (B, H, W, C) to a contiguous map (B, C, H, W); see `Computation`."""

    eps: float

    @property
    def operator_name(self) -> str:
        return 'normalise_output'

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        for name, tensor in zip(OUTPUT_NORM_TENSORS, weights):
            require_tensor(name, tensor, (shape[3],))

    def list_operator_arguments(self, weights: Weights) -> tuple[Any, ...]:
        return *weights, self.eps

    def infer_shapes(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        B, H, W, C = shape
        return ResultShapes((B, C, H, W), [shape, (C,), (C,)])

    def prepare(self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> PreparedNorm:
        B, H, W, C = shape
        require_sizes('output_norm', B, H * W, C)
        tensors = [t if t is None or t.layout is not torch.strided else t.contiguous() for t in parameters]
        weight, bias = (require_address(name, tensor, (C,)) for name, tensor in zip(OUTPUT_NORM_TENSORS, tensors))
        return PreparedNorm(weight, bias, tensors)

    def forward(self, x_BHWC: Tensor, prepared: PreparedNorm) -> Sequence[Tensor]:
        x_BHWC = x_BHWC.contiguous()
        B, H, W, C = x_BHWC.shape
        y_BCHW = empty(B, C, H, W)
        x_ptr = require_address('x', x_BHWC)
        y_ptr = require_address('y', y_BCHW)
        get_libswin().output_norm_forward(
            x_ptr, B, H * W, C, prepared.weight, prepared.bias, self.eps, torch.get_num_threads(), y_ptr
        )
        return (y_BCHW,)

    def backward(
        self, grad_BCHW: Tensor, _: Any, x_BHWC: Tensor, prepared: PreparedNorm, weights: Any, saved: Sequence[Tensor]
    ) -> Weights:
        x_BHWC = x_BHWC.contiguous()
        B, H, W, C = x_BHWC.shape
        gradients = empty(B, H, W, C), empty(C), empty(C)
        x_ptr = require_address('x', x_BHWC)
        grad_ptr = require_address('gradient', grad_BCHW, (B, C, H, W))
        addresses = [require_address('gradient', tensor) for tensor in gradients]
        threads = torch.get_num_threads()
        get_libswin().output_norm_backward(x_ptr, grad_ptr, B, H * W, C, prepared.weight, self.eps, threads, *addresses)
        return gradients


def move_neighbours_first(weight: Tensor) -> Tensor:
    """Reorder the last dimension from (C, 2, 2), the order of `nn.Unfold`, to (2, 2, C), the order of whole tokens."""
    channels = weight.dim() - 1
    return weight.detach().unflatten(channels, (-1, 2, 2)).movedim(channels, channels + 2).flatten(channels)


def move_neighbours_last(weight: Tensor) -> Tensor:
    """Undo `move_neighbours_first`."""
    channels = weight.dim() - 1
    neighbours = weight.unflatten(channels, (2, 2, weight.shape[-1] // 4))
    return neighbours.movedim(channels + 2, channels).flatten(channels)
