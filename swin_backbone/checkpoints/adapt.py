"""Load a checkpoint into a model: adapt names, window, image size and input channels."""

import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from ..archs import DEFAULT_WINDOW
from ..checks import list_first
from ..sizes import Size
from .errors import CheckpointError, naming
from .formats import BIAS_TABLE, LOGIT_SCALE, MLP, V2
from .lora import UNTRAINED, has_adapters, merge_adapters, with_plain_names, without_adapters
from .reading import read_checkpoint
from .recognise import (
    CLASSIFIER_REASONS,
    OUTSIDE,
    UNKNOWN,
    SwinWeights,
    check_floating,
    ends_in_classifier,
    find_swin,
    plain_name,
    plain_names,
    prefix_around,
    swins_in,
    tensors_of,
)
from .resize import adapt_input_channels, resize_embedding, resize_table, times, trained_window
from .sizes import PROJECTION, swin_sizes
from .state_dict import SIZES_KEY

_logger = getLogger(__name__)
CLASSIFIER_NOTE = (
    "These are a classifier's weights. On a map no larger than a window, as the last one of a picture of 224x224, "
    'classifiers do not shift windows, and detectors and segmentors do: '
    "small_map='shrink' gives the classifier's features"
)
NO_TARGET = 'the backbone has no such weight'  # a reason to ignore a weight


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
        renamed: missing names, with an ignored name in the checkpoint of the same shape. The checkpoint may have the
            weight under a name that is not known here.
        other_shapes: names in the model whose weights were not loaded, with the shape in the checkpoint.
        guesses: names in the backbone whose window or image size the checkpoint does not name: they count as the
            rectangle of the backbone.
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
    renamed: dict[str, str] = field(default_factory=dict)
    other_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        resized = ', '.join(dict.fromkeys(self.resized.values()))
        ignored = '; '.join(f'{reason}: {list_first(names)}' for reason, names in self.ignored.items())
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
            warnings.append(f'Left at their initialisation: {", ".join(self.missing)}{self._other_names(self.missing)}')
        elsewhere = [name for name in self.missing_elsewhere if name not in self.other_shapes]
        if elsewhere:
            names = f'{list_first(elsewhere)}{self._other_names(elsewhere)}'
            warnings.append(f'Outside the backbone, not in the checkpoint: {names}')
        for warning in warnings:
            _logger.warning(warning)
        for note in self.notes:
            _log_once(note)

    def _other_names(self, missing: list[str]) -> str:
        names = [self.renamed[name] for name in missing if name in self.renamed]
        return f'. Under unknown names the checkpoint has weights of these shapes: {list_first(names)}' if names else ''


@cache
def _log_once(note: str) -> None:
    _logger.info(note)


class Backbone(NamedTuple):
    """A backbone of this package inside a model."""

    module: Any
    family: str


def backbones_of(model: nn.Module) -> dict[str, Backbone]:
    """Return the backbones of this package in a model, by the prefix of their names without wrappers.

    The toolboxes' own Swins are left out, because they do not tell the size of their window.
    """
    modules = {plain_name(name): module for name, module in model.named_modules() if hasattr(module, 'window_size')}
    return {
        prefix: Backbone(modules[prefix.rstrip('.')], format.family)
        for prefix, format in swins_in(_plain_names_of(model).values()).items()
        if format.name == 'mmdet' and prefix.rstrip('.') in modules
    }


def _plain_names_of(model: nn.Module) -> dict[str, str]:
    """Return the names of a model's weights without wrappers and adapters, by their names in the model."""
    return plain_names(model.state_dict(), lambda name: without_adapters(plain_name(name)))


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
    # Names in the model, and weights of the model, by the name without wrappers
    names = {plain: name for name, plain in _plain_names_of(model).items()}
    state_dict = model.state_dict()
    targets = {plain: state_dict[name] for plain, name in names.items()}
    backbones = backbones_of(model)
    fitted: Any = OrderedDict()  # of tensors; torch keeps _metadata on such a dict
    report = LoadReport(checkpoint)
    with naming(checkpoint):
        tensors = tensors_of(loaded)
        if has_adapters(tensors):
            tensors = with_plain_names(tensors) if has_adapters(state_dict) else merge_adapters(tensors)
        swins = {}
        classifier_names = {}  # of a classifier's last norm and head in the model, by the name in the checkpoint
        for owner, (backbone, family) in backbones.items():
            inside = {key.removeprefix(owner): value for key, value in targets.items() if key.startswith(owner)}
            around = prefix_around(owner)
            is_classifier = ends_in_classifier(inside, [key.removeprefix(around) for key in targets])
            weights = find_swin(tensors, prefer=owner, prefix=prefix, keeps_norm=is_classifier, family=family)
            swins[owner] = weights
            _compare_sizes(weights, inside, tensors)
            for key, value in _fit_backbone(weights, inside, backbone, report).items():
                fitted[owner + key] = value
            parts = {'head': f'{around}head.fc'}
            if is_classifier:
                parts['norm'] = f'{owner}norm{len(backbone.stages) - 1}'
            for part, name in parts.items():
                for key in weights.ignored.get(CLASSIFIER_REASONS[part], []):
                    full_name = f'{name}.{key.rpartition(".")[2]}'
                    if full_name in targets:  # otherwise the part may have an equal name in the model
                        classifier_names[key] = full_name
    owner, weights = [*swins.items()][-1]
    report.origin = weights.format.title + (f', prefix {weights.prefix!r}' if weights.prefix else '')
    model_prefix = weights.prefix.removesuffix(owner)  # of the whole model in the checkpoint, such as `model.`
    backbone_prefixes = tuple(weights.prefix for weights in swins.values())
    # Weights with equal names: of necks, of heads, and of a backbone's own, such as SimMIM's mask token
    candidates = {key: key.removeprefix(model_prefix) for key in tensors if not key.startswith(backbone_prefixes)}
    for owner, weights in swins.items():
        own = weights.ignored.get(UNKNOWN, [])
        candidates |= {key: owner + key.removeprefix(weights.prefix) for key in own}
    candidates |= classifier_names
    for key, name in candidates.items():
        value = tensors[key]
        if name not in targets or name in fitted:
            continue
        if value.shape == targets[name].shape:
            fitted[name] = value
        else:
            report.other_shapes[names[name]] = tuple(value.shape)
            report.warnings.append(
                f'{key} has shape {tuple(value.shape)} in the checkpoint and {tuple(targets[name].shape)} in the '
                'model: it was not loaded'
            )
    for name in targets:  # peft keeps a module as it was before the training, beside the trained one
        trained = name.replace(f'.{UNTRAINED}.', '.')
        if name not in fitted and trained in fitted:
            fitted[name] = fitted[trained]
    for weights in swins.values():
        for reason, keys in weights.ignored.items():
            ignored = [key for key in keys if candidates.get(key) not in fitted]
            if reason == OUTSIDE:
                ignored = [key for key in ignored if key in candidates]
            if ignored:
                report.ignored[reason] = list(dict.fromkeys([*report.ignored.get(reason, []), *ignored]))
    missing = {key: value for key, value in targets.items() if key not in fitted}
    report.missing = [names[key] for key in missing if key.startswith(tuple(swins))]
    report.missing_elsewhere = [names[key] for key in missing if not key.startswith(tuple(swins))]
    report.renamed = _find_renamed({names[key]: value for key, value in missing.items()}, tensors, swins, report)
    fitted = OrderedDict((names[key], value) for key, value in fitted.items())
    fitted._metadata = _metadata_for(model, getattr(tensors, '_metadata', {}), model_prefix)
    check_finite(model, fitted, checkpoint)
    report.loaded = list(fitted)
    return fitted, report


def _metadata_for(model: nn.Module, metadata: dict[str, dict[str, Any]], prefix: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of a checkpoint, such as versions, by the names of a model's modules.

    Sizes are left out: the fitted weights have the model's.

    Args:
        prefix: of the whole model's names in the checkpoint.
    """
    result = {}
    for name, _ in model.named_modules():
        entry = metadata.get((prefix + plain_name(name)).rstrip('.'))
        if entry:
            result[name] = {key: value for key, value in entry.items() if key != SIZES_KEY}
    return result


def _compare_sizes(weights: SwinWeights, targets: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Compare width, depths and heads of a Swin in a checkpoint and of a backbone. A file may lack what tells heads.

    Raises:
        CheckpointError: if they differ, or the patch embedding is no single convolution.
    """
    family = weights.format.family
    in_checkpoint, in_model = swin_sizes(weights.backbone, family), swin_sizes(targets, family)
    if not in_checkpoint.embed_dims:
        stem = [
            f'{key} of shape {tuple(value.shape)}'
            for key, value in tensors.items()
            if key.startswith(weights.prefix) and '.patch_embed' in f'.{key}'
        ]
        raise CheckpointError(
            f'it has no {PROJECTION}, the one convolution of the patch embedding; it has '
            f'{list_first(stem) or "no patch embedding"}'
        )
    known = tuple(heads or of_model for heads, of_model in zip(in_checkpoint.num_heads, in_model.num_heads))
    if in_checkpoint._replace(num_heads=known) != in_model:
        raise CheckpointError(f'it is a Swin of {in_checkpoint}; the backbone has {in_model}')


def _find_renamed(
    missing: dict[str, Tensor], tensors: dict[str, Tensor], swins: dict[str, SwinWeights], report: LoadReport
) -> dict[str, str]:
    """Return names in the checkpoint, by names in the model: unused and missing weights of equal shapes.

    Weights of a backbone are paired with weights of a backbone. Necks and heads have many shapes, so a few equal ones
    mean nothing: they are paired if half of the missing weights find one.
    """
    shapes = {key: value.shape for weights in swins.values() for key, value in weights.backbone.items()}
    shapes |= {key: value.shape for key, value in tensors.items()}

    def pair(names: list[str], *reasons: str) -> dict[str, str]:
        unused = defaultdict(list)  # names in the checkpoint by shape
        for reason in reasons:
            for key in report.ignored.get(reason, []):
                unused[shapes[key]].append(key)
        return {name: unused[missing[name].shape].pop(0) for name in names if unused[missing[name].shape]}

    inside, outside = pair(report.missing, NO_TARGET, UNKNOWN), pair(report.missing_elsewhere, OUTSIDE)
    return inside | outside if 2 * len(outside) >= len(report.missing_elsewhere) else inside


def check_finite(model: nn.Module, weights: Mapping[str, Tensor], checkpoint: str) -> None:
    """Check the numbers of the weights of a model; see `check_numbers`. `checkpoint` is the name in an error."""
    targets = dict(model.named_parameters())
    parameters = {key: value for key, value in weights.items() if key in targets and targets[key].is_floating_point()}
    buffers = {key: weights[key] for key, _ in model.named_buffers() if key in weights}
    with naming(checkpoint):
        check_numbers(parameters, buffers)
        dtypes = {key: value.dtype for key, value in (*targets.items(), *model.named_buffers())}
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
            f'{list_first(broken)}; its training has diverged, or the file is damaged'
        )


def _fit_backbone(
    weights: SwinWeights, targets: dict[str, Tensor], backbone: Any, report: LoadReport
) -> dict[str, Tensor]:
    """Return the weights of a backbone in the shapes of `targets`."""
    fitted = {}
    trained: dict[str, Size] = {}  # the window of each bias table
    without_target = []
    for key, value in weights.backbone.items():
        if key not in targets:
            if re.match(r'norm\d+\.', key):
                report.ignored.setdefault('norms of outputs that the backbone does not emit', []).append(key)
            else:
                without_target.append(key)
            continue
        change, shape = '', targets[key].shape
        if key.endswith(BIAS_TABLE) and value.shape[1:] == shape[1:]:
            target = backbone.window_size[int(key.split('.')[1])]
            trained[key] = trained_window(value, weights.windows.get(key), target)
            value, change = resize_table(value, trained[key], target)
        elif key == 'absolute_pos_embed' and value.shape[2:] == shape[2:]:
            value, change = resize_embedding(value, weights.map_size, backbone.pretrain_map_size)
        elif key == PROJECTION and value.dim() == 4:
            value, change = adapt_input_channels(value, shape[1])
        if change:
            report.resized[key] = change
        if value.shape != shape:
            why = ': the weights of Swin-MLP cannot be resized to another window' if '.spatial_mlp.' in key else ''
            raise CheckpointError(f'{key} has shape {tuple(value.shape)}, the backbone takes {tuple(shape)}{why}')
        fitted[key] = value
    if without_target:
        report.ignored.setdefault(NO_TARGET, []).extend(without_target)
        report.warnings.append(
            f'The checkpoint has {list_first(without_target)}, the backbone has not: its outputs will be others'
        )
    is_classifier = weights.classifier or weights.format.name in ('timm', 'torchvision')  # also without its head
    if is_classifier and backbone.small_map == 'pad' and CLASSIFIER_NOTE not in report.notes:
        report.notes.append(CLASSIFIER_NOTE)
    _compare_windows(trained, weights, backbone, report)
    if 'absolute_pos_embed' in fitted:
        _compare_maps(weights, backbone, report)
    return fitted


def _compare_maps(weights: SwinWeights, backbone: Any, report: LoadReport) -> None:
    """Warn if the patches of a position embedding are a guess: a square, or the rectangle of the backbone."""
    change, size = report.resized.get('absolute_pos_embed', ''), backbone.pretrain_map_size
    if weights.map_size is None and (change or size[0] != size[1]):
        if not change:
            report.guesses.append('absolute_pos_embed')
        source = change.removeprefix('position embedding from ').partition(' ')[0] or times(size)
        report.warnings.append(
            f'absolute_pos_embed counts as the {source} patches of a {"square" if change else "rectangle"}, because '
            'the file does not name the size. Patches of a rectangle load with the pretrain_img_size of the training'
        )


def _compare_windows(trained: dict[str, Size], weights: SwinWeights, backbone: Any, report: LoadReport) -> None:
    """Warn about windows of the training that a user probably forgot.

    Resized tables are no warning if the checkpoint has one window and the backbone another than the default: then the
    user chose the window.

    Args:
        trained: window of each bias table.

    Raises:
        CheckpointError: for a Swin-MLP of another window.
    """
    current = backbone.window_size
    first_blocks = [f'stages.{stage}.blocks.0.' for stage in range(len(backbone.stages))]
    windows = tuple(trained.get(block + BIAS_TABLE, window) for block, window in zip(first_blocks, current))
    default, several = (DEFAULT_WINDOW, DEFAULT_WINDOW), len(set(windows)) > 1
    if any(window != used and (several or used == default) for window, used in zip(windows, current)):
        assumed = '' if weights.windows else ', if with square windows, which the file does not name'
        report.warnings.append(
            f'The bias tables were resized from windows {windows} to {current}, which changes the outputs. As the '
            f'checkpoint was trained{assumed}: window_size={windows if several else windows[0]}'
        )
    if trained and not weights.windows and windows == current and any(height != width for height, width in current):
        report.guesses.extend(trained)
        report.warnings.append(
            f'The bias tables count as those of the windows {current} of the backbone, because the file does not name '
            'the windows. Tables of a window (height, width) and (width, height) have equal shapes'
        )
    stored = tuple(weights.windows.get(block + BIAS_TABLE, window) for block, window in zip(first_blocks, current))
    if weights.format.family == MLP and stored != current:
        raise CheckpointError(f'it is a Swin-MLP of windows {stored}, the backbone has {current}')
    pretrained = [weights.pretrained_windows.get(block + LOGIT_SCALE) for block in first_blocks]
    if weights.format.family == V2 and any(pretrained):
        used = [size or window for size, window in zip(backbone.pretrained_window_sizes, current)]
        if any(size not in (None, window) for size, window in zip(pretrained, used)):
            report.warnings.append(
                f'The position bias was trained with offsets scaled by windows {tuple(pretrained)}, the backbone '
                f'scales them by {tuple(used)}: set pretrained_window_sizes'
            )
