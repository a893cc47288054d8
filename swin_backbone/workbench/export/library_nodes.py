"""Replace layers of a model with nodes of the compiled library: domain `swin`, see csrc/runtimes/operators.h.

Layout: B batch, C channels, H W height and width.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ...kernels.changes import is_changed
from ...kernels.detection.convolution import MIN_CHANNELS
from ...kernels.native.availability import find_reason_against_dtype
from ...kernels.native.computations import move_neighbours_first
from ...kernels.native.plans import LayerPlan
from ...kernels.swin.single_layer import plan_single_layer
from ...kernels.swin.swin_layers import read_norm
from ...models.layers import PatchEmbed, PatchMerging, SwinBlock
from ...models.pyramid import SwinPyramid
from ...openmmlab.layers.conv3x3 import is_conv_3x3
from ...replace import Plan
from .graph import BackboneMaps, ExportError, Graph

NO_EPS = -1.0  # eps of a missing norm
Shape = Callable[[Tensor], list[Any]]


class Node(nn.Module):
    """A layer for the capture of a graph: `torch.export` records name, weights and attributes."""

    def __init__(self, kind: str, weights: Sequence[Tensor], shape: Shape, **attributes: Any):
        super().__init__()
        self.kind, self.shape, self.attributes = kind, shape, attributes
        for i, weight in enumerate(weights):
            weight = weight.detach() if weight.dtype is torch.int8 else weight.detach().float()
            self.register_buffer(f'weight{i}', weight.contiguous())

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        inputs = (x, *self.buffers())
        y: Tensor = torch.onnx.ops.symbolic(
            f'swin::{self.kind}', inputs, self.attributes, dtype=torch.float32, shape=self.shape(x), version=1
        )
        return y if self.kind != 'OutputNorm' else y.permute(0, 2, 3, 1)  # in place of a norm of tokens


def make_product_node(
    kind: str, linear: Sequence[Tensor], vectors: Sequence[Tensor], shape: Shape, precision: str, **attributes: Any
) -> Node:
    """Return a node with products of linear layers in a precision."""
    if precision == 'int8':
        rounded = [tensor for weight in linear for tensor in round_to_eight_bits(weight)]
        return Node(f'{kind}Int8', (*rounded, *vectors), shape, **attributes)
    return Node(kind, (*linear, *vectors), shape, bfloat16=int(precision == 'bf16'), **attributes)


def round_to_eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return whole numbers, int8, and the largest magnitude of each output of a weight, as the library rounds them.

    The first dimension is that of the outputs. A number of the weight is about largest * whole / 127.
    """
    weight_NK = weight.detach().float().flatten(1)
    largest_N = weight_NK.abs().amax(1)
    to_whole_N = largest_N.new_tensor(127) / largest_N  # `127 / largest_N` is the reciprocal times 127
    whole_NK = (weight_NK * to_whole_N[:, None]).round().to(torch.int8)
    return whole_NK.view(weight.shape), largest_N


class ConvolutionNode(Node):
    """A 3x3 convolution of maps (B, C, H, W). The runtime removes the transposes between two convolutions."""

    def __init__(self, conv: nn.Conv2d):
        C, N = conv.in_channels, conv.out_channels
        weights = conv.weight.permute(0, 2, 3, 1), _fill_bias(conv.bias, N)
        super().__init__('Convolution', weights, lambda x: [*x.shape[:3], N], channels=C, outputs=N)

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def insert_nodes(graph: Graph, precision: str) -> Graph:
    """Replace layers of a graph with nodes: the backbone's layers, and 3x3 convolutions behind the backbone.

    Layers unknown to the library stay plain.

    Raises:
        ExportError: if the library is missing, or the backbone belongs to a foreign package.
    """
    dtype = dict(fp32=torch.float32, bf16=torch.bfloat16, int8=torch.int8)[precision]
    module: Any = copy.deepcopy(graph.module)
    backbone = (module if isinstance(module, BackboneMaps) else module.maps).backbone
    reason = find_reason_against_dtype(dtype)
    if reason is None and not isinstance(backbone, SwinPyramid):
        reason = f'the backbone is {type(backbone).__name__}'
    if reason is not None:
        raise ExportError(f'--operators swin has no operator for this model: {reason}')
    sizes: Any = None if graph.is_free else [(H, W) for _, H, W in backbone.map_sizes(*find_image_size(graph))]
    backbone.patch_embed = _make_node(backbone.patch_embed, make_embed_node, precision)
    for index, stage in enumerate(backbone.stages):
        for i, block in enumerate(stage.blocks):
            stage.blocks[i] = _make_node(block, make_block_node, precision, sizes and sizes[index])
        if stage.downsample is not None:
            stage.downsample = _make_node(stage.downsample, make_merge_node, precision)
    for index in backbone.out_indices:
        norm = getattr(backbone, f'norm{index}')
        if type(norm) is nn.LayerNorm and not is_changed(norm):
            setattr(backbone, f'norm{index}', make_norm_node(norm))
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            # A runtime computes narrow convolutions as fast.
            if is_conv_3x3(child) and min(child.weight.shape[:2]) >= MIN_CHANNELS and not is_changed(child):
                setattr(parent, name, ConvolutionNode(child).eval())
    return replace(graph, module=module)


def find_image_size(graph: Graph) -> Sequence[int]:
    """Return height and width of the backbone's input, for a graph of fixed size."""
    _, *shape = graph.inputs[0].shape
    if graph.task == 'maps':
        return shape[1:]
    module: Any = graph.module
    image: Tensor = module.normalise(module.padding(torch.zeros(1, *shape), torch.tensor(shape[:2]))[0])
    return image.shape[2:]


def _make_node(
    layer: nn.Module, make: Callable[..., Node], precision: str, size: Optional[tuple[int, int]] = None
) -> nn.Module:
    """Return a node in the place of a layer; the layer, if the library does not compute it."""
    planned = plan_single_layer(layer, 'int8' if precision == 'int8' else None, size)
    return make(layer, precision, planned).eval() if callable(planned) else layer


def _fill_norm(weight: Optional[Tensor], bias: Optional[Tensor], channels: int) -> tuple[Tensor, Tensor]:
    return torch.ones(channels) if weight is None else weight, _fill_bias(bias, channels)


def _fill_bias(bias: Optional[Tensor], channels: int) -> Tensor:
    return torch.zeros(channels) if bias is None else bias


def make_embed_node(embed: PatchEmbed, precision: str, _: Plan) -> Node:
    weight = embed.projection.weight
    height, width = embed.patch_size
    norm_weight, norm_bias, eps = read_norm(embed.norm)
    return make_product_node(
        'Embed',
        [weight],
        (_fill_bias(embed.projection.bias, len(weight)), *_fill_norm(norm_weight, norm_bias, len(weight))),
        lambda x: [x.shape[0], (x.shape[2] + height - 1) // height, (x.shape[3] + width - 1) // width, len(weight)],
        precision,
        channels=weight.shape[1],
        outputs=len(weight),
        patch_height=height,
        patch_width=width,
        eps=NO_EPS if eps is None else eps,
    )


def make_block_node(_: SwinBlock, precision: str, plan: LayerPlan) -> Node:
    computation: Any = plan.recipe.computation
    windows, settings = computation.windows, computation.settings
    w: Any = plan.recipe.make_weights(*plan.recipe.parameters)
    C, D, heads = len(w.proj_weight), len(w.fc1_weight), len(w.position_bias_hNN)
    linear = w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight
    biases = w.qkv_bias, w.proj_bias, w.fc1_bias, w.fc2_bias
    norms = (w.norm1_weight, w.norm1_bias), (w.norm2_weight, w.norm2_bias), (w.norm3_weight, w.norm3_bias)
    return make_product_node(
        'Block',
        linear,
        (
            *(_fill_bias(bias, len(weight)) for weight, bias in zip(linear, biases)),
            *(vector for norm in norms for vector in _fill_norm(*norm, C)),
            w.position_bias_hNN,
            _fill_bias(w.cosine_scale_h, heads),
        ),
        lambda x: list(x.shape),
        precision,
        version=1 if w.cosine_scale_h is None else 2,
        channels=C,
        hidden=D,
        heads=heads,
        window_height=windows.window_size[0],
        window_width=windows.window_size[1],
        shift_height=windows.shift[0],
        shift_width=windows.shift[1],
        mask_padding=int(windows.mask_padding),
        scale=float(settings.scale),
        **{f'eps{i + 1}': eps for i, eps in enumerate((*settings.eps, NO_EPS)[:3])},
    )


def make_merge_node(merging: PatchMerging, precision: str, _: Plan) -> Node:
    weight = merging.reduction.weight
    norm_weight, norm_bias, eps = read_norm(merging.norm)
    vectors = _fill_norm(norm_weight, norm_bias, len(weight) if merging.post_norm else weight.shape[1])
    return make_product_node(
        'Merge',
        [move_neighbours_first(weight)],
        vectors if merging.post_norm else [move_neighbours_first(vector) for vector in vectors],
        lambda x: [x.shape[0], (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2, len(weight)],
        precision,
        channels=weight.shape[1] // 4,
        outputs=len(weight),
        norm_after=int(merging.post_norm),
        eps=NO_EPS if eps is None else eps,
    )


def make_norm_node(norm: nn.LayerNorm) -> Node:
    shape: Shape = lambda x: [x.shape[0], x.shape[3], x.shape[1], x.shape[2]]  # noqa: E731
    (channels,) = norm.normalized_shape
    return Node('OutputNorm', _fill_norm(norm.weight, norm.bias, channels), shape, channels=channels, eps=norm.eps)
