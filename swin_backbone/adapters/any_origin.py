"""Load checkpoints of any origin by `load_state_dict`, as all frameworks do."""

import re
from typing import Any

from torch import Tensor, nn

from ..checkpoints.adapt import adapt_weights
from ..checkpoints.recognise import find_swin, swins_in, tensors_of


def take_any_origin(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Rename the weights of a Swin of any origin, and resize them to `module`; a load_state_dict pre-hook.

    So a framework's own loader reads the checkpoints of `swin_backbone.load_checkpoint`. Output norms keep their values
    if the checkpoint has none.

    Args:
        module: a backbone, or a module around a backbone. `module.classifier_names` maps a classifier's `norm` and
            `head` to names of the module.

    Raises:
        CheckpointError: (a ValueError) for a Swin of another family, depth or width.
    """
    targets = module.state_dict()
    keys = [key for key in state_dict if key.startswith(prefix)]
    tensors = {key.removeprefix(prefix): state_dict[key] for key in keys}
    if all(key in tensors for key in targets) or not swins_in(tensors):
        return
    fitted, report = adapt_weights(module, tensors, 'state_dict')
    names = getattr(module, 'classifier_names', {})
    if names:
        for key, value in find_swin(tensors_of(tensors)).classifier.items():
            owner, leaf = key.split('.', 1)
            if f'{names[owner]}.{leaf}' in targets:
                fitted[f'{names[owner]}.{leaf}'] = value
    report.missing = [key for key in report.missing if key not in fitted]
    report.log()
    for name in keys:
        del state_dict[name]
    norms = {key: value for key, value in targets.items() if re.search(r'(^|backbone\.)norm\d+\.\w+$', key)}
    state_dict.update({prefix + key: value for key, value in {**norms, **fitted}.items()})
