"""Load checkpoints of any origin by `load_state_dict`, as all frameworks do."""

import copy
import re
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from ..checkpoints.load import adapt_weights
from ..checkpoints.recognise import find_formats
from ..checkpoints.report import LoadReport


def fit_any_origin(module: nn.Module, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], LoadReport]:
    """Rename the weights of a Swin of any origin, and resize them to `module`.

    Output norms keep their values if the checkpoint has none. Other tensors, and weights under the names of the module,
    come back as they are.

    Args:
        module: a backbone, or a module around a backbone.

    Raises:
        CheckpointError: (a ValueError) for a Swin of another family, depth or width.
    """
    module_weights = module.state_dict()
    if all(key in tensors for key in module_weights) or not find_formats(tensors):
        return tensors, LoadReport('state_dict')
    if all(key in module_weights and value.shape == module_weights[key].shape for key, value in tensors.items()):
        fitted, report = copy.copy(tensors), LoadReport('state_dict')
    else:
        fitted, report = adapt_weights(module, tensors, 'state_dict')
        report.log()
    for key, value in module_weights.items():
        if re.search(r'(^|backbone\.)norm\d+\.\w+$', key):
            fitted.setdefault(key, value)
    return fitted, report


def accept_any_origin(module: nn.Module) -> None:
    """Let `load_state_dict` of a module that contains a backbone take weights of any origin: see `take_any_origin`."""
    # The public method of torch is newer than torch 2.4.
    module._register_load_state_dict_pre_hook(take_any_origin, with_module=True)


def take_any_origin(
    module: nn.Module,
    state_dict: dict[str, Tensor],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Fit a state_dict by `fit_any_origin`: a pre-hook of `load_state_dict`.

    So a framework's own loader reads the checkpoints of `swin_backbone.load_checkpoint`. A head of another shape is an
    error, as torch's. Inside another module, a window or an image size that has to be guessed is an error: torch gives
    the hook the metadata of `module` alone there, without that of a backbone in it.

    Args:
        metadata: of the module.
    """
    is_whole = hasattr(state_dict, '_metadata')  # of the outermost module
    keys = [key for key in state_dict if key.startswith(prefix)]
    tensors: Any = OrderedDict((key.removeprefix(prefix), state_dict[key]) for key in keys)
    stored = getattr(state_dict, '_metadata', {prefix.rstrip('.'): metadata})  # with the sizes of a backbone
    inner = {name: entry for name, entry in stored.items() if f'{name}.'.startswith(prefix)}
    tensors._metadata = {name[len(prefix) :]: entry for name, entry in inner.items()}
    fitted, report = fit_any_origin(module, tensors)
    if fitted is tensors:
        return
    for name in keys:
        del state_dict[name]
    state_dict.update({prefix + key: value for key, value in fitted.items()})
    if not is_whole:
        errors.extend(
            f'{prefix.rstrip(".")}: {name} is for a window or an image size that is not known here: load it by '
            'load_checkpoint'
            for name in report.guesses
        )
    module_weights = module.state_dict() if report.other_shapes else {}
    for name, shape in report.other_shapes.items():
        expected = tuple(module_weights[name].shape)
        errors.append(f'size mismatch for {prefix}{name}: {shape} in the checkpoint, {expected} in the model')
