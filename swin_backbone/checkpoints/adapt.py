"""Load a checkpoint into a model: adapt names, window, image size and input channels."""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from ..archs import DEFAULT_WINDOW
from ..positions import Size
from .errors import CheckpointError, first_of, naming
from .formats import SIZES, V2
from .reading import read_checkpoint
from .recognise import INDEX_TABLES, OUTSIDE, SwinWeights, check_floating, find_swin, plain_name, swins_in, tensors_of
from .resize import adapt_input_channels, resize_embedding, resize_table, trained_window
from .sizes import swin_sizes

_logger = getLogger(__name__)
OF_A_CLASSIFIER = (
    "These are a classifier's weights. On a map no larger than a window, as the last one of a picture of 224x224, "
    'classifiers do not shift windows, and detectors and segmentors do: '
    "small_map='shrink' gives the classifier's features"
)
TABLE = 'attn.w_msa.relative_position_bias_table'


@dataclass
class LoadReport:
    """Names of loaded, resized, ignored and missing weights.

    Attributes:
        checkpoint: path or address.
        origin: the format, and the prefix of the backbone's names in the checkpoint.
        loaded: names in the model.
        resized: names in the backbone, with the old and the new size.
        ignored: names in the checkpoint, by reason.
        missing: names in the model, of its backbone.
        missing_elsewhere: names in the model, outside its backbone.
        other_shapes: names in the model whose weights were not loaded, with the shape in the checkpoint.
        warnings: sentences, logged as warnings.
        notes: sentences, logged once in a process.
    """

    checkpoint: str
    origin: str = ''
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    missing_elsewhere: list[str] = field(default_factory=list)
    other_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        resized = ', '.join(dict.fromkeys(self.resized.values()))
        ignored = '; '.join(f'{reason}: {first_of(names)}' for reason, names in self.ignored.items())
        return (
            f'Loaded {self.checkpoint} ({self.origin}): {len(self.loaded)} tensors, '
            f'{len(self.resized)} of them resized{f" ({resized})" if resized else ""}, '
            f'{sum(map(len, self.ignored.values()))} ignored{f" ({ignored})" if ignored else ""}, '
            f'{len(self.missing)} missing'
        )

    def log(self) -> None:
        """Log one line, and warnings."""
        _logger.info(str(self))
        warnings = [*self.warnings]
        if self.missing:
            warnings.append(f'Left at their initialisation: {", ".join(self.missing)}')
        if self.missing_elsewhere:
            warnings.append(f'Outside the backbone, not in the checkpoint: {first_of(self.missing_elsewhere)}')
        for warning in warnings:
            _logger.warning(warning)
        for note in self.notes:
            _log_once(note)


@cache
def _log_once(note: str) -> None:
    _logger.info(note)


def backbones_of(model: nn.Module) -> dict[str, str]:
    """Return the prefix and the family of each backbone of this package in a model.

    Prefixes have no WRAPPERS. The toolboxes' own Swins are left out, because they do not tell the size of their window.
    """
    return {
        prefix: format.family
        for prefix, format in swins_in(map(plain_name, model.state_dict())).items()
        if format.name == 'mmdet' and hasattr(model.get_submodule(prefix.rstrip('.')), 'window_size')
    }


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


def store_sizes(model: nn.Module, state_dict: Any) -> None:
    """Store the sizes that weights do not tell in the metadata of a model's state_dict, for each Swin of this package.

    The sizes are the windows, the map of the position embedding, and the windows that scale the offsets of Swin V2.
    """
    for prefix in backbones_of(model):
        backbone: Any = model.get_submodule(prefix.rstrip('.'))
        sizes = dict(window_size=backbone.window_size, map_size=getattr(backbone, 'pretrain_map_size', None))
        pretrained = getattr(backbone, 'pretrained_window_sizes', [])
        sizes['scaled_by'] = [scaled or window for scaled, window in zip(pretrained, backbone.window_size)]
        state_dict._metadata.setdefault(prefix.rstrip('.'), {})[SIZES] = sizes


def adapt_state_dict(state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Remove index tables from a state_dict, also with strict=True: a pre-hook of load_state_dict."""
    for key in [key for key in state_dict if key.startswith(prefix) and INDEX_TABLES.search(key)]:
        del state_dict[key]


def adapt_weights(
    model: nn.Module, loaded: Any, checkpoint: str, prefix: Optional[str] = None
) -> tuple[dict[str, Tensor], LoadReport]:
    """Return the weights for a model with a Swin backbone, and a report. The model is not changed.

    Args:
        loaded: contents of the file, or a state_dict.
        checkpoint: its name, for the report and for errors.
        prefix: of the backbone's names in the checkpoint. Default: it is found.

    Raises:
        CheckpointError: if there is no Swin backbone in the checkpoint, or one that does not fit the model's, or
            weights are not finite.
    """
    wrapped = {plain_name(key): key for key in model.state_dict()}  # the names of the model where layers are wrapped
    own = {plain_name(key): value for key, value in model.state_dict().items()}
    fitted: Any = OrderedDict()  # of tensors; torch keeps _metadata on such a dict
    report = LoadReport(checkpoint)
    with naming(checkpoint):
        tensors = tensors_of(loaded)
        is_own = all(key in tensors and tensors[key].shape == value.shape for key, value in own.items())
        swins: dict[str, SwinWeights] = {}
        for own_prefix, family in backbones_of(model).items():
            swins[own_prefix] = weights = find_swin(
                tensors, prefer=own_prefix, prefix=prefix, is_own=is_own, family=family
            )
            backbone = model.get_submodule(own_prefix.rstrip('.'))
            own_backbone = {key.removeprefix(own_prefix): v for key, v in own.items() if key.startswith(own_prefix)}
            theirs, ours = swin_sizes(weights.backbone, family), swin_sizes(own_backbone, family)
            if not theirs.width:
                stem = [key for key in tensors if key.startswith(weights.prefix) and '.patch_embed' in f'.{key}']
                raise CheckpointError(
                    'it has no patch_embed.projection.weight, the one convolution of the patch embedding; it has '
                    f'{first_of(stem) or "no patch embedding"}'
                )
            if theirs != ours:
                raise CheckpointError(f'it is a Swin of {theirs}; the backbone has {ours}')
            for key, value in _fit_backbone(weights, own_backbone, backbone, report).items():
                fitted[own_prefix + key] = value
    report.origin = weights.format.origin + (f', prefix {weights.prefix!r}' if weights.prefix else '')
    # Outside the backbone names are the whole model's, behind whatever is before them, `model.` say.
    outer = weights.prefix.removesuffix(own_prefix)
    inside = tuple(weights.prefix for weights in swins.values())
    _fit_elsewhere({key: v for key, v in tensors.items() if not key.startswith(inside)}, outer, own, fitted, report)
    for weights in swins.values():
        for reason, names in weights.ignored.items():
            ignored = [key for key in names if key.removeprefix(outer) not in fitted]
            if reason == OUTSIDE:
                ignored = [key for key in ignored if not key.startswith(inside)]
            if ignored:
                report.ignored[reason] = list(dict.fromkeys([*report.ignored.get(reason, []), *ignored]))
    missing = [key for key in own if key not in fitted]
    report.missing = [wrapped[key] for key in missing if key.startswith(tuple(swins))]
    report.missing_elsewhere = [wrapped[key] for key in missing if not key.startswith(tuple(swins))]
    report.other_shapes = {wrapped[key]: shape for key, shape in report.other_shapes.items()}
    fitted = OrderedDict((wrapped[key], value) for key, value in fitted.items())
    fitted._metadata = getattr(tensors, '_metadata', {})
    check_finite(model, fitted, checkpoint)
    report.loaded = list(fitted)
    return fitted, report


def check_finite(model: nn.Module, weights: Mapping[str, Tensor], checkpoint: str) -> None:
    """Check the numbers of the weights of a model; see `check_numbers`. `checkpoint` is the name in an error."""
    own = dict(model.named_parameters())
    parameters = {key: value for key, value in weights.items() if key in own and own[key].is_floating_point()}
    buffers = {key: weights[key] for key, _ in model.named_buffers() if key in weights}
    with naming(checkpoint):
        check_numbers(parameters, buffers)
        dtypes = {key: value.dtype for key, value in (*own.items(), *model.named_buffers())}
        for key, value in {**parameters, **buffers}.items():
            dtype = dtypes[key]
            if dtype != value.dtype and dtype.is_floating_point and (value.to(dtype).isinf() & value.isfinite()).any():
                raise CheckpointError(
                    f'{key} has numbers up to {value.abs().max().item():.5g}, and the {dtype} of the model ends at '
                    f'{torch.finfo(dtype).max:.5g}: load the weights into a model of a wider dtype'
                )


def check_numbers(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Refuse weights that are NaN, infinite or quantised. Buffers may be infinite, as some masks are.

    Raises:
        CheckpointError: with the names of the weights.
    """
    check_floating(parameters)
    broken = [key for key, value in parameters.items() if not value.isfinite().all()]
    broken += [key for key, value in buffers.items() if value.is_floating_point() and value.isnan().any()]
    if broken:
        raise CheckpointError(
            f'{len(broken)} of its {len(parameters) + len(buffers)} weights are not finite (NaN or infinite): '
            f'{first_of(broken)}; its training has diverged, or the file is damaged'
        )


def _fit_backbone(weights: SwinWeights, own: dict[str, Tensor], backbone: Any, report: LoadReport) -> dict[str, Tensor]:
    fitted = {}
    trained: dict[str, Size] = {}  # the window of each bias table
    for key, value in weights.backbone.items():
        if key not in own:
            if re.match(r'norm\d+\.', key):
                report.ignored.setdefault('norms of outputs that the backbone does not emit', []).append(key)
            else:
                report.ignored.setdefault('the backbone has no such weight', []).append(key)
                report.warnings.append(f'The checkpoint has {key}, the backbone has not: its outputs will be others')
            continue
        change = ''
        if key.endswith(TABLE) and value.shape[1:] == own[key].shape[1:]:
            target = backbone.window_size[int(key.split('.')[1])]
            trained[key] = trained_window(value, weights.windows.get(key), target)
            value, change = resize_table(value, trained[key], target)
        elif key == 'absolute_pos_embed' and value.shape[2:] == own[key].shape[2:]:
            value, change = resize_embedding(value, weights.map_size, backbone.pretrain_map_size)
            if change and weights.map_size is None:
                report.warnings.append(
                    f'{key} counts as the {change.removeprefix("position embedding from ").partition(" ")[0]} patches '
                    'of a square, because the file does not name the size. Patches of a rectangle load with the '
                    'pretrain_img_size of the training'
                )
        elif key == 'patch_embed.projection.weight' and value.dim() == own[key].dim():
            value, change = adapt_input_channels(value, own[key].shape[1])
        if change:
            report.resized[key] = change
        if value.shape != own[key].shape:
            why = ': what mixes the places of a window cannot be resized' if '.spatial_mlp.' in key else ''
            raise CheckpointError(
                f'{key} has shape {tuple(value.shape)}, the backbone takes {tuple(own[key].shape)}{why}'
            )
        fitted[key] = value
    of_a_classifier = weights.classifier or weights.format.name in ('timm', 'torchvision')  # also without its head
    if of_a_classifier and backbone.small_map == 'pad' and OF_A_CLASSIFIER not in report.notes:
        report.notes.append(OF_A_CLASSIFIER)
    _compare_windows(trained, weights, backbone, report)
    return fitted


def _compare_windows(trained: dict[str, Size], weights: SwinWeights, backbone: Any, report: LoadReport) -> None:
    """Warn about windows of the training that a user probably forgot.

    Resized tables are no warning if the checkpoint has one window and the backbone another than the default: then the
    window was chosen.

    Args:
        trained: window of each bias table.
    """
    own, stages = backbone.window_size, range(len(backbone.stages))
    windows = tuple(trained.get(f'stages.{stage}.blocks.0.{TABLE}', own[stage]) for stage in stages)
    default, several = (DEFAULT_WINDOW, DEFAULT_WINDOW), len(set(windows)) > 1
    if any(window != used and (several or used == default) for window, used in zip(windows, own)):
        assumed = '' if weights.windows else ', if with square windows, which the file does not name'
        report.warnings.append(
            f'The bias tables were resized from windows {windows} to {own}, which changes the outputs. As the '
            f'checkpoint was trained{assumed}: window_size={windows if several else windows[0]}'
        )
    scales = [weights.windows.get(f'stages.{stage}.blocks.0.attn.w_msa.logit_scale') for stage in stages]
    if weights.format.family == V2 and any(scales):
        used = [own or window for own, window in zip(backbone.pretrained_window_sizes, own)]
        if any(scale not in (None, window) for scale, window in zip(scales, used)):
            report.warnings.append(
                f'The position bias was trained with offsets scaled by windows {tuple(scales)}, the backbone scales '
                f'them by {tuple(used)}: set pretrained_window_sizes'
            )


def _fit_elsewhere(
    tensors: dict[str, Tensor], outer: str, own: dict[str, Tensor], fitted: dict[str, Tensor], report: LoadReport
) -> None:
    """Load neck and heads, by equal names and shapes."""
    for key, value in tensors.items():
        here = key.removeprefix(outer)
        if here not in own or here in fitted:
            continue
        if value.shape == own[here].shape:
            fitted[here] = value
        else:
            report.other_shapes[here] = tuple(value.shape)
            report.warnings.append(
                f'{key} has shape {tuple(value.shape)} in the checkpoint and {tuple(own[here].shape)} in the model: '
                'it was not loaded'
            )
