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
from torch.utils._pytree import tree_flatten, tree_leaves

from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinV2Block
from ...models.pyramid import SwinPyramid
from ...modes import without_autocast
from ...replace import CannotRun
from .. import native
from ..native.memory import can_read
from . import foreign
from .foreign import RECORD, Record
from .structure import PRECISION, is_as_built

BASE = '_swin_backbone_base'
OWN_LAYERS = SwinBlock, SwinV2Block, PatchMerging, PatchEmbed
# Allowed differences from the original, by rounding, relative to the largest number.
OUTPUT_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-4


def accelerate_swin(model: nn.Module, dry_run: bool = False, precision: Optional[str] = None) -> list[str]:
    """Let the library compute the Swins of `model`, in place; return the logged lines. `dry_run` changes nothing."""
    if precision not in (None, 'int8'):
        raise ValueError(f"precision must be None or 'int8', got {precision!r}")
    ours = {id(part) for one in model.modules() if isinstance(one, SwinPyramid) for part in one.modules()}
    modules: dict[str, Any] = {name: one for name, one in model.named_modules() if id(one) not in ours}
    layers = {name: record for name, one in modules.items() if (record := foreign.find_layer(one)) is not None}
    swins = defaultdict(list)  # names of the blocks, by name and origin of the Swin
    for name, record in layers.items():
        if record.origin is not None:
            swins[_root_of(name), record.origin.name].append(name)
    lines = [
        f'{name}: {type(one).__name__} is of no supported origin and stays unchanged.'
        for name, one in modules.items()
        if name not in layers and _looks_like_block(one)
    ]
    for (root, origin), blocks in swins.items():
        stages = tuple(sorted(Counter(layers[name].channels for name in blocks).items()))
        # With an absolute position embedding, the map of norm0 is float32 under autocast: the original norm computes.
        output_norms = r'norm[1-9]' if hasattr(modules[root], 'absolute_pos_embed') else r'norm\d'
        outcomes = defaultdict(list)
        for name, record in layers.items():
            module, prefix = modules[name], f'{root}.' if root else ''
            is_output_norm = root not in layers and re.fullmatch(output_norms, name.removeprefix(prefix))
            is_inner_norm = record.compute is foreign.compute_norm and not is_output_norm
            if RECORD in vars(module) or is_inner_norm or not f'{name}.'.startswith(prefix):
                continue
            try:
                with fork_rng(devices=[]), torch.inference_mode(False), without_autocast('cpu'), torch.device('cpu'):
                    difference, problem = _compare(copy.deepcopy(module), record)
            except CannotRun as error:
                difference, problem = 0.0, error.reason
            except Exception as error:  # code of another package may raise any error
                difference, problem = 0.0, f'The trial fails: {type(error).__name__}: {error}'
            if problem is None and not dry_run:
                module.__dict__[RECORD], module.__class__ = record._replace(stages=stages), _subclass(module.__class__)
            outcomes[record.compute.__name__, problem].append(difference)
        for (kind, problem), differences in outcomes.items():
            result = (
                f'unchanged: {problem}' if problem else f'compiled library, largest difference {max(differences):.1e}'
            )
            swin = f'{root or type(model).__name__} ({origin})'
            lines.append(f'{swin}: {len(differences)} x {kind.replace("compute_", "")}: {result}')
    if not dry_run:
        set_precision(model, precision)
    for line in lines:
        print_log(f'accelerate: {line}', 'current', INFO)
    return lines


def set_precision(model: nn.Module, precision: Optional[str]) -> None:
    """Set the precision of all Swin layers of the library, in place; None: that of linear layers in torch."""
    for module in model.modules():
        module.__dict__.pop(PRECISION, None)
        if precision is not None and (isinstance(module, OWN_LAYERS) or RECORD in vars(module)):
            module.__dict__[PRECISION] = precision


def find_swins(model: nn.Module) -> list[nn.Module]:
    """Return the Swins with accelerated blocks."""
    blocks = [name for name, one in model.named_modules() if RECORD in vars(one) and vars(one)[RECORD].names]
    return [model.get_submodule(root) for root in dict.fromkeys(map(_root_of, blocks))]


def restore_swin(model: nn.Module) -> None:
    """Undo `accelerate_swin`, in place."""
    set_precision(model, None)
    for module in model.modules():
        if RECORD in module.__dict__:
            del module.__dict__[RECORD]
            module.__class__ = vars(type(module)).get(BASE, type(module))  # FSDP may have changed the class again


def _looks_like_block(module: nn.Module) -> bool:
    """Return whether a module is some Swin's block: attention with a position bias, and an MLP."""
    inside = [one for child in module.children() for one in (child, *child.children())]
    attends = any(hasattr(one, name) for one in inside for name in ('relative_position_bias_table', 'logit_scale'))
    return attends and any(re.search('mlp|ffn|intermediate', name) for name, _ in module.named_children())


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


def _new(base: Any, *_: Any) -> Any:
    """Return an empty accelerated module, which pickle and deepcopy fill."""
    return _subclass(base).__new__(_subclass(base))


def _compute(module: Any, args: Any, kwargs: Any) -> Any:
    """Return the output by the library; None: the original computes."""
    record: Optional[Record] = module.__dict__.get(RECORD)
    if record is None or not foreign.can_run(module, next(iter((*args, *kwargs.values())), None)):
        return None
    return record.compute(module, record, foreign.bind(module, args, kwargs))


def _compare(module: Any, record: Record) -> tuple[float, Optional[str]]:
    """Compute a layer by torch and by the library: return the largest difference, and why the library cannot be used.

    The difference is that of outputs or gradients. The reason is None if the library can be used. `module` is a copy,
    and changes.
    """
    native.can_run(next(module.parameters()), raise_error=True)
    can_read([*module.parameters()], raise_error=True)
    if not is_as_built(module, record.kinds):
        return 0.0, 'A module inside has a hook.'
    generator = torch.Generator().manual_seed(0)
    module.train()
    for owner, name in foreign.rates_in(module, record):
        setattr(owner, name, 0.0)
    for parameter in module.parameters():
        std = parameter.shape[1:].numel() ** -0.5 if parameter.dim() > 1 else 0.5
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std)
        parameter.requires_grad_(True)
    arguments = foreign.make_example(module, record, generator)
    original, gradients = _run(module, *arguments)
    module.__dict__[RECORD], module.__class__ = record, _subclass(module.__class__)
    if _compute(module, arguments, {}) is None:
        return 0.0, 'The compiled library has no computation for these sizes or settings.'
    ours, our_gradients = _run(module, *arguments)
    (outputs, structure), (our_outputs, our_structure) = tree_flatten(original), tree_flatten(ours)
    is_tensor = [isinstance(one, Tensor) for one in outputs]
    if structure != our_structure or is_tensor != [isinstance(one, Tensor) for one in our_outputs]:
        return 0.0, f'The output is {our_structure}, and the original returns {structure}.'
    # A difference is relative to the largest number of its tensor, or to a tenth of the largest gradient if this is
    # more: the gradient of a key's bias is rounding alone.
    least = max(float(gradient.abs().max()) for gradient in gradients) / 10
    difference = max(_relative(a, b) for a, b, is_compared in zip(our_outputs, outputs, is_tensor) if is_compared)
    gradient_difference = max(_relative(a, b, least) for a, b in zip(our_gradients, gradients))
    is_equal = difference <= OUTPUT_TOLERANCE and gradient_difference <= GRADIENT_TOLERANCE
    largest = max(difference, gradient_difference)
    return largest, None if is_equal else f'The results differ by {largest:.1e}.'


def _relative(ours: Tensor, original: Tensor, least: float = 0.0) -> float:
    """Return the largest difference, divided by the original's largest number, or by `least` if this is more."""
    return float((ours - original).abs().max()) / max(float(original.abs().max()), least)


def _run(module: nn.Module, x: Tensor, *others: Any) -> tuple[Any, list[Tensor]]:
    """Return the output, and the gradients of input and parameters."""
    torch.manual_seed(0)  # of drop path
    x = x.clone().requires_grad_(True)
    module.zero_grad()
    with torch.enable_grad():
        output = module.forward(x, *others)
        y = next(one for one in tree_leaves(output) if isinstance(one, Tensor))
        (y * torch.linspace(-1, 1, y.numel()).sin().view(y.shape)).sum().backward()
    return output, [torch.zeros_like(one) if one.grad is None else one.grad for one in (x, *module.parameters())]
