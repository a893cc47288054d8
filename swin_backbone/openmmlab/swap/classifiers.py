"""Classifiers of mmpretrain, and mmdet's re-identification, with a Swin as backbone.

The head reads one vector per image: the mean of the last map, or a vector that the backbone itself emits.
"""

from mmengine.config import ConfigDict

from ..config_parts import type_name
from .probe import find_backbone_maps

CLASSIFIERS = ('ImageClassifier', 'BaseReID')
POOLING = ('GlobalAveragePooling', 'GeneralizedMeanPooling')  # necks without a number of channels


def is_classifier(model: ConfigDict, scope: str) -> bool:
    """Return whether a model is a classifier, or another model of mmpretrain."""
    return scope == 'mmpretrain' or type_name(model) in CLASSIFIERS


def rewire_classifier(model: ConfigDict, backbone_name: str, width: int, key: str) -> None:
    """Write the channels of a Swin's last stage into the neck and head of a classifier.

    Args:
        backbone_name: name of the old backbone in the model. The head classifies its last output.
        width: channels of the last stage.
        key: key of the model in the config.

    Raises:
        ValueError: for a model that needs more than maps from a backbone (SimMIM's masks, tokens of retrieval and
            text), with its type; or with the key of a neck or head of another kind.
    """
    if type_name(model) not in CLASSIFIERS:
        raise ValueError(f'{key}.type takes one of {", ".join(CLASSIFIERS)}, got {type_name(model)}')
    last = find_backbone_maps(model[backbone_name], f'{key}.{backbone_name}', vectors=True)[-1]
    neck_name = backbone_name.replace('backbone', 'neck')
    neck, head = model.get(neck_name), model.get('head')
    if not isinstance(head, ConfigDict) or 'in_channels' not in head:
        raise ValueError(f'{key}.head takes a head with in_channels, got {head!r:.80}')
    old = last.channels
    if neck is None:
        if last.is_vector:  # the old backbone computed the mean
            model[neck_name] = dict(type='mmpretrain.GlobalAveragePooling')
    elif not isinstance(neck, ConfigDict):
        raise ValueError(f'{key}.{neck_name}: {len(neck)} necks in turn cannot be given other maps')
    elif 'in_channels' in neck:
        if last.is_vector or neck.in_channels != old:
            output = 'a vector' if last.is_vector else 'a map'
            raise ValueError(
                f'{key}.{neck_name}.in_channels is {neck.in_channels}, and the backbone emits {output} of {old} '
                'channels'
            )
        neck.in_channels = width
        if 'out_channels' in neck:
            return  # the head reads the same channels as before
    elif type_name(neck) not in POOLING:
        raise ValueError(f'{key}.{neck_name}: a {type_name(neck)} has no in_channels')
    if head.in_channels != old:
        raise ValueError(f'{key}.head.in_channels is {head.in_channels}, and the backbone emits {old} channels')
    head.in_channels = width
