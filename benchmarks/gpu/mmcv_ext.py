"""Stands in for mmcv's compiled operators: mmcv and mmdet can be imported, and an operator that is called raises."""

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith('__'):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f'mmcv was built without its compiled operators, and so without {name}')

    return missing
