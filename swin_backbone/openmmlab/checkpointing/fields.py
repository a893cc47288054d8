"""What is read from a checkpoint beside its weights, as a schema: nothing reads a field that was not checked by it."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from mmengine.logging import HistoryBuffer
from torch import Tensor

from ...checkpoints import CheckpointError

ANEW = 'to start anew from its weights, leave out --resume and set load_from'
MAX_COUNT = 1 << 48
MAX_SHOWN = 60  # characters of a value in a sentence


class Field(NamedTuple):
    """A value without fields of its own."""

    takes: str  # for the sentence
    holds: Callable[[Any], bool]


class Optional_(NamedTuple):
    """What may be missing, or None."""

    schema: Any


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def is_number(value: Any) -> bool:
    """Whether it is a number that compares with others: not NaN."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    return isinstance(value, (int, float, np.integer, np.floating)) and not math.isnan(value)


def _is_history(value: Any) -> bool:
    if not isinstance(value, HistoryBuffer):
        return True  # mmengine leaves it out, and says so
    values, counts = value.data
    return len(values) == len(counts) > 0 and all(part.dtype.kind in 'iuf' for part in (values, counts))


def _is_list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(holds, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_colour(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return isinstance(value, (list, tuple)) and len(value) == 3 and all(is_count(part) and part < 256 for part in value)


COUNT = Field('a whole number from 0', is_count)
POSITIVE = Field('a whole number from 1', lambda value: is_count(value) and value > 0)
SEED = Field('a seed from 0 to 4294967295', lambda value: is_count(value) and value < 1 << 32)
NUMBER = Field('a number', is_number)
BOOL = Field('True or False', lambda value: isinstance(value, bool))
DICT = Field('a dict by names', lambda value: isinstance(value, dict) and all(map(_is_text, value)))

DATASET_META = {
    'classes': Optional_(Field('a list of names', lambda value: _is_list_of(_is_text)(value) and len(value) > 0)),
    'palette': Optional_(
        Field('a list of colours, each three whole numbers from 0 to 255', lambda value: (
            _is_list_of(_is_colour)(value.tolist() if isinstance(value, np.ndarray) else value)
        ))
    ),
}  # fmt: skip
EXACT_RESUME = {
    'sampler_seed': Optional_(SEED),
    'batches_done': COUNT,
    'batch_size': Optional_(
        Field(
            'a positive number or a list of them',
            lambda value: POSITIVE.holds(value) or (_is_list_of(POSITIVE.holds)(value) and len(value) > 0),
        )
    ),
    'ranks': POSITIVE,
    'by_epoch': Optional_(BOOL),
    'batches_a_step': Optional_(POSITIVE),
    'images': Optional_(COUNT),
    'pictures': Optional_(Field('a name', _is_text)),
    'gradients': Optional_(Field("a list of each rank's gradients by name", _is_list_of(DICT.holds))),
}
RESUMED = {
    'meta': {'epoch': COUNT, 'iter': COUNT, 'seed': Optional_(SEED), 'exact_resume': Optional_(EXACT_RESUME)},
    'message_hub': {
        'log_scalars': {'*': Field('a history of numbers', _is_history)},
        'runtime_info': {'best_score*': NUMBER},
        'resumed_keys': {'*': BOOL},
    },
    'optimizer': Optional_(DICT),
    'ema_state_dict': Optional_(DICT),
}
PARTS = {'meta': dict, 'message_hub': dict, 'state_dict': dict}  # that every checkpoint of a training has


def check_resumable(checkpoint: Mapping[str, Any], name: str) -> None:
    """Whether a checkpoint has what a training that goes on from it takes for granted, each of the right kind.

    Raises:
        CheckpointError: if it has not: it holds weights alone, or a field is another thing.
    """
    if not all(isinstance(checkpoint.get(part), kind) for part, kind in PARTS.items()):
        raise CheckpointError(
            f'checkpoint {name!r} holds weights, and not the state of a training run: it cannot be resumed; {ANEW}'
        )
    try:
        check(checkpoint, RESUMED, '')
    except ValueError as error:
        raise not_resumable(name, str(error)) from error


def not_resumable(name: str, reason: str) -> CheckpointError:
    return CheckpointError(f'checkpoint {name!r} cannot be resumed: {reason}; {ANEW}')


def dataset_meta_of(loaded: Any, name: str) -> dict[str, Any]:
    """What a checkpoint of mmengine says of the data it was trained on, its keys in small letters; {} if nothing.

    A palette that names colours in another way than one for each class is left out.

    Raises:
        CheckpointError: if classes are no names or colours no colours.
    """
    for part in ('meta', 'dataset_meta'):
        loaded = loaded.get(part) if isinstance(loaded, dict) else None
    if not isinstance(loaded, dict):
        return {}
    meta = {str(key).lower(): value for key, value in loaded.items()}
    if isinstance(meta.get('palette'), str) or _is_colour(meta.get('palette')):  # as mmdet's visualizer takes them
        del meta['palette']
    meta = {key: value for key, value in meta.items() if value is not None}
    try:
        check(meta, DATASET_META, 'dataset_meta')
    except ValueError as error:
        raise CheckpointError(f'checkpoint {name!r}: {error}') from error
    classes, palette = meta.get('classes'), meta.get('palette')
    if classes is not None and palette is not None and 0 < len(palette) < len(classes):
        raise CheckpointError(
            f'checkpoint {name!r}: dataset_meta.palette has {len(palette)} colours for {len(classes)} classes'
        )
    return meta


def check(value: Any, schema: Any, where: str) -> None:
    """Compare a value with a schema: a `Field`, an `Optional_`, or a dict of schemas by name.

    A name that ends with * is of all fields that begin so, a * alone of all.

    Raises:
        ValueError: naming the first field that is another thing.
    """
    if isinstance(schema, Optional_):
        if value is None:
            return
        schema = schema.schema
    if isinstance(schema, Field):
        if not schema.holds(value):
            raise ValueError(f'{where} takes {schema.takes}, got {shown(value)}')
        return
    if not isinstance(value, dict):
        raise ValueError(f'{where or "it"} takes a dict, got {shown(value)}')
    for name, inner in schema.items():
        if not name.endswith('*'):
            if name not in value and not isinstance(inner, Optional_):
                raise ValueError(f'{where or "it"} has no {name}')
            check(value.get(name), inner, f'{where}.{name}'.lstrip('.'))
            continue
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f'{where} takes names, got {shown(key)}')
            if key.startswith(name[:-1]):
                check(value[key], inner, f'{where}.{key}')


def shown(value: Any) -> str:
    """A value in a sentence, in bounds."""
    if isinstance(value, Tensor):
        return f'a tensor of {value.dtype} and shape {tuple(value.shape)}'
    text = f'{type(value).__name__} of {len(value)}' if isinstance(value, (dict, list, tuple)) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + '...'
