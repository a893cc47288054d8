"""A classifier of mmpretrain, or of mmdet's re-identification, around another backbone.

Its head reads one vector an image: the mean of the last map, or what a backbone like ConvNeXt makes of it itself.
"""

from mmengine.config import ConfigDict

from ..errors import kind_of
from .probe import Level

CLASSIFIERS = ('ImageClassifier', 'BaseReID')
POOLING = ('GlobalAveragePooling', 'GeneralizedMeanPooling')  # necks of no channels


def is_classifier(model: ConfigDict, scope: str) -> bool:
    """Whether a model of a config is to be treated as one; of mmpretrain any is, or else it is refused."""
    return scope == 'mmpretrain' or kind_of(model) in CLASSIFIERS


def require_classifier(model: ConfigDict, key: str) -> None:
    """Refuse what asks more of its backbone than maps: masks of SimMIM, tokens of retrieval and of text.

    Raises:
        ValueError: naming its type.
    """
    if kind_of(model) not in CLASSIFIERS:
        raise ValueError(f'{key}.type: a {kind_of(model)} asks more of its backbone than maps; classifiers do not')


def rewire_classifier(model: ConfigDict, levels: list[Level], width: int, key: str, neck_name: str) -> None:
    """Write the channels of a Swin's last stage into the neck and head of a classifier.

    Args:
        levels: what the old backbone emits; its last map or vector is what is classified.
        width: channels of the last stage.
        key: of the model in the config.
        neck_name: of the neck in the model.

    Raises:
        ValueError: naming what it cannot place.
    """
    last, neck, head = levels[-1], model.get(neck_name), model.get('head')
    if not isinstance(head, ConfigDict) or 'in_channels' not in head:
        raise ValueError(f'{key}.head: nothing with in_channels, which say what is classified')
    old: int = last.channels
    if neck is None:
        if last.is_vector:  # the mean that its backbone took, of Swin's map
            model[neck_name] = dict(type='mmpretrain.GlobalAveragePooling')
    elif not isinstance(neck, ConfigDict):
        raise ValueError(f'{key}.{neck_name}: {len(neck)} necks in turn cannot be given other maps')
    elif 'in_channels' in neck:
        if last.is_vector or neck.in_channels != old:
            shown = f'{old} channels' + (', and not as a map' if last.is_vector else '')
            raise ValueError(f'{key}.{neck_name}.in_channels is {neck.in_channels}, and the backbone emits {shown}')
        neck.in_channels = width
        if 'out_channels' in neck:
            return  # and the head reads what it did
    elif kind_of(neck) not in POOLING:
        raise ValueError(f'{key}.{neck_name}: a {kind_of(neck)} without in_channels, which say what it reads')
    if head.in_channels != old:
        raise ValueError(f'{key}.head.in_channels is {head.in_channels}, and the backbone emits {old} channels')
    head.in_channels = width
