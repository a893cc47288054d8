"""Let the compiled library compute the Swin layers of a built model, and undo this.

A layer keeps its modules, parameters and hooks. Its class becomes a subclass with another `forward`, so that deepcopy,
DistributedDataParallel and torch.compile see a module like any other.
"""

import copy
import re
from functools import cache, wraps
from logging import INFO
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor, nn

from ..backends.choose import why_not_native, without_autocast
from ..backends.weight_cache import WeightCache
from ..compat import has_global_hooks
from ..models.layers.layer import Layer, is_hooked, modules_inside
from .origins import KINDS, PARTS, Kind

RECORD = '_swin_backbone_record'
# Differences from the original by rounding, as parts of the largest number.
OUTPUT_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-4


class Record(NamedTuple):
    """What an accelerated layer remembers.

    Attributes:
        kind: index in `KINDS`.
        types: of the modules inside, when the layer was accelerated.
    """

    kind: int
    types: tuple[type[nn.Module], ...]
    cache: WeightCache


class Trial(NamedTuple):
    """The comparison of a layer with its original."""

    name: str
    kind: int
    difference: float  # of outputs and gradients, as part of the largest number
    problem: Optional[str]  # None: equal up to rounding


def accelerate_swin(model: nn.Module, dry_run: bool = False) -> list[str]:
    """Let the compiled library compute the Swin layers of `model`, in place.

    Args:
        dry_run: whether the model stays as it is.

    Returns:
        A line for each Swin and kind of layer, which is logged too.
    """
    trials, lines = [], []
    for name, module in model.named_modules():
        if isinstance(module, Layer) or RECORD in module.__dict__:
            continue
        kind = next((i for i, one in enumerate(KINDS) if one.layer == 'block' and one.matches(module)), None)
        if kind is not None:
            trials.append(_try(name, module, kind))
        elif _looks_like_block(module):
            lines.append(f'{name}: {type(module).__name__} is of no supported origin and stays unchanged.')
    roots = {_root_of(trial.name): KINDS[trial.kind].origin for trial in trials}
    for name, module in model.named_modules():
        root = next(
            (one for one in sorted(roots, key=len, reverse=True) if not one or name.startswith(one + '.')), None
        )
        if root is None or RECORD in module.__dict__:
            continue
        for i, one in enumerate(KINDS):
            if one.layer != 'block' and one.origin == roots[root] and one.matches(module):
                trials.append(_try(name, module, i))
                break
    modules = dict(model.named_modules())
    for trial in trials if not dry_run else []:
        if trial.problem is None:
            _accelerate(modules[trial.name], trial.kind)
    groups: dict[tuple[str, str, Optional[str]], list[Trial]] = {}
    for trial in trials:
        root = max((one for one in roots if not one or trial.name.startswith(one + '.')), key=len)
        groups.setdefault((root, KINDS[trial.kind].layer, trial.problem), []).append(trial)
    for (root, layer, problem), members in groups.items():
        origin, largest = KINDS[members[0].kind].origin, max(one.difference for one in members)
        what = f'{root or type(model).__name__} ({origin}): {len(members)} x {layer}'
        outcome = f'compiled library, largest difference {largest:.1e}' if problem is None else f'unchanged: {problem}'
        lines.append(f'{what}: {outcome}')
    for line in lines:
        print_log(f'accelerate: {line}', 'current', INFO)
    return lines


def find_swins(model: nn.Module) -> list[nn.Module]:
    """Return the modules around accelerated blocks, a Swin each."""
    modules = dict(model.named_modules())
    blocks = [name for name, one in modules.items() if RECORD in one.__dict__ and _is_block(one)]
    return [modules[root] for root in dict.fromkeys(map(_root_of, blocks))]


def _is_block(module: nn.Module) -> bool:
    return KINDS[module.__dict__[RECORD].kind].layer == 'block'


def restore_swin(model: nn.Module) -> None:
    """Undo `accelerate_swin`, in place."""
    for module in model.modules():
        if RECORD in module.__dict__:
            del module.__dict__[RECORD]
            module.__class__ = type(module).__mro__[1]


def _accelerate(module: nn.Module, kind: int) -> None:
    types = tuple(type(one) for _, one in modules_inside(module))
    module.__dict__[RECORD] = Record(kind, types, WeightCache())
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
    return re.sub(r'(^|\.)(encoder\.)?(stages|layers)[._]\d+\.blocks\.\d+$', '', block)


@cache
def _subclass(base: Any) -> Any:
    """Return a class like `base` whose layers the library computes where it can."""

    @wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = _compute(self, args, kwargs)
        return base.forward(self, *args, **kwargs) if output is None else output

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced: Any = base.__reduce_ex__(self, protocol)
        return _new, (base, *reduced[1][1:]), *reduced[2:]

    names = {'forward': forward, '__reduce_ex__': reduce_ex, '__module__': base.__module__}
    return type(base.__name__, (base,), {**names, '__qualname__': base.__qualname__, '__doc__': base.__doc__})


def _new(base: type[nn.Module], *_: Any) -> nn.Module:
    """Return an empty accelerated module, which pickle and deepcopy fill."""
    of_base: Any = base
    made = _subclass(of_base)
    module: nn.Module = made.__new__(made)
    return module


def _compute(module: Any, args: Any, kwargs: Any) -> Any:
    """Return the output by the library; None: the original computes."""
    record: Optional[Record] = module.__dict__.get(RECORD)
    x = args[0] if args else None
    if record is None or not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.bfloat16):
        return None
    if why_not_native(x) is not None:
        return None
    inside = [one for _, one in modules_inside(module)]
    if has_global_hooks() or tuple(map(type, inside)) != record.types or any(map(is_hooked, inside)):
        return None
    if any(isinstance(one, nn.Dropout) and one.p and one.training for one in inside):
        return None
    kind = KINDS[record.kind]
    if any(w is not None and w.dtype != torch.float32 for w in kind.parameters(module)):
        return None
    return kind.compute(module, record.cache, *args, **kwargs)


def _why_not(module: nn.Module, kind: Kind) -> Optional[str]:
    """Return why the library computes nothing of this structure, in one sentence; None: it does."""
    inside = [one for _, one in modules_inside(module)]
    if any(map(is_hooked, inside)):
        return 'A module inside has a hook.'
    weights = [w for w in kind.parameters(module) if w is not None]
    if {id(w) for w in weights} != {id(w) for w in module.parameters()}:
        return 'The layer has parameters that the library does not know.'
    if any(w.device.type != 'cpu' or w.dtype != torch.float32 for w in weights):
        return f'The compiled library takes float32 on a CPU, not {weights[0].dtype} on {weights[0].device.type}.'
    if kind.layer == 'block':
        numbers = torch.linspace(-4, 4, 101)
        if (PARTS[kind.origin](module).activation(numbers) - F.gelu(numbers)).abs().max() > 1e-6:
            return 'The compiled library has one activation, exact GELU.'
    return why_not_native(weights[0])


def _try(name: str, module: nn.Module, index: int) -> Trial:
    """Return `_compare`'s trial; a layer that fails in a trial stays as it is."""
    try:
        return _compare(name, module, index)
    except Exception as error:
        return Trial(name, index, 0.0, f'The trial fails: {type(error).__name__}: {error}')


def _compare(name: str, module: nn.Module, index: int) -> Trial:
    """Compare outputs and gradients of a layer both ways, on a copy with random weights; the layer is untouched."""
    kind = KINDS[index]
    problem = _why_not(module, kind)
    if problem is not None:
        return Trial(name, index, 0.0, problem)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad(), without_autocast('cpu'):
        trial = copy.deepcopy(module).eval()
        for parameter in trial.parameters():
            std = parameter.shape[1:].numel() ** -0.5 if parameter.dim() > 1 else 0.5
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std)
            parameter.requires_grad_(True)
        x, *others = kind.example(trial, generator)
        expected = _run(trial, x, others)
        _accelerate(trial, index)
        if _compute(trial, (x, *others), {}) is None:
            return Trial(name, index, 0.0, 'The compiled library has no computation for these sizes or settings.')
        found = _run(trial, x, others)
    outputs, gradients = (_differences(found[i], expected[i]) for i in (0, 1))
    largest = max(*outputs, *gradients)
    is_equal = max(outputs) <= OUTPUT_TOLERANCE and max(gradients) <= GRADIENT_TOLERANCE
    return Trial(name, index, largest, None if is_equal else f'The results differ by {largest:.1e}.')


def _run(module: nn.Module, x: Tensor, others: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the output, and the gradients of input and parameters."""
    x = x.clone().requires_grad_(True)
    output = module.forward(x, *others)
    y = output[0] if isinstance(output, tuple) else output
    weights = torch.linspace(-1, 1, y.numel()).sin().view(y.shape)
    module.zero_grad()
    (y * weights).sum().backward()
    return [y.detach()], [x if one.grad is None else one.grad for one in (x, *module.parameters())]


def _differences(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the largest difference of each tensor as part of its largest number.

    A tenth of the largest number of all tensors is the least scale: the gradient of a key's bias is 0 up to rounding.
    """
    least = max(float(one.abs().max()) for one in expected) / 10
    return [
        float((a - b).abs().max()) / max(float(b.abs().max()), least) if a.shape == b.shape else float('inf')
        for a, b in zip(found, expected)
    ]
