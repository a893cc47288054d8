"""LoRA on the backbone (Hu et al. 2021, arXiv 2106.09685), by peft.

With mmengine installed, `openmmlab/registration.py` registers the backbone for configs once this file is imported.

Matched to peft 0.21: `inject_adapter_in_model`, `get_peft_model_state_dict`, `peft.tuners.lora.LoraLayer`.
"""

import copy
from logging import getLogger
from typing import Any, Optional

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from ..checkpoints.lora import SCALES
from ..models import SwinBackbone

LAYERS = r'.*\.(qkv|proj|ffn\.layers\.0\.0|ffn\.layers\.1)'  # of the blocks: qkv, projection, fc1, fc2
_logger = getLogger(__name__)
BASE = '.base_layer'  # part of the names of layers with adapters


class LoraSwinBackbone(SwinBackbone):
    """A frozen `SwinBackbone` with small trained matrices beside its linear layers.

    The state_dict has the names of `SwinBackbone`, and the matrices. Checkpoints of backbones and of whole models load
    without matrices, which begin as no change. `get_peft_model_state_dict` of peft returns the matrices alone. torch
    computes blocks with matrices. The compiled library computes the backbone that `merged` returns.

    Args:
        lora: arguments of peft's `LoraConfig`, as dict(r=8, lora_alpha=16). `target_modules` is `LAYERS` by default.
        arguments: of `SwinBackbone`. A checkpoint of `init_cfg` may be of any origin.
    """

    def __init__(self, lora: Optional[dict[str, Any]] = None, **arguments: Any):
        super().__init__(**arguments)
        self.arguments = arguments
        inject_adapter_in_model(LoraConfig(**{'target_modules': LAYERS, **(lora or {})}), self)
        self.register_state_dict_post_hook(_to_plain_names)  # type: ignore[no-untyped-call]  # of torch
        self.register_load_state_dict_pre_hook(_from_plain_names)  # type: ignore[no-untyped-call]
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
        for layer in adapted.modules():
            if isinstance(layer, LoraLayer):
                layer.merge()
        plain = SwinBackbone(**{**self.arguments, 'init_cfg': None})
        plain.to(next(self.parameters()))
        plain.load_state_dict({key: value for key, value in adapted.state_dict().items() if '.lora_' not in key})
        plain.train(self.training)
        return plain


def _to_plain_names(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, metadata: dict[str, Any]) -> None:
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}
    metadata[SCALES] = {  # a checkpoint with the scales can be merged
        name: {
            adapter: float(layer.scaling[adapter])
            for adapter in layer.active_adapters
            if adapter in layer.scaling and adapter not in layer.merged_adapters
        }
        for name, layer in layers.items()
    }
    for key in [key for key in state_dict if key.startswith(prefix) and BASE in key]:
        state_dict[key.replace(BASE, '')] = state_dict.pop(key)


def _from_plain_names(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for name in [name for name, _ in module.named_parameters() if BASE in name]:
        if (plain := prefix + name.replace(BASE, '')) in state_dict:
            state_dict[prefix + name] = state_dict.pop(plain)
