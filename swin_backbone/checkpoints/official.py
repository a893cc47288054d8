"""The names and the merging order of microsoft/Swin-Transformer's checkpoints."""

import re

from torch import Tensor

RENAMES = (
    (r'^layers\.', 'stages.'),
    (r'^patch_embed\.proj\.', 'patch_embed.projection.'),
    (r'\.attn\.', '.attn.w_msa.'),
    (r'\.mlp\.fc1\.', '.ffn.layers.0.0.'),
    (r'\.mlp\.fc2\.', '.ffn.layers.1.'),
)
# The classifier, and the norm before it, which is not the output norm of the last stage.
CLASSIFIER = re.compile(r'^(head|norm)\.')


def is_official(state_dict: dict[str, Tensor]) -> bool:
    return any(key.startswith('layers.') for key in state_dict)


def from_official(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename an official backbone or classifier, and reorder what its patch mergings see."""
    converted = {}
    for key, value in state_dict.items():
        if CLASSIFIER.match(key):
            continue
        for pattern, replacement in RENAMES:
            key = re.sub(pattern, replacement, key)
        converted[key] = _unfold_order(value) if '.downsample.' in key else value
    return converted


def _unfold_order(value: Tensor) -> Tensor:
    """Reorder the last dimension from the official order of merged channels to `nn.Unfold`'s.

    Officially the four neighbours come one after another, column by column: (dx, dy, C); in Unfold's order
    each channel has its four neighbours together, row by row: (C, dy, dx).
    """
    channels = value.shape[-1] // 4
    x = value.unflatten(-1, (2, 2, channels))  # ..., dx, dy, C
    return x.transpose(-3, -2).movedim(-1, -3).flatten(-3).contiguous()
