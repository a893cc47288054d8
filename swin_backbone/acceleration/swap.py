"""Let the compiled library compute the Swin layers of a built model, and undo this.

A layer keeps its modules, parameters and hooks. The layer's class becomes a subclass with another `forward`. So
deepcopy, DistributedDataParallel and torch.compile see an ordinary module.
"""

import copy
import re
from collections import Counter, defaultdict
from functools import cache, wraps
from logging import INFO
from typing import Any, Optional

import torch
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.random import fork_rng

from ..backends.choose import why_not_native, without_autocast
from ..backends.native.availability import TINY, Stages
from ..backends.native.library import PRODUCTS
from ..backends.weight_cache import WeightCache
from ..compat import has_global_hooks
from ..models.layers.layer import Layer, is_hooked, modules_inside
from .origins import LAYER_KINDS, Record, bind, channels_of, make_example

RECORD, BASE = '_swin_backbone_record', '_swin_backbone_base'
# Differences from the original by rounding, as parts of the largest number.
OUTPUT_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-4


def accelerate_swin(model: nn.Module, dry_run: bool = False) -> list[str]:
    """Let the compiled library compute the Swin layers of `model`, in place.

    Args:
        dry_run: change nothing.

    Returns:
        A line for each Swin and kind of layer; the lines are logged too.
    """
    modules = {name: one for name, one in model.named_modules() if not isinstance(one, Layer)}
    kinds = {
        name: next((key for key, kind in LAYER_KINDS.items() if kind.matches(one)), '') for name, one in modules.items()
    }
    origins = {}
    blocks: dict[str, Counter[int]] = defaultdict(Counter)  # of each Swin: the number of blocks by channels
    for name, kind in kinds.items():
        if kind.startswith('block'):
            origins[_root_of(name)] = LAYER_KINDS[kind].origin
            blocks[_root_of(name)][channels_of(modules[name], LAYER_KINDS[kind])] += 1
    lines, groups = [], defaultdict(list)
    for name, module in modules.items():
        kind = kinds[name]
        root = max((one for one in origins if not one or f'{name}.'.startswith(f'{one}.')), key=len, default=None)
        if not kind and _looks_like_block(module):
            lines.append(f'{name}: {type(module).__name__} is of no supported origin and stays unchanged.')
        if not kind or root is None or RECORD in module.__dict__:
            continue
        difference, problem = _try(module, kind)
        if problem is None and not dry_run:
            _accelerate(module, kind, tuple(sorted(blocks[root].items())))
        groups[root, LAYER_KINDS[kind].layer, problem].append(difference)
    for (root, layer, problem), differences in groups.items():
        outcome = f'unchanged: {problem}' if problem else f'compiled library, largest difference {max(differences):.1e}'
        origin = origins[root]
        assert origin is not None  # of a block
        lines.append(f'{root or type(model).__name__} ({origin.name}): {len(differences)} x {layer}: {outcome}')
    for line in lines:
        print_log(f'accelerate: {line}', 'current', INFO)
    return lines


def find_swins(model: nn.Module) -> list[nn.Module]:
    """Return the modules around accelerated blocks, a Swin each."""
    modules = dict(model.named_modules())
    records = {name: one.__dict__[RECORD] for name, one in modules.items() if RECORD in one.__dict__}
    blocks = [name for name, record in records.items() if LAYER_KINDS[record.kind].layer == 'block']
    return [modules[root] for root in dict.fromkeys(map(_root_of, blocks))]


def restore_swin(model: nn.Module) -> None:
    """Undo `accelerate_swin`, in place."""
    for module in model.modules():
        if RECORD in module.__dict__:
            del module.__dict__[RECORD]
            module.__class__ = vars(type(module)).get(BASE, type(module))  # FSDP may have made another class of it


def _accelerate(module: nn.Module, kind: str, stages: Stages = TINY) -> None:
    types = tuple(type(one) for _, one in modules_inside(module))
    module.__dict__[RECORD] = Record(kind, types, stages, WeightCache())
    kind_of_module: Any = type(module)
    module.__class__ = _subclass(kind_of_module)


def _looks_like_block(module: nn.Module) -> bool:
    """Return whether a module is some Swin's block: it attends in windows with a position bias."""
    return any(
        hasattr(one, 'relative_position_bias_table') or hasattr(one, 'logit_scale')
        for child in module.children()
        for one in (child, *child.children())
    ) and any(re.search('mlp|ffn|intermediate', name) for name, _ in module.named_children())


def _root_of(block: str) -> str:
    """Return the name of the Swin around a block: stages are in a list, and blocks in a list of their stage."""
    stages = r'(encoder\.)?(stages|layers)[._]\d+\.blocks|features\.\d+'
    return re.sub(rf'(^|\.)({stages})\.\d+$', '', block)


@cache
def _subclass(base: Any) -> Any:
    """Return a subclass of `base` that calls the library where possible."""

    @wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = _compute(self, args, kwargs)
        return base.forward(self, *args, **kwargs) if output is None else output

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced: Any = base.__reduce_ex__(self, protocol)
        return _new, (base, *reduced[1][1:]), *reduced[2:]

    def original(self: Any) -> Any:  # for torch.jit.script
        module = base.__new__(base)
        module.__dict__.update(self.__dict__)
        return module

    names = {BASE: base, 'forward': forward, '__reduce_ex__': reduce_ex, '__prepare_scriptable__': original}
    about = {'__module__': base.__module__, '__qualname__': base.__qualname__, '__doc__': base.__doc__}
    return type(base.__name__, (base,), {**names, **about})


def _new(base: type[nn.Module], *_: Any) -> nn.Module:
    """Return an empty accelerated module, which pickle and deepcopy fill."""
    of_base: Any = base
    made = _subclass(of_base)
    module: nn.Module = made.__new__(made)
    return module


def _compute(module: Any, args: Any, kwargs: Any) -> Any:
    """Return the output by the library; None: the original computes."""
    record: Optional[Record] = module.__dict__.get(RECORD)
    x = next(iter((*args, *kwargs.values())), None)
    if record is None or not isinstance(x, Tensor) or x.dtype not in PRODUCTS or why_not_native(x) is not None:
        return None
    inside = [one for _, one in modules_inside(module)]
    if has_global_hooks() or tuple(map(type, inside)) != record.types or any(map(is_hooked, inside)):
        return None
    if any(isinstance(one, nn.Dropout) and one.p and one.training for one in inside):
        return None
    return LAYER_KINDS[record.kind].compute(module, record, bind(module, args, kwargs))


def _try(module: nn.Module, kind: str) -> tuple[float, Optional[str]]:
    """Compare outputs and gradients of a layer both ways, on a copy in training.

    Returns:
        The largest difference, as part of the largest number, and the reason against the library.
    """
    try:
        with fork_rng(devices=[]), torch.inference_mode(False), without_autocast('cpu'), torch.device('cpu'):
            return _compare(copy.deepcopy(module), kind)
    except Exception as error:
        return 0.0, f'The trial fails: {type(error).__name__}: {error}'


def _compare(module: nn.Module, kind: str) -> tuple[float, Optional[str]]:
    weight, inside = next(module.parameters()), [one for _, one in modules_inside(module)]
    if weight.device.type != 'cpu' or weight.dtype != torch.float32:
        return 0.0, f'The compiled library takes float32 on a CPU, not {weight.dtype} on {weight.device.type}.'
    reason = 'A module inside has a hook.' if any(map(is_hooked, inside)) else why_not_native(weight)
    if reason is not None:
        return 0.0, reason
    generator = torch.Generator().manual_seed(0)
    module.train()
    for dropout in inside:
        if isinstance(dropout, nn.Dropout):
            dropout.p = 0.0
    for parameter in module.parameters():
        std = parameter.shape[1:].numel() ** -0.5 if parameter.dim() > 1 else 0.5
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std)
        parameter.requires_grad_(True)
    arguments = make_example(module, LAYER_KINDS[kind], generator)
    original = _run(module, *arguments)
    _accelerate(module, kind)
    if _compute(module, arguments, {}) is None:
        return 0.0, 'The compiled library has no computation for these sizes or settings.'
    ours = _run(module, *arguments)
    outputs, gradients = (_differences(ours[i], original[i]) for i in (0, 1))
    largest = max(*outputs, *gradients)
    is_equal = max(outputs) <= OUTPUT_TOLERANCE and max(gradients) <= GRADIENT_TOLERANCE
    return largest, None if is_equal else f'The results differ by {largest:.1e}.'


def _run(module: nn.Module, x: Tensor, *others: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the output, and the gradients of input and parameters."""
    torch.manual_seed(0)  # of drop path
    x = x.clone().requires_grad_(True)
    module.zero_grad()
    with torch.enable_grad():
        output = module.forward(x, *others)
        y = output[0] if isinstance(output, tuple) else output
        (y * torch.linspace(-1, 1, y.numel()).sin().view(y.shape)).sum().backward()
    return [y.detach()], [torch.zeros_like(one) if one.grad is None else one.grad for one in (x, *module.parameters())]


def _differences(ours: list[Tensor], original: list[Tensor]) -> list[float]:
    """Return the largest difference of each tensor, divided by the tensor's largest number.

    A tenth of the largest number of all tensors is the least scale: the gradient of a key's bias is 0 up to rounding.
    """
    least = max(float(one.abs().max()) for one in original) / 10
    return [
        float((a - b).abs().max()) / max(float(b.abs().max()), least) if a.shape == b.shape else float('inf')
        for a, b in zip(ours, original)
    ]
