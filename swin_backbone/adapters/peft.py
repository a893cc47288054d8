"""LoRA on the backbone (Hu et al. 2021, arXiv 2106.09685), by peft.

With mmengine installed, `openmmlab/registration.py` registers the backbone for configs once this file is imported.

Matched to peft 0.21: `inject_adapter_in_model`, `get_peft_model_state_dict`, `peft.tuners.lora.LoraLayer`.
"""

import copy
from logging import getLogger
from typing import Any, Optional

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn

from ..checkpoints.lora import BASE_LAYER, SCALES, TRAINED, UNTRAINED, read_scales
from ..checks import refusal
from ..models import SwinBackbone

LAYERS = r'.*\.(qkv|proj|ffn\.layers\.0\.0|ffn\.layers\.1)'  # of the blocks: qkv, projection, fc1, fc2
_logger = getLogger(__name__)


class LoraSwinBackbone(SwinBackbone):
    """A frozen `SwinBackbone` with small trained matrices beside its linear layers.

    The state_dict has the names of `SwinBackbone`, and the matrices. Weights in it are those without adapters, also of
    layers whose adapters are merged in place. A module of `modules_to_save` has peft's names, before and after the
    training. Checkpoints of backbones and of whole models load without matrices, which begin as no change.
    `get_peft_model_state_dict` of peft returns only what is trained. torch computes blocks with matrices. The compiled
    library computes the backbone that `merged` returns.

    Args:
        lora: arguments of peft's `LoraConfig`, as dict(r=8, lora_alpha=16). `target_modules` is `LAYERS` by default.
        arguments: of `SwinBackbone`. A checkpoint of `init_cfg` may be of any origin.

    Raises:
        ValueError: for `init_lora_weights` that change the weights of the backbone, as 'pissa' and 'olora'.
    """

    def __init__(self, lora: Optional[dict[str, Any]] = None, **arguments: Any):
        super().__init__(**arguments)
        self.arguments = arguments
        old = {name: weight.clone() for name, weight in self.state_dict().items() if not weight.is_meta}
        inject_adapter_in_model(LoraConfig(**{'target_modules': LAYERS, **(lora or {})}), self)
        self.register_state_dict_post_hook(_use_plain_names)  # type: ignore[no-untyped-call]  # of torch
        self._register_load_state_dict_pre_hook(_use_peft_names, with_module=True)  # type: ignore[no-untyped-call]
        new = self.state_dict()
        if not all(torch.equal(new[name], weight) for name, weight in old.items() if name in new):
            allowed = (
                'init_lora_weights that leave the weights of the backbone alone, because a checkpoint replaces them'
            )
            raise ValueError(refusal('lora', allowed, lora))
        _logger.info('LoRA: torch computes the blocks, module by module; merged, the compiled library does')

    def init_weights(self) -> None:
        """Initialise as `SwinBackbone`; the matrices do not change."""
        plain = SwinBackbone(**self.arguments)
        plain.init_weights()
        self.load_state_dict(plain.state_dict(), strict=False)
        self.is_init = True

    def merged(self) -> SwinBackbone:
        """Return a plain backbone of equal outputs: the matrices are added to the weights."""
        adapted = copy.deepcopy(self)
        for name, layer in [*adapted.named_modules()]:
            if isinstance(layer, (LoraLayer, ModulesToSaveWrapper)):
                owner, _, child = name.rpartition('.')
                setattr(adapted.get_submodule(owner), child, _merge_layer(layer))
        plain = SwinBackbone(**{**self.arguments, 'init_cfg': None})
        plain.to(next(self.parameters()))
        plain.load_state_dict(adapted.state_dict())
        plain.train(self.training)
        return plain


def _merge_layer(layer: Any) -> nn.Module:
    """Return a plain layer of equal outputs. `layer` changes."""
    if isinstance(layer, ModulesToSaveWrapper):
        is_off = layer.disable_adapters or not layer.active_adapters
        return layer.original_module if is_off else layer.modules_to_save[layer.active_adapters[0]]
    if layer.disable_adapters and layer.merged:
        layer.unmerge()
    elif not layer.disable_adapters and not layer.merged:
        layer.merge()
    return layer.base_layer


def _use_plain_names(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, metadata: dict[str, Any]) -> None:
    """Rename weights, undo merges in place, and store the scales of the adapters in use: a hook of `state_dict`."""
    scales: dict[str, dict[str, float]] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, ModulesToSaveWrapper) and layer.disable_adapters:
            scales[name] = {}
        if not isinstance(layer, LoraLayer):
            continue
        adapters = [] if layer.disable_adapters else layer.merged_adapters or layer.active_adapters
        scales[name] = {adapter: float(layer.scaling[adapter]) for adapter in adapters if adapter in layer.scaling}
        base = f'{prefix}{name}.{BASE_LAYER}.'
        if layer.merged:
            layer = copy.deepcopy(layer)
            layer.unmerge()
            state_dict.update(layer.base_layer.state_dict(prefix=base))
        for leaf in layer.base_layer.state_dict():
            state_dict[f'{prefix}{name}.{leaf}'] = state_dict.pop(base + leaf)
    metadata[SCALES] = scales  # a checkpoint with the scales can be merged


def _use_peft_names(
    module: nn.Module, state_dict: dict[str, Tensor], prefix: str, metadata: dict[str, Any], *_: Any
) -> None:
    """Rename weights, undo merges in place, and warn of other scales: a pre-hook of `load_state_dict`."""
    scales, others = read_scales({'': metadata}), []
    for name, layer in module.named_modules():
        parts = []
        if isinstance(layer, LoraLayer):
            parts = [BASE_LAYER]
            if layer.merged:
                layer.unmerge()
            others += [
                f'{name}: {scale}, here {layer.scaling[adapter]}'
                for adapter, scale in scales.get(name, {}).items()
                if layer.scaling.get(adapter, scale) != scale
            ]
        elif isinstance(layer, ModulesToSaveWrapper):
            parts = [UNTRAINED, *(f'{TRAINED}.{adapter}' for adapter in layer.modules_to_save)]
        for leaf in layer.get_submodule(parts[0]).state_dict() if parts else ():
            if (plain_name := f'{prefix}{name}.{leaf}') in state_dict:
                value = state_dict.pop(plain_name)
                for part in parts:
                    state_dict.setdefault(f'{prefix}{name}.{part}.{leaf}', value)
    if others:
        _logger.warning(
            f'LoRA: {len(others)} layers have adapters of another scale in the checkpoint ({others[0]}), which changes '
            'the outputs: set lora_alpha as in the training'
        )
