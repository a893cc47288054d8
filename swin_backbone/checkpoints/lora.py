"""LoRA matrices of peft in a checkpoint (Hu et al. 2021, arXiv 2106.09685): merged into the weights, or refused.

Matched to peft 0.21. Beside LAYER.base_layer.weight (D, C) are LAYER.lora_A.ADAPTER.weight (r, C) and
LAYER.lora_B.ADAPTER.weight (D, r). A `LoraSwinBackbone` saves LAYER.weight and the matrices. The layer computes
weight + scale * lora_B lora_A. The scale is a setting: the metadata of a `LoraSwinBackbone` has the scales of the
adapters in use, other files have none. A module that is trained whole has MODULE.modules_to_save.ADAPTER.weight, and as
MODULE.original_module.weight the weight before the training. The scales of a layer or module whose adapters are off
are {}.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from ..checks import list_first
from .errors import CheckpointError
from .recognise import shorten_names

BASE_LAYER, TRAINED, UNTRAINED = 'base_layer', 'modules_to_save', 'original_module'  # parts of names
SCALES = 'swin_backbone.lora'  # key of {layer: {adapter: scale}} in the metadata of a state_dict
_MATRIX = re.compile(r'(.+)\.lora_([AB])\.([^.]+)\.weight')
_TRAINED = re.compile(rf'(.+)\.{TRAINED}\.[^.]+\.(.+)')  # of a module that is trained whole
_UNTRAINED = re.compile(rf'(.+)\.{UNTRAINED}\.(.+)')


def has_adapters(names: Iterable[str]) -> bool:
    """Return whether names are those of a model with adapters of peft."""
    return any(part in (BASE_LAYER, TRAINED) or part.startswith('lora_') for name in names for part in name.split('.'))


def strip_adapter_parts(name: str) -> str:
    """Return the name of a weight in a model without adapters. Other weights, such as matrices, keep their names."""
    return _TRAINED.sub(r'\1.\2', name.replace(f'.{BASE_LAYER}.', '.'))


def use_plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model with adapters under the names of a `LoraSwinBackbone`."""
    names = shorten_names(tensors, strip_adapter_parts)
    return _add_metadata({names[name]: value for name, value in tensors.items()}, tensors)


def merge_adapters(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model without adapters, with equal outputs.

    Raises:
        CheckpointError: if the scale of an adapter is unknown, or an adapter is not LoRA of a linear layer.
    """
    scales = read_scales(getattr(tensors, '_metadata', {}))
    merged, matrices, unknown = {}, {}, []
    for name, value in tensors.items():
        matrix = _MATRIX.fullmatch(name)
        trained, untrained = _TRAINED.fullmatch(name), _UNTRAINED.fullmatch(name)
        if matrix and matrix[1] in scales and value.dim() == 2:
            matrices[matrix.groups()] = value
        elif match := trained or untrained:
            owner, leaf = match.groups()
            adapters_are_off = owner in scales  # a module that is trained whole has an entry only then
            if bool(untrained) == adapters_are_off:  # otherwise the model does not use it
                if f'{owner}.{leaf}' in merged:  # of another adapter
                    unknown.append(name)
                merged[f'{owner}.{leaf}'] = value
        elif has_adapters([name]):
            unknown.append(name)
        else:
            merged[name] = value
    if unknown:
        raise CheckpointError(
            f'it holds adapters of peft ({list_first(unknown)}), and not how to merge them: merge them into the '
            'weights, by merge_and_unload() of peft or merged() of a LoraSwinBackbone, and save the merged model'
        )
    for layer, adapters in scales.items():
        for adapter, scale in adapters.items():
            a_RC, b_DR = (matrices.get((layer, letter, adapter)) for letter in 'AB')
            weight_DC = merged.get(f'{layer}.weight')
            shapes = [() if x is None else tuple(x.shape) for x in (weight_DC, b_DR, a_RC)]
            if (
                weight_DC is None
                or a_RC is None
                or b_DR is None
                or a_RC.shape[0] != b_DR.shape[1]
                or shapes[0] != (b_DR.shape[0], a_RC.shape[1])
            ):
                raise CheckpointError(f'{layer} has a weight and adapters of shapes {shapes}: the file is damaged')
            merged[f'{layer}.weight'] = (weight_DC.double() + scale * b_DR.double() @ a_RC.double()).to(weight_DC.dtype)
    return _add_metadata(merged, tensors)


def read_scales(metadata: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the scale of each adapter of each layer, by the layer's name in the checkpoint."""
    scales = {}
    for prefix, entry in metadata.items():
        layers = entry.get(SCALES)
        for layer, adapters in layers.items() if isinstance(layers, dict) else ():
            if isinstance(adapters, dict) and all(type(scale) in (int, float) for scale in adapters.values()):
                scales[f'{prefix}.{layer}'.lstrip('.')] = adapters
    return scales


def _add_metadata(tensors: dict[str, Tensor], source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    result = OrderedDict(tensors)
    result._metadata = getattr(source, '_metadata', {})  # type: ignore[attr-defined]
    return result
