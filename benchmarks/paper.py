"""Count kernels and bytes of a forward on a GPU, eager or compiled, without a GPU.

Fake tensors on 'cuda' record the operators that a GPU would run. An operator that is no view is a kernel, reads its
inputs once and writes its outputs once. PyTorch's scaled_dot_product_attention counts as a fused kernel. A compiled
forward runs the kernels of Inductor's schedule: fused operators are one kernel, and what stays inside is not counted.

Layout: B batch, C channels, H W height and width.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Optional, cast
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from swin_backbone.kernels.triton.plans import run_attention
from swin_backbone.models.layers.attention import BaseAttention
from swin_backbone.replace import Replacement

A100 = SimpleNamespace(major=8, minor=0, multi_processor_count=108, max_threads_per_multi_processor=2048)
NO_KERNELS = {'_unsafe_view', 'empty', 'empty_like', 'empty_strided', 'new_empty', 'lift_fresh', 'device'}


class Traffic(TorchDispatchMode):
    """Count kernels and bytes by the operator's name.

    Attributes:
        kernels, bytes: the counts. Views and allocations are no kernels.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.casts = {id(x): 0 for x in weights}
        self.kernels: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.partition('::')[2]
        out = _shape_of(func, args) if name in ('convolution', 'im2col') else func(*args, **kwargs)
        aliases = [result.alias_info for result in func._schema.returns]
        is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
        if name == '_to_copy' and id(args[0]) in self.casts:  # autocast keeps the first cast of a weight
            self.casts[id(args[0])] += 1
            is_view = is_view or self.casts[id(args[0])] > 1
        if not is_view and name not in NO_KERNELS:
            self.kernels[name] += 1
            read = () if name.endswith('zeros') else (args, kwargs)
            self.bytes[name] += sum(_bytes(x) for x in tree_leaves((read, out)) if isinstance(x, Tensor))
        return out


def _shape_of(func: Any, args: Any) -> Tensor:
    """Return an empty tensor like the result of an operator whose fake needs CUDA in PyTorch's build."""
    out = func(*tree_map_only(Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype, device='meta'), args))
    return torch.empty(out.shape, dtype=out.dtype, device=args[0].device)


def _bytes(x: Tensor) -> int:
    """Return the bytes of a tensor. Expanded elements are read once."""
    return x.element_size() * int(torch.Size(size for size, step in zip(x.shape, x.stride()) if step).numel())


@torch.library.custom_op('swin_backbone_benchmarks::fused_attention', mutates_args=())
def _fused_attention(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.empty_like(v)


@_fused_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.empty_like(v)


class _AnyBuild(TorchFunctionMode):
    """Compute without what needs CUDA in PyTorch's build: scaled_dot_product_attention becomes an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            dtype = torch.get_autocast_dtype('cuda') if torch.is_autocast_enabled('cuda') else args[0].dtype
            q, k, v, *bias = (x.to(dtype) if x is not None else None for x in args[:4])
            return _fused_attention(q, k, v, *(bias or [kwargs.get('attn_mask')]))
        if func is Tensor.to:  # autocast keeps no cast of a program's own: another tensor, for `Traffic.casts`
            return func(args[0].detach(), *args[1:], **kwargs)
        if func is Tensor.contiguous:
            x = args[0]
            return x if x.is_contiguous(**kwargs) else x.clone(**{'memory_format': torch.contiguous_format, **kwargs})
        if func is Tensor.copy_:
            return torch.ops.aten.copy_.default(*args)
        if func is Tensor.__invert__:
            return torch.bitwise_not(*args)
        if func is Tensor.__getitem__:
            return _index(*args)
        if func is Tensor.__setitem__:
            return _index(*args[:2]).fill_(args[2])  # as mmdet and timm number regions
        return func(*args, **kwargs)


def _index(x: Tensor, index: Any) -> Tensor:
    """Return x[index]."""
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(one, Tensor) for one in index):
        x = torch.ops.aten.index.Tensor(x, index)
        return x
    after, dim = x.dim() - sum(one is not None and one is not ... for one in index), 0
    for one in index:
        if one is ...:
            dim += after
        elif one is None:
            x, dim = x.unsqueeze(dim), dim + 1
        elif isinstance(one, int):
            x = x.select(dim, one)
        else:
            x, dim = torch.ops.aten.slice.Tensor(x, dim, one.start, one.stop, one.step or 1), dim + 1
    return x


@contextmanager
def _gpu_without_gpu() -> Iterator[None]:
    """Let autocast and the Triton kernel take fake CUDA tensors."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch('torch.cuda.amp.common.amp_definitely_not_available', return_value=False))
        stack.enter_context(mock.patch('torch.cuda.is_bf16_supported', return_value=True))
        replacements: list[Replacement] = BaseAttention.forward.replacements  # type: ignore[attr-defined]
        stack.callback(replacements.__setitem__, 0, replacements[0])
        replacements[0] = replacements[0]._replace(make_plan=lambda attention, *_: partial(run_attention, attention))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def count(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, keep_casts: bool = False) -> Traffic:
    """Return the traffic of the second forward in eval mode. The first one makes tables of indices.

    Args:
        shape: of the images, (B, 3, H, W).
        dtype: of autocast; float32: without autocast, in the dtype of the weights.
        keep_casts: both forwards are in one context of autocast, which keeps the casts of the weights.
    """
    casts: dict[int, int] = {}
    with _gpu_without_gpu(), torch.no_grad(), _AnyBuild():
        x_BCHW = _prepare(model, shape)
        for _ in range(2):
            traffic = Traffic(model.parameters())
            traffic.casts.update(casts)
            with torch.autocast('cuda', dtype, enabled=dtype != torch.float32), traffic:
                model(x_BCHW)
            casts = traffic.casts if keep_casts else {}
    return traffic


def _prepare(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Give a model fake weights and eval mode, in place. Return images."""
    for module in model.modules():
        module.training = False  # mmdet's `train` leaves some modules alone
        for tensors in cast(tuple[dict[str, Any], ...], (module._parameters, module._buffers)):
            for name, x in tensors.items():
                if x is not None:
                    tensors[name] = torch.empty(x.shape, dtype=x.dtype, device='cuda')
    return torch.empty(shape, dtype=next(model.parameters()).dtype, device='cuda')


def count_compiled(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Traffic:
    """Return the traffic of a forward compiled for free sizes, as `--compile` does; see `count`.

    Raises:
        RuntimeError: without a CUDA build of PyTorch.
    """
    if not torch.version.cuda:
        raise RuntimeError(f'--paper --compile takes a CUDA build of PyTorch, without a GPU; got {torch.__version__}')
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.scheduler import Scheduler

    traffic = Traffic()

    def record(scheduler: Scheduler) -> None:
        """Count the kernels, and generate no code."""
        for node in scheduler.nodes:
            name = getattr(node.node, 'python_kernel_name', None) or 'fused'
            if size := node.get_read_write_buffers_sizes():
                traffic.kernels[name] += 1
                traffic.bytes[name] += size

    def compile_and_run_eagerly(graph: Any, inputs: Any) -> Any:
        compile_fx(graph, inputs)
        return graph.forward

    torch._C._ensureCUDADeviceGuardSet()
    torch._dynamo.reset()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Scheduler, 'codegen', record))
        for owner in (torch.cuda, CudaInterface, CudaInterface.Worker):
            stack.enter_context(mock.patch.object(owner, 'get_device_properties', return_value=A100))
        stack.enter_context(mock.patch.object(CudaInterface, 'get_compute_capability', return_value=80))
        stack.enter_context(mock.patch.object(CudaInterface, 'is_available', return_value=True))
        computing = dict.fromkeys(['joint_graph_constant_folding', 'shape_padding'], False)  # on the GPU
        stack.enter_context(config.patch({**computing, 'graph_partition': False, 'force_disable_caches': True}))
        stack.enter_context(_gpu_without_gpu())
        stack.enter_context(torch.no_grad())
        x_BCHW = _prepare(model, shape)
        with torch.autocast('cuda', dtype, enabled=dtype != torch.float32):
            torch.compile(model, backend=compile_and_run_eagerly, dynamic=True, fullgraph=True)(x_BCHW)
    torch._dynamo.reset()
    return traffic
