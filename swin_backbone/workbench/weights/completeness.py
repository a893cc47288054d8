"""Compare a checkpoint with a whole model: missing weights, other shapes, other classes."""

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from torch import Tensor, nn

from ...checkpoints.damage import check_finite
from ...checkpoints.errors import CheckpointError
from ...checkpoints.load import adapt_weights, find_backbones
from ...checks import list_first
from ..configs.class_counts import CLASS_HEADS

CLASSES_SHOWN = 20
ALLOW_MISSING = '--allow-missing leaves what does not fit random'


def read_dataset_meta(loaded: dict[str, Any]) -> dict[str, Any]:
    """Return the metainfo of the training data in a checkpoint of mmengine, with small letters as keys, or {}.

    A palette without a colour for each class is left out. Joined data sets of different metainfo have a list: {}.
    """
    saved = as_mapping(as_mapping(loaded.get('meta')).get('dataset_meta'))
    meta = {str(key).lower(): value for key, value in saved.items() if value is not None}
    palette = meta.pop('palette', None)
    if isinstance(palette, (list, tuple, np.ndarray)) and len(palette) >= len(meta.get('classes', ())):
        meta['palette'] = palette
    return meta


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """Return a mapping, and {} in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def compare_class_names(saved: Sequence[str], classes: Sequence[str], checkpoint: str) -> str:
    """Compare the names of classes of a checkpoint and of the data, by their numbers.

    Returns:
        A warning if names differ, '' otherwise. Other numbers of classes are errors of the weights.

    Raises:
        CheckpointError: for the same names in another order, with both lists.
    """
    saved, classes = list(map(str, saved)), list(map(str, classes))
    if saved == classes or not saved or len(saved) != len(classes):
        return ''
    lists = f'{list_first(saved, CLASSES_SHOWN)}; those of the data are {list_first(classes, CLASSES_SHOWN)}'
    if sorted(saved) == sorted(classes):
        raise CheckpointError(
            f'checkpoint {checkpoint!r} has the classes of the data in another order, so that each would be taken for '
            f'another: its classes are {lists}. Give the classes of the data the order of the checkpoint'
        )
    saved_name, name = next(pair for pair in zip(saved, classes) if pair[0] != pair[1])
    return f'checkpoint {checkpoint!r} has other classes, as {saved_name} in place of {name}: its classes are {lists}'


def adapt_checkpoint(
    model: nn.Module, loaded: Any, checkpoint: str, strict: bool, hint: str
) -> Optional[dict[str, Tensor]]:
    """Return weights with the names and shapes of a model with a Swin of this package, or None for other models.

    Args:
        loaded: contents of the file.
        checkpoint: name of the file, for the log and for errors.
        strict: raise an error for missing weights and other shapes; otherwise such weights stay random.
        hint: advice in that error.

    Raises:
        CheckpointError: if a weight is not finite or the backbone does not fit. With `strict`, also if weights are
            missing or have another shape.
    """
    if find_backbones(model):
        weights, report = adapt_weights(model, loaded, checkpoint)
        report.log()
        shapes = {**{key: tuple(value.shape) for key, value in weights.items()}, **report.other_shapes}
    else:
        entries = loaded.get('state_dict', loaded).items()
        weights = {key.removeprefix('module.'): value for key, value in entries if isinstance(value, Tensor)}
        check_finite(model, weights, checkpoint)
        shapes = {key: tuple(value.shape) for key, value in weights.items()}
    if strict:
        _check_shapes(model, shapes, loaded, checkpoint, hint)
    return weights if find_backbones(model) else None


def _check_shapes(
    model: nn.Module, shapes: dict[str, tuple[int, ...]], loaded: Any, checkpoint: str, hint: str
) -> None:
    statistics = ('running_mean', 'running_var')  # other buffers are computed
    tensors = [*model.named_parameters(), *(pair for pair in model.named_buffers() if pair[0].endswith(statistics))]
    expected = {key: tuple(value.shape) for key, value in tensors}
    missing = [key for key in expected if key not in shapes]
    wrong = [key for key in expected if key in shapes and shapes[key] != expected[key]]
    if not missing and not wrong:
        return
    classes = read_dataset_meta(loaded).get('classes', ())
    for name, module in model.named_modules():
        num_classes = getattr(module, 'num_classes', None)
        is_head = name.rstrip('.0123456789').rpartition('.')[2] in CLASS_HEADS and isinstance(num_classes, int)
        if is_head and classes and num_classes != len(classes) and any(key.startswith(f'{name}.') for key in wrong):
            raise CheckpointError(
                f'checkpoint {checkpoint!r} was trained with {len(classes)} classes, the model of the config has '
                f'{num_classes}; {hint}'
            )
    reasons = []
    if missing:
        reasons.append(
            f'does not have {len(missing)} of the {len(expected)} weights of the model ({list_first(missing)})'
        )
    if wrong:
        reasons.append(f'has {len(wrong)} in another shape ({wrong[0]}: {shapes[wrong[0]]}, not {expected[wrong[0]]})')
    raise CheckpointError(f'checkpoint {checkpoint!r} {" and ".join(reasons)}: is it of this model? {hint}')
