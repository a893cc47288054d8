"""Load a checkpoint into a model."""

from pathlib import Path
from typing import Any, Optional, Union

from torch import Tensor, nn

from .adapt import LoadReport, adapt_weights, backbones_of
from .reading import read_checkpoint
from .recognise import INDEX_TABLES


def load_checkpoint(
    model: nn.Module,
    checkpoint: Union[str, Path],
    unsafe_load: Optional[bool] = None,
    prefix: Optional[str] = None,
) -> LoadReport:
    """Load a published or trained Swin checkpoint into a backbone, or into a model that has one.

    The origin is recognised by names and shapes: microsoft/Swin-Transformer and its detection and segmentation
    repositories, SimMIM, mmdet, mmseg, mmpretrain, timm, torchvision, Hugging Face; Swin V1 into a `SwinBackbone`, V2
    into a `SwinV2Backbone`, Swin-MLP into a `SwinMLPBackbone`. Bias tables of another window and a position embedding
    of another image size are resized, as microsoft/Swin-Transformer does; the patch embedding is adapted to the number
    of input channels. One line in the log reports the result, and warnings name problems.

    Args:
        model: a `SwinBackbone`, `SwinV2Backbone` or `SwinMLPBackbone`, or a detector or segmentor with one. After an
            error the model is unchanged.
        checkpoint: a path, file://, http:// or https:// address; of torch.save or safetensors.
        unsafe_load: allow the file to run any code when it is read. Default: False, unless a tool was called with
            --unsafe-load.
        prefix: of the backbone's names in the checkpoint. Default: it is found.

    Returns:
        What was loaded, resized, ignored and missing.

    Raises:
        CheckpointError: (a ValueError) if the file cannot be read, is not safe, or holds no Swin, or one of another
            family, depth or width.
        ValueError: if the model has no backbone of this package.

    Examples:
        >>> import tempfile, torch
        >>> from swin_backbone import SwinBackbone, load_checkpoint
        >>> path = tempfile.mkdtemp() + '/window7.pth'
        >>> torch.save(SwinBackbone(arch='nano').state_dict(), path)
        >>> report = load_checkpoint(SwinBackbone(arch='nano', window_size=12), path)
        >>> len(report.loaded), set(report.resized.values())
        (125, {'bias tables from window 7x7 to 12x12'})
    """
    if not backbones_of(model):
        raise ValueError(
            'model must be a SwinBackbone, SwinV2Backbone or SwinMLPBackbone, or have one; '
            f'got a {type(model).__name__} without'
        )
    fitted, report = adapt_weights(model, read_checkpoint(checkpoint, unsafe_load=unsafe_load), str(checkpoint), prefix)
    model.load_state_dict(fitted, strict=False)
    report.log()
    return report


def adapt_state_dict(state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Remove index tables from a state_dict, also with strict=True: a pre-hook of load_state_dict."""
    for key in [key for key in state_dict if key.startswith(prefix) and INDEX_TABLES.search(key)]:
        del state_dict[key]
