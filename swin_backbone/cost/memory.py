"""What a step of training keeps in memory, counted from shapes alone: nothing is computed.

A step runs forward and backward on tensors without data. Each storage counts from when it is made until it is let go
of, as in an allocator that wastes nothing. What depends on values is left out: proposals, targets and losses. Layers
are computed as whole maps (`backend='graph'`), and under autocast in the dtypes that CUDA has.
"""

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..compat import DataDependentError, backward_under_modes, fake_tensors
from ..models.pyramid import SwinPyramid
from ..windows.grid import Size
from .flops import build, forward

SAMPLED = 512  # regions of an image that a box head is trained on
SAMPLED_MASKS = 128  # and of these, with an object in them, a mask head, at the most
MOMENTS = 2  # that AdamW keeps of each parameter, in its dtype
# What autocast on CUDA computes in float32, and on a CPU in the dtype that comes.
IN_FLOAT32 = F.layer_norm, F.softmax, torch.softmax, Tensor.softmax


class Memory(NamedTuple):
    """Bytes of one step of training."""

    parameters: int  # and buffers
    gradients: int
    optimizer: int  # of AdamW
    activations: int  # what forward leaves for backward
    peak: int  # the most at any time: gradients come as activations go


def count_memory(model: nn.Module, shape_BCHW: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> Memory:
    """Count one step of training of a detector, segmentor or backbone.

    Args:
        model: on the meta device, as `flops.build` makes it; it is not of use afterwards.
        shape_BCHW: of the images.
        dtype: of autocast; float32 for none.
    """
    model.train()
    for module in model.modules():
        if isinstance(module, SwinPyramid):
            for stage in module.stages:
                stage.options = stage.options._replace(backend='graph')
    images = shape_BCHW[0]
    with fake_tensors(), torch.backends.mkldnn.flags(enabled=False), AsOnCuda(), _Sizes(), _deformable_attention():
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        with Storages([*model.parameters(), *model.buffers()]) as storages:
            x_BCHW = torch.empty(shape_BCHW)
            with torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
                found = forward(model, x_BCHW, images * SAMPLED, images * SAMPLED_MASKS)
            outputs = [x for x in tree_leaves(found) if isinstance(x, Tensor) and x.requires_grad]
            del found
            activations = storages.bytes
            backward_under_modes(outputs, [torch.empty_like(x) for x in outputs])
    kept = sum(_bytes(tensor) for tensor in (*model.parameters(), *model.buffers()))
    trained = sum(_bytes(parameter) for parameter in model.parameters() if parameter.requires_grad)
    moments = MOMENTS * trained
    return Memory(kept, trained, moments, activations, kept + moments + max(storages.peak, trained))


class AsOnCuda(TorchFunctionMode):
    """Autocast to float32 what CUDA's autocast does; the operators that it casts to half precision are the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in IN_FLOAT32 and torch.is_autocast_enabled('cpu'):
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


class _Sizes(TorchFunctionMode):
    """The sizes of a tensor without data as a tensor with data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._shape_as_tensor:
            return torch.tensor(args[0].shape)
        return func(*args, **(kwargs or {}))


@contextmanager
def _deformable_attention() -> Iterator[None]:
    """Mask2Former's deformable attention as its kernel on CUDA keeps it, and not mmcv's version for CPUs."""
    try:
        module: Any = import_module('mmcv.ops.multi_scale_deform_attn')
    except ImportError:
        yield
        return
    on_cpu = module.multi_scale_deformable_attn_pytorch
    module.multi_scale_deformable_attn_pytorch = DeformableAttention.apply
    try:
        yield
    finally:
        module.multi_scale_deformable_attn_pytorch = on_cpu


class DeformableAttention(torch.autograd.Function):
    """(B, values, h, d) at locations (B, queries, h, levels, points, 2) as (B, queries, h d); keeps its arguments."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, sizes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        arguments = value, locations.to(value.dtype), weights.to(value.dtype)
        ctx.save_for_backward(*arguments)
        return value.new_empty(*locations.shape[:2], value.shape[2] * value.shape[3])

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        of_value, of_locations, of_weights = map(torch.empty_like, ctx.saved_tensors)
        return of_value, None, of_locations, of_weights


class Storages(TorchDispatchMode):
    """Bytes of the storages that operators made while this lasts, and that are still there.

    Args:
        before: tensors that were there, of which operators give views.
    """

    def __init__(self, before: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before = [tensor.untyped_storage() for tensor in before]  # held: their ids are no others'
        self.alive: dict[int, Any] = {id(storage): None for storage in self.before}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._hold(result.untyped_storage())
        return results

    def _hold(self, storage: Any) -> None:
        if id(storage) in self.alive:
            return
        size = storage.nbytes()

        def let_go(_: Any, key: int = id(storage)) -> None:
            del self.alive[key]
            self.bytes -= size

        self.alive[id(storage)] = weakref.ref(storage, let_go)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def kept_by_strips(backbone: SwinPyramid, shape_BCHW: tuple[int, int, int, int]) -> int:
    """Bytes that a float32 backbone keeps for backward where layers are computed in strips or by compiled operators.

    These are the inputs of blocks, of patch merging and of the outputs' norms, and the outputs.
    """
    images, _, height, width = shape_BCHW
    total = 0
    for index, (channels, H, W) in enumerate(backbone.map_sizes(height, width)):
        kept = len(backbone.stages[index].blocks) + 1 + (index in backbone.out_indices)
        total += kept * images * channels * H * W
    return total * 4


def memory_report(model: dict[str, Any], scope: str, size: Size, images: int) -> dict[str, Any]:
    """What a step of training of a config's model keeps, in the ways that a Swin is trained.

    Args:
        model: the config of a detector, segmentor or backbone, with a backbone of this package.
        size: height and width of the images.
        images: in a batch.

    Returns:
        Of each way, by its name, the fields of `Memory`.

    Raises:
        ValueError: if the model has no such backbone, or a head that needs values, as Mask2Former's.
    """
    shape = (images, 3, *size)
    found: dict[str, Memory] = {}
    for with_cp in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            cfg = copy.deepcopy(model)
            cfg.get('backbone', cfg)['with_cp'] = with_cp
            built = build(cfg, scope)
            inner = getattr(built, 'backbone', built)
            if not isinstance(inner, SwinPyramid):
                raise ValueError(f'--memory counts a backbone of this package, got {type(inner).__name__}')
            try:
                memory = count_memory(built, shape, dtype)
            except DataDependentError as error:
                raise ValueError('--memory needs shapes alone, and a head needs values: --backbone-only') from error
            name = f'{"with_cp" if with_cp else "whole maps"}, {"bf16" if dtype == torch.bfloat16 else "fp32"}'
            found[name] = memory
    alone = copy.deepcopy(model.get('backbone', model))
    backbone: Any = build(dict(alone, with_cp=True), scope)
    kept = kept_by_strips(backbone, shape)
    memory = found['with_cp, fp32']
    saved = count_memory(backbone, shape).activations - kept
    found['strips, fp32'] = memory._replace(activations=memory.activations - saved, peak=memory.peak - saved)
    return {name: memory._asdict() for name, memory in found.items()}
