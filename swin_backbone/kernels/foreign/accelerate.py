"""Let the compiled library compute the Swin layers of a built model, and undo this.

A layer keeps its modules, parameters and hooks. The layer's class becomes a subclass with another `forward`. So
deepcopy, DistributedDataParallel and torch.compile see an ordinary module.
"""

import re
from collections import Counter, defaultdict
from functools import cache, wraps
from logging import getLogger
from typing import Any, Optional

import torch
from torch import nn

from ...models.pyramid import SwinPyramid
from ...replace import Reason
from ..changes import remember_methods
from ..native.availability import PRECISION_ATTRIBUTE, find_reason_against_dtype
from ..swin.by_torch import SWIN_LAYERS
from ..swin.single_layer import plan_single_layer
from .foreign_layers import (
    BASE_CLASS_ATTRIBUTE,
    RECORD_ATTRIBUTE,
    LayerRecord,
    find_record,
    run_norm,
    try_native,
)
from .trial import try_layer

_logger = getLogger(__name__)
BIAS_PARAMETERS = 'relative_position_bias_table', 'logit_scale'  # of the attention of every Swin


def accelerate_swin(model: nn.Module, dry_run: bool = False, precision: Optional[str] = None) -> list[str]:
    """Let the library compute the Swins of `model`, in place; return the logged lines. `dry_run` changes nothing."""
    if precision is not None:
        _require_int8(model, precision)
    lines = _accelerate_foreign_layers(model, dry_run)
    layers = [module for module in model.modules() if precision is not None and isinstance(module, SWIN_LAYERS)]
    outcomes = Counter((type(layer).__name__, _find_reason_against_int8(layer)) for layer in layers)
    unsupported = {(kind, reason): number for (kind, reason), number in outcomes.items() if reason is not None}
    lines += [f'{number} x {kind} not in eight bits: {reason}' for (kind, reason), number in unsupported.items()]
    for line in lines:
        _logger.info(f'accelerate: {line}')
    if dry_run:
        return lines
    is_computed = len(unsupported) < len(outcomes) or any(
        RECORD_ATTRIBUTE in vars(module) for module in model.modules()
    )
    if precision is not None and not is_computed:
        reasons = ': ' + ' '.join(sorted({reason for _, reason in unsupported})) if unsupported else ''
        raise ValueError(f"precision='int8' takes a Swin, and the library computes no layer of this model{reasons}")
    set_precision(model, precision)
    return lines


def _accelerate_foreign_layers(model: nn.Module, dry_run: bool) -> list[str]:
    """Accelerate the Swins of other packages in a model, and return a line for each Swin and kind of layer."""
    ours = {id(part) for module in model.modules() if isinstance(module, SwinPyramid) for part in module.modules()}
    modules: dict[str, Any] = {name: module for name, module in model.named_modules() if id(module) not in ours}
    if not any(hasattr(module, name) for module in modules.values() for name in BIAS_PARAMETERS):
        return []  # there is no Swin of another package
    records = {name: record for name, module in modules.items() if (record := find_record(module)) is not None}
    swins = defaultdict(list)  # names of the blocks, by name and origin of the Swin
    for name, record in records.items():
        if record.origin is not None:
            swins[_find_swin_name(name), record.origin.name].append(name)
    lines = [
        f'{name}: {type(module).__name__} is of no supported origin and stays unchanged.'
        for name, module in modules.items()
        if name not in records and _looks_like_block(module)
    ]
    for (root, origin_name), blocks in swins.items():
        stages = tuple(sorted(Counter(records[name].channels for name in blocks).items()))
        outcomes = defaultdict(list)  # differences, by the kind of a layer and the reason against the library
        for name in _list_layers(root, modules, records):
            module, record = modules[name], records[name]
            difference, reason = try_layer(module, record)
            if reason is None and not dry_run:
                remember_methods([type(module), *record.types.values()])
                module.__dict__[RECORD_ATTRIBUTE] = record._replace(stages=stages)
                module.__class__ = _make_accelerated_class(module.__class__)
            outcomes[record.kind, reason].append(difference)
        for (kind, reason), differences in outcomes.items():
            result = f'compiled library, largest difference {max(differences):.1e}'
            swin = f'{root or type(model).__name__} ({origin_name})'
            lines.append(f'{swin}: {len(differences)} x {kind}: {f"unchanged: {reason}" if reason else result}')
    return lines


def _require_int8(model: nn.Module, precision: str) -> None:
    """Raise ValueError for another precision, without the library, or for a model on a GPU."""
    if precision != 'int8':
        raise ValueError(f"precision must be None or 'int8', got {precision!r}")
    reason = find_reason_against_dtype(torch.int8)
    if reason is not None:
        raise ValueError(f"precision='int8' takes the compiled library: {reason}")
    devices = {parameter.device.type for parameter in model.parameters()} - {'cpu'}
    if devices:
        raise ValueError(f"precision='int8' takes a model on a CPU, got {min(devices)}")


def _find_reason_against_int8(layer: Any) -> Optional[Reason]:
    """Return why the library does not compute a layer of ours in eight bits; None: it does.

    The own forward of a user's subclass may still not call it.
    """
    if layer.backend not in ('auto', 'native'):
        return f'The backend is {layer.backend!r}.'
    answer = plan_single_layer(layer, 'int8')
    return answer if isinstance(answer, str) else None


def _list_layers(root: str, modules: dict[str, Any], records: dict[str, LayerRecord]) -> list[str]:
    """Return the names of the layers of a Swin to accelerate; a norm inside a layer is no layer of its own."""
    prefix = f'{root}.' if root else ''
    # With an absolute position embedding, norm0 gets a float32 map under autocast. The library would round it.
    output_norms = r'norm[1-9]' if hasattr(modules[root], 'absolute_pos_embed') else r'norm\d'
    return [
        name
        for name, record in records.items()
        if f'{name}.'.startswith(prefix)
        and RECORD_ATTRIBUTE not in vars(modules[name])
        and (
            record.run is not run_norm
            or (root not in records and re.fullmatch(output_norms, name.removeprefix(prefix)))
        )
    ]


def set_precision(model: nn.Module, precision: Optional[str]) -> None:
    """Set the precision of all Swin layers of the library, in place; None: that of linear layers in torch."""
    for module in model.modules():
        module.__dict__.pop(PRECISION_ATTRIBUTE, None)
        if precision is not None and (isinstance(module, SWIN_LAYERS) or RECORD_ATTRIBUTE in vars(module)):
            module.__dict__[PRECISION_ATTRIBUTE] = precision


def find_swins(model: nn.Module) -> list[nn.Module]:
    """Return the Swins with accelerated blocks."""
    blocks = [
        name
        for name, module in model.named_modules()
        if RECORD_ATTRIBUTE in vars(module) and vars(module)[RECORD_ATTRIBUTE].names
    ]
    return [model.get_submodule(root) for root in dict.fromkeys(map(_find_swin_name, blocks))]


def restore_swin(model: nn.Module) -> None:
    """Undo `accelerate_swin`, in place."""
    set_precision(model, None)
    for module in model.modules():
        if RECORD_ATTRIBUTE in module.__dict__:
            del module.__dict__[RECORD_ATTRIBUTE]
            # FSDP's own subclass stays: without the record it calls the original forward.
            module.__class__ = vars(type(module)).get(BASE_CLASS_ATTRIBUTE, type(module))


def _looks_like_block(module: nn.Module) -> bool:
    """Return whether a module is some Swin's block: attention with a position bias, and an MLP."""
    parts = [part for child in module.children() for part in (child, *child.children())]
    attends = any(hasattr(part, name) for part in parts for name in BIAS_PARAMETERS)
    return attends and any(re.search('mlp|ffn|intermediate', name) for name, _ in module.named_children())


def _find_swin_name(block: str) -> str:
    """Return the name of the Swin around a block: stages are in a list, and blocks in a list of their stage."""
    stages = r'(encoder\.)?(stages|layers)[._]\d+\.blocks|features\.\d+'
    return re.sub(rf'(^|\.)({stages})\.\d+$', '', block)


@cache
def _make_accelerated_class(base: Any) -> Any:
    """Return a subclass of `base` that calls the library where possible."""

    @wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = try_native(self, *args, **kwargs)
        return base.forward(self, *args, **kwargs) if output is None else output

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced: Any = base.__reduce_ex__(self, protocol)
        return _make_empty, (base, *reduced[1][1:]), *reduced[2:]

    def restore_original(self: Any) -> Any:  # for torch.jit.script
        module = base.__new__(base)
        module.__dict__.update(self.__dict__)
        return module

    attributes = {
        BASE_CLASS_ATTRIBUTE: base,
        'forward': forward,
        '__reduce_ex__': reduce_ex,
        '__prepare_scriptable__': restore_original,
        **{name: getattr(base, name) for name in ('__module__', '__qualname__', '__doc__')},
    }
    return type(base.__name__, (base,), attributes)


def _make_empty(base: Any, *_: Any) -> Any:
    """Return an empty accelerated module, which pickle and deepcopy fill."""
    return _make_accelerated_class(base).__new__(_make_accelerated_class(base))
