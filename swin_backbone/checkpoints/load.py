"""Load a checkpoint into a model: adapt names, window, image size and input channels."""

import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol, Union

from torch import Tensor, nn

from ..archs import DEFAULT_WINDOW
from ..checks import list_first
from ..sizes import Size, format_size
from .damage import check_finite
from .errors import CheckpointError, name_in_errors
from .formats import BIAS_TABLE, LOGIT_SCALE, SWIN_MLP, SWIN_V2
from .lora import UNTRAINED, has_adapters, merge_adapters, strip_adapter_parts, use_plain_names
from .reading import read_checkpoint
from .recognise import (
    SwinWeights,
    ends_in_classifier,
    extract_swin,
    find_formats,
    find_outer_prefix,
    find_tensors,
    shorten_names,
    strip_wrapper_parts,
)
from .report import COMPUTED, NO_OUTPUT, NOT_IN_BACKBONE, OUTSIDE, UNKNOWN, LoadReport
from .resize import adapt_input_channels, choose_map_size, choose_window_size, resize_embedding, resize_table
from .shapes import PROJECTION, find_sizes
from .stored_sizes import SIZES_KEY

CLASSIFIER_NOTE = (
    "These are a classifier's weights. On a map no larger than a window, as the last one of a picture of 224x224, "
    'classifiers do not shift windows, and detectors and segmentors do: '
    "small_map='shrink' gives the classifier's features"
)


class Backbone(Protocol):
    """What a load reads of a backbone of this package."""

    stages: Sized
    window_size: Sequence[Size]  # of each stage
    small_map: str
    pretrain_map_size: Size  # of a position embedding
    pretrained_window_sizes: Sequence[Optional[Size]]  # of Swin V2


class FoundBackbone(NamedTuple):
    """A backbone of this package inside a model."""

    backbone: Backbone
    family: str


def find_backbones(model: nn.Module) -> dict[str, FoundBackbone]:
    """Return the backbones of this package in a model, by the prefix of their names without wrappers.

    The toolboxes' own Swins are left out, because they do not tell the size of their window.
    """
    modules: dict[str, Any] = {
        strip_wrapper_parts(name): module for name, module in model.named_modules() if hasattr(module, 'window_size')
    }
    return {
        prefix: FoundBackbone(modules[prefix.rstrip('.')], format.family)
        for prefix, format in find_formats(_find_plain_names(model).values()).items()
        if format.name == 'mmdet' and prefix.rstrip('.') in modules
    }


def _find_plain_names(model: nn.Module) -> dict[str, str]:
    """Return the names of a model's weights without wrappers and adapters, by their names in the model."""
    return shorten_names(model.state_dict(), lambda name: strip_adapter_parts(strip_wrapper_parts(name)))


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
    if not find_backbones(model):
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
    name_in_model = {plain: name for name, plain in _find_plain_names(model).items()}
    state_dict = model.state_dict()
    model_weights = {plain: state_dict[name] for plain, name in name_in_model.items()}
    report = LoadReport(checkpoint)
    with name_in_errors(checkpoint):
        tensors = find_tensors(loaded)
        if has_adapters(tensors):
            tensors = use_plain_names(tensors) if has_adapters(state_dict) else merge_adapters(tensors)
        fitted, swins, classifier_names = _fit_backbones(model, tensors, model_weights, prefix, report)
    last_prefix, last = [*swins.items()][-1]  # one for all: the backbones of a file have one origin
    report.origin = last.format.title + (f', prefix {last.prefix!r}' if last.prefix else '')
    source_root = last.prefix.removesuffix(last_prefix)  # of the whole model in the checkpoint, such as `model.`
    candidates = {**_match_names(tensors, swins, source_root), **classifier_names}
    _fit_by_name(candidates, tensors, model_weights, name_in_model, fitted, report)
    for name in model_weights:  # peft keeps a module as it was before the training, beside the trained one
        trained_name = name.replace(f'.{UNTRAINED}.', '.')
        if name not in fitted and trained_name in fitted:
            fitted[name] = fitted[trained_name]
    _report_ignored(swins, candidates, fitted, report)
    missing = {key: value for key, value in model_weights.items() if key not in fitted}
    report.missing = [name_in_model[key] for key in missing if key.startswith(tuple(swins))]
    report.missing_elsewhere = [name_in_model[key] for key in missing if not key.startswith(tuple(swins))]
    not_found = {name_in_model[key]: value for key, value in missing.items()}
    report.renamed = _find_renamed(not_found, tensors, swins, report)
    result: Any = OrderedDict((name_in_model[key], value) for key, value in fitted.items())
    result._metadata = _map_metadata(model, getattr(tensors, '_metadata', {}), source_root)  # where torch reads it
    check_finite(model, result, checkpoint)
    report.loaded = list(result)
    return result, report


def _fit_backbones(
    model: nn.Module,
    tensors: dict[str, Tensor],
    model_weights: Mapping[str, Tensor],
    prefix: Optional[str],
    report: LoadReport,
) -> tuple[dict[str, Tensor], dict[str, SwinWeights], dict[str, str]]:
    """Return the weights of all backbones of a model; the Swin of the checkpoint for each; a classifier's names.

    The Swins are by the prefix of the backbone in the model. For the names see `_match_classifier_names`.
    """
    fitted: dict[str, Tensor] = {}
    swins: dict[str, SwinWeights] = {}
    classifier_names: dict[str, str] = {}
    for model_prefix, (backbone, family) in find_backbones(model).items():
        model_root = find_outer_prefix(model_prefix)
        backbone_weights = {
            key.removeprefix(model_prefix): x for key, x in model_weights.items() if key.startswith(model_prefix)
        }
        is_classifier = ends_in_classifier(backbone_weights, [key.removeprefix(model_root) for key in model_weights])
        weights = extract_swin(tensors, prefer=model_prefix, prefix=prefix, keeps_norm=is_classifier, family=family)
        swins[model_prefix] = weights
        _compare_sizes(weights, backbone_weights, tensors)
        values = _fit_backbone(weights, backbone_weights, backbone, report)
        fitted |= {model_prefix + key: value for key, value in values.items()}
        parts = {'head': f'{model_root}head.fc'}
        if is_classifier:
            parts['norm'] = f'{model_prefix}norm{len(backbone.stages) - 1}'
        classifier_names |= _match_classifier_names(weights, parts, model_weights)
    return fitted, swins, classifier_names


def _match_classifier_names(
    weights: SwinWeights, parts: Mapping[str, str], model_weights: Mapping[str, Tensor]
) -> dict[str, str]:
    """Return the names of a classifier's weights in the model, by their names in the checkpoint.

    Args:
        parts: the modules in the model that are the classifier's `head` and last `norm`.
    """
    names = {}
    for part, module in parts.items():
        for key in weights.classifier_names.get(part, []):
            name = f'{module}.{key.rpartition(".")[2]}'
            if name in model_weights:  # otherwise the part may have an equal name in the model
                names[key] = name
    return names


def _match_names(tensors: Mapping[str, Tensor], swins: Mapping[str, SwinWeights], source_root: str) -> dict[str, str]:
    """Return names in the model by those in the checkpoint: of necks, heads, and a mask token of a backbone."""
    backbone_prefixes = tuple(weights.prefix for weights in swins.values())
    names = {key: key.removeprefix(source_root) for key in tensors if not key.startswith(backbone_prefixes)}
    for model_prefix, weights in swins.items():
        names |= {key: model_prefix + key.removeprefix(weights.prefix) for key in weights.unknown}
    return names


def _fit_by_name(
    candidates: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    model_weights: Mapping[str, Tensor],
    name_in_model: Mapping[str, str],
    fitted: dict[str, Tensor],
    report: LoadReport,
) -> None:
    """Add the weights that the model has under a name of `candidates`, and report those of another shape."""
    for key, name in candidates.items():
        value = tensors[key]
        if name not in model_weights or name in fitted:
            continue
        if value.shape == model_weights[name].shape:
            fitted[name] = value
        else:
            report.other_shapes[name_in_model[name]] = tuple(value.shape)
            report.warnings.append(
                f'{key} has shape {tuple(value.shape)} in the checkpoint and {tuple(model_weights[name].shape)} in the '
                'model: it was not loaded'
            )


def _report_ignored(
    swins: Mapping[str, SwinWeights], candidates: Mapping[str, str], fitted: Mapping[str, Tensor], report: LoadReport
) -> None:
    """Report the ignored weights of all backbones that have not been fitted by their names."""
    for weights in swins.values():
        keys_of = {COMPUTED: weights.index_tables}
        keys_of |= {f'classification {part}': keys for part, keys in weights.classifier_names.items()}
        keys_of |= {UNKNOWN: weights.unknown, OUTSIDE: [key for key in weights.outside if key in candidates]}
        for reason, keys in keys_of.items():
            ignored = [key for key in keys if candidates.get(key) not in fitted]
            if ignored:
                report.ignored[reason] = list(dict.fromkeys([*report.ignored.get(reason, []), *ignored]))


def _map_metadata(model: nn.Module, metadata: dict[str, dict[str, Any]], source_root: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of a checkpoint, such as versions, by the names of a model's modules.

    Sizes are left out: the fitted weights have the model's.
    """
    result = {}
    for name, _ in model.named_modules():
        entry = metadata.get((source_root + strip_wrapper_parts(name)).rstrip('.'))
        if entry:
            result[name] = {key: value for key, value in entry.items() if key != SIZES_KEY}
    return result


def _compare_sizes(weights: SwinWeights, backbone_weights: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Raise CheckpointError if a Swin in a checkpoint has another width, depths or heads than a backbone.

    A file may lack what tells heads.
    """
    family = weights.format.family
    in_checkpoint, in_model = find_sizes(weights.backbone, family), find_sizes(backbone_weights, family)
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
    num_heads = tuple(known or expected for known, expected in zip(in_checkpoint.num_heads, in_model.num_heads))
    if in_checkpoint._replace(num_heads=num_heads) != in_model:
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

    inside, outside = pair(report.missing, NOT_IN_BACKBONE, UNKNOWN), pair(report.missing_elsewhere, OUTSIDE)
    return inside | outside if 2 * len(outside) >= len(report.missing_elsewhere) else inside


def _fit_backbone(
    weights: SwinWeights, backbone_weights: dict[str, Tensor], backbone: Backbone, report: LoadReport
) -> dict[str, Tensor]:
    """Return the weights of a backbone in the shapes of `backbone_weights`."""
    fitted = {}
    trained: dict[str, Size] = {}  # the window of each bias table in the training
    map_size: Optional[Size] = None  # of the position embedding
    not_in_backbone = []
    for key, value in weights.backbone.items():
        if key not in backbone_weights:
            if re.match(r'norm\d+\.', key):
                report.ignored.setdefault(NO_OUTPUT, []).append(key)
            else:
                not_in_backbone.append(key)
            continue
        change, shape = '', backbone_weights[key].shape
        if key.endswith(BIAS_TABLE) and value.shape[1:] == shape[1:]:
            window_size = backbone.window_size[int(key.split('.')[1])]
            trained[key] = choose_window_size(value, weights.window_sizes.get(key), window_size)
            value, change = resize_table(value, trained[key], window_size)
        elif key == 'absolute_pos_embed' and value.shape[2:] == shape[2:]:
            map_size = choose_map_size(value, weights.map_size, backbone.pretrain_map_size)
            value, change = resize_embedding(value, map_size, backbone.pretrain_map_size)
        elif key == PROJECTION and value.dim() == 4:
            value, change = adapt_input_channels(value, shape[1])
        if change:
            report.resized[key] = change
        if value.shape != shape:
            advice = ': the weights of Swin-MLP cannot be resized to another window' if '.spatial_mlp.' in key else ''
            raise CheckpointError(f'{key} has shape {tuple(value.shape)}, the backbone takes {tuple(shape)}{advice}')
        fitted[key] = value
    if not_in_backbone:
        report.ignored.setdefault(NOT_IN_BACKBONE, []).extend(not_in_backbone)
        report.warnings.append(
            f'The checkpoint has {list_first(not_in_backbone)}, the backbone has not: its outputs will be others'
        )
    is_classifier = weights.classifier or weights.format.is_of_classifiers
    if is_classifier and backbone.small_map == 'pad' and CLASSIFIER_NOTE not in report.notes:
        report.notes.append(CLASSIFIER_NOTE)
    _compare_windows(trained, weights, backbone, report)
    if map_size and weights.map_size is None:
        _compare_maps(map_size, backbone.pretrain_map_size, report)
    return fitted


def _compare_maps(assumed: Size, current: Size, report: LoadReport) -> None:
    """Warn that the patches of a position embedding are a guess: a square, or the rectangle of the backbone."""
    if assumed != current or current[0] != current[1]:
        if assumed == current:
            report.guesses.append('absolute_pos_embed')
        kind = 'rectangle' if assumed == current else 'square'
        report.warnings.append(
            f'absolute_pos_embed counts as the {format_size(assumed)} patches of a {kind}, because the file does not '
            'name the size. Patches of a rectangle load with the pretrain_img_size of the training'
        )


def _compare_windows(trained: dict[str, Size], weights: SwinWeights, backbone: Backbone, report: LoadReport) -> None:
    """Warn about windows of the training that a user probably forgot. For a Swin-MLP they are a CheckpointError.

    Resized tables are no warning if the user chose the window: if the checkpoint has one window for all stages, and the
    backbone's is not the default.

    Args:
        trained: the window of each bias table in the training.
    """
    current = backbone.window_size
    first_blocks = [f'stages.{stage}.blocks.0.' for stage in range(len(backbone.stages))]
    window_sizes = tuple(trained.get(block + BIAS_TABLE, window) for block, window in zip(first_blocks, current))
    default, several = (DEFAULT_WINDOW, DEFAULT_WINDOW), len(set(window_sizes)) > 1
    if any(window != used and (several or used == default) for window, used in zip(window_sizes, current)):
        assumed = '' if weights.window_sizes else ', if with square windows, which the file does not name'
        report.warnings.append(
            f'The bias tables were resized from windows {window_sizes} to {current}, which changes the outputs. As the '
            f'checkpoint was trained{assumed}: window_size={window_sizes if several else window_sizes[0]}'
        )
    if trained and not weights.window_sizes and window_sizes == current and any(h != w for h, w in current):
        report.guesses.extend(trained)
        report.warnings.append(
            f'The bias tables count as those of the windows {current} of the backbone, because the file does not name '
            'the windows. Tables of a window (height, width) and (width, height) have equal shapes'
        )
    stored = tuple(weights.window_sizes.get(block + BIAS_TABLE, window) for block, window in zip(first_blocks, current))
    if weights.format.family == SWIN_MLP and stored != current:
        raise CheckpointError(f'it is a Swin-MLP of windows {stored}, the backbone has {current}')
    pretrained = [weights.pretrained_window_sizes.get(block + LOGIT_SCALE) for block in first_blocks]
    if weights.format.family == SWIN_V2 and any(pretrained):
        used = [size or window for size, window in zip(backbone.pretrained_window_sizes, current)]
        if any(size not in (None, window) for size, window in zip(pretrained, used)):
            report.warnings.append(
                f'The position bias was trained with offsets scaled by windows {tuple(pretrained)}, the backbone '
                f'scales them by {tuple(used)}: set pretrained_window_sizes'
            )
