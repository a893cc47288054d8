"""Load checkpoints of any origin by `load_state_dict`, as all frameworks do."""

import re
from collections import OrderedDict
from typing import Any, Optional

from torch import Tensor, nn

from ..checkpoints.adapt import adapt_weights
from ..checkpoints.recognise import swins_in


def take_any_origin(
    module: nn.Module, state_dict: dict[str, Tensor], prefix: str, metadata: Optional[dict[str, Any]] = None, *_: Any
) -> None:
    """Rename the weights of a Swin of any origin, and resize them to `module`; a load_state_dict pre-hook.

    So a framework's own loader reads the checkpoints of `swin_backbone.load_checkpoint`. Output norms keep their values
    if the checkpoint has none.

    Args:
        module: a backbone, or a module around a backbone.
        metadata: of the module; the metadata of a whole state_dict is an attribute.

    Raises:
        CheckpointError: (a ValueError) for a Swin of another family, depth or width.
    """
    targets = module.state_dict()
    keys = [key for key in state_dict if key.startswith(prefix)]
    tensors: Any = OrderedDict((key.removeprefix(prefix), state_dict[key]) for key in keys)
    tensors._metadata = getattr(state_dict, '_metadata', {'': metadata})  # with the sizes of a backbone
    if all(key in tensors for key in targets) or not swins_in(tensors):
        return
    fitted, report = adapt_weights(module, tensors, 'state_dict')
    report.log()
    for name in keys:
        del state_dict[name]
    norms = {key: value for key, value in targets.items() if re.search(r'(^|backbone\.)norm\d+\.\w+$', key)}
    state_dict.update({prefix + key: value for key, value in {**norms, **fitted}.items()})
