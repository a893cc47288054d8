"""Write a checkpoint in the format of another origin."""

import shutil
from pathlib import Path
from typing import Optional, Union

import safetensors.torch
import torch
from torch import Tensor

from ..checks import list_first
from ..outputs import check_outputs
from ..positions import log_spaced_coordinates
from ..whole_files import write_whole, write_whole_by
from .damage import check_numbers, check_shapes, list_missing
from .errors import CheckpointError, name_in_errors
from .formats import SWIN_V1, SWIN_V2, WRITABLE_FORMATS, Format, convert_to_format
from .heads import LEFT_OUT, find_head_format, rename_heads
from .hugging_face import CONFIG, WEIGHTS_FILE, is_folder_target, make_config_json
from .lora import has_adapters, merge_adapters
from .reading import read_checkpoint
from .recognise import SwinWeights, extract_swin, find_tensors
from .report import COMPUTED, OUTSIDE, UNKNOWN
from .resize import make_index_table

FORMATS = (*(name for family, name in WRITABLE_FORMATS if family == SWIN_V1), 'mmseg')  # values of `to`
MASK2FORMER_HEADS = {'mmdet': 'panoptic_head', 'mmseg': 'decode_head'}  # names in the toolboxes


def convert_checkpoint(
    source: Union[str, Path],
    target: Union[str, Path],
    to: str,
    unsafe_load: Optional[bool] = None,
    overwrite: bool = False,
) -> str:
    """Write a Swin checkpoint in another format. Converting back restores every bit.

    The backbone is converted, and a classifier's last norm and head. A whole detector or segmentor stays whole in
    mmdet's and mmseg's format, which differ in the name of a Mask2Former's head alone. Necks and heads of mmdet, mmseg,
    their earlier releases and the repositories built on them keep their names. UperNet and Mask2Former of transformers
    and Mask2Former of detectron2 get mmdet's names. The other formats have no names for necks and heads.
    LoRA matrices of a `LoraSwinBackbone` are merged. Index tables and masks are left out (except torchvision's tables,
    without which it loads nothing). Output norms, `norm0` to `norm3`, have a place in mmdet, in the official detectors
    and in Hugging Face's backbones; in timm's and torchvision's files they keep their names.

    Args:
        source: a checkpoint of any origin, see `load_checkpoint`.
        target: the file to write: safetensors if the name ends in .safetensors, else torch.save. Missing folders are
            made. With `to='hf'` a name that does not end as a file of weights (.safetensors, .pth, .bin, ...) is a
            folder with config.json and model.safetensors, which transformers' `from_pretrained` opens.
        to: 'official', 'mmdet', 'mmseg', 'timm', 'torchvision' or 'hf'. 'mmdet' gives a Swin V2 the names of
            mmpretrain, which are used here too. Swin-MLP is written as 'official' or 'mmdet'.
        unsafe_load: see `load_checkpoint`.
        overwrite: replace an existing target, whoever wrote the file; the source is never replaced.

    Returns:
        A sentence with both formats, the number of tensors, and what was left out or missing.

    Raises:
        ValueError: for an unknown format.
        FileExistsError: if the target is the source, or is there already and `overwrite` does not allow to replace it.
        CheckpointError: if the source cannot be read, holds no Swin or a damaged one (a shape that does not fit,
            NaN), or a family that the format lacks; if the target cannot be written.

    Examples:
        >>> import tempfile, torch
        >>> from swin_backbone import SwinBackbone, convert_checkpoint
        >>> folder = tempfile.mkdtemp()
        >>> torch.save(SwinBackbone(arch='nano').state_dict(), f'{folder}/ours.pth')
        >>> convert_checkpoint(f'{folder}/ours.pth', f'{folder}/hf.safetensors', to='hf').split('): ')[-1]
        '157 tensors; left out: nothing'
    """
    if to not in FORMATS:
        raise ValueError(f'to must be one of {", ".join(FORMATS)}, got {to!r}')
    target = Path(target)
    folder = target if to == 'hf' and is_folder_target(target) else None
    file = folder / WEIGHTS_FILE if folder else target
    check_outputs(file, folder and folder / CONFIG, inputs=[source], overwrite=overwrite)
    loaded = read_checkpoint(source, unsafe_load=unsafe_load)
    with name_in_errors(source):
        tensors = find_tensors(loaded)
        if has_adapters(tensors):
            tensors = merge_adapters(tensors)
        weights = extract_swin(tensors)
        family, name = weights.format.family, 'mmdet' if to == 'mmseg' else to
        if (family, name) not in WRITABLE_FORMATS:
            names = ', '.join(key[1] for key in WRITABLE_FORMATS if key[0] == family)
            raise CheckpointError(f'it holds a {family}, which {name} has not: it can be written as {names}')
        format = WRITABLE_FORMATS[family, name]
        neck_and_heads: dict[str, Tensor] = {}
        num_used = 0
        if to in MASK2FORMER_HEADS:
            neck_and_heads, num_used = _convert_heads(weights, tensors, MASK2FORMER_HEADS[to])
        if neck_and_heads and weights.format.name == 'hf':
            weights.classifier.clear()  # the last norm of the Swin, unused by the heads
        all_weights = {**weights.backbone, **weights.classifier}
        check_shapes(all_weights)
        check_numbers(all_weights, neck_and_heads)
        missing = list_missing(all_weights, family)
        config = make_config_json(weights, missing) if folder else b''
        converted = _convert(weights, format)
    if neck_and_heads:
        converted = {**{f'backbone.{key}': value for key, value in converted.items()}, **neck_and_heads}
    _write(converted, file, format)
    if folder:
        write_whole(folder / CONFIG, config)
    left_out = {COMPUTED: len(weights.index_tables), UNKNOWN: len(weights.unknown)}
    left_out[OUTSIDE] = len(weights.outside) - num_used
    report = f'{source} ({weights.format.title}) to {target} ({format.title}): {len(converted)} tensors; left out: ' + (
        ', '.join(f'{number} {reason}' for reason, number in left_out.items() if number) or 'nothing'
    )
    return report + (f'; missing: {list_first(missing)}' if missing else '')


def _convert(weights: SwinWeights, format: Format) -> dict[str, Tensor]:
    """Return weights under the names and in the orders of a format."""
    tensors = {**weights.backbone, **weights.classifier}
    if format.has_index_tables:
        tensors.update(_make_index_tables(weights))
    renamed = convert_to_format(tensors, format)
    if format.name == 'hf' and 'head.weight' not in tensors:  # a bare model, and no part of a classifier
        renamed = {key.removeprefix('swin.').removeprefix('swinv2.'): value for key, value in renamed.items()}
    # Copies, because files with shared memory are larger (torch.save) or an error (safetensors)
    return {key: v.clone(memory_format=torch.contiguous_format) for key, v in renamed.items()}


def _convert_heads(weights: SwinWeights, tensors: dict[str, Tensor], head_name: str) -> tuple[dict[str, Tensor], int]:
    """Return neck and heads of the model around a backbone, and the number of their tensors in the checkpoint."""
    outside = {key: tensors[key] for key in weights.outside}
    format = find_head_format(outside)
    if format is not None:
        used = {key: value for key, value in outside.items() if not LEFT_OUT.match(key)}
        return rename_heads(used, format, head_name), len(used)
    model, is_backbone, _ = weights.prefix.rpartition('backbone.')
    if not is_backbone:
        return {}, 0
    rest = {key.removeprefix(model): value for key, value in outside.items() if key.startswith(model)}
    return rest, len(rest)


def _make_index_tables(weights: SwinWeights) -> dict[str, Tensor]:
    """Return the tables that torchvision requires: the index of each bias table, and the coordinates of Swin V2."""
    tables = {}
    for marker in weights.backbone:
        if not marker.endswith(('.relative_position_bias_table', '.logit_scale')):
            continue
        key = marker.replace('logit_scale', 'relative_position_bias_table')
        window = weights.find_window_size(key)
        if window is None:
            raise CheckpointError(f'the window of {marker} is no square, or unknown, and the file does not name it')
        tables[key.replace('_bias_table', '_index')] = make_index_table(window).flatten()
        if weights.format.family == SWIN_V2:
            pretrained_window = weights.pretrained_window_sizes.get(marker, window)
            coordinates = log_spaced_coordinates(window, pretrained_window, torch.device('cpu'), torch.float32)
            height, width = window
            tables[key.replace('position_bias', 'coords')] = coordinates.view(1, 2 * height - 1, 2 * width - 1, 2)
    return tables


def _write(weights: dict[str, Tensor], target: Path, format: Format) -> None:
    """Write a complete file, or raise CheckpointError, as on a full disk."""

    def write(partial: Path) -> None:
        if target.suffix == '.safetensors':
            safetensors.torch.save_file(weights, partial, metadata={'format': 'pt'})
        else:
            torch.save({format.container: weights} if format.container else weights, partial)

    try:
        write_whole_by(target, write)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:  # torch and safetensors have their own kinds
        reason = error.strerror if isinstance(error, OSError) else None
        if not reason:  # torch gives no reason
            reason = f'{shutil.disk_usage(target.parent).free:,} bytes are free'
        raise CheckpointError(f'{target} cannot be written ({reason})') from error
