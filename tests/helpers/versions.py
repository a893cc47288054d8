"""Marks of tests for what the installed torch or Triton lacks."""

from importlib.metadata import PackageNotFoundError, version

import pytest
import torch


def _parse(text):
    return tuple(int(number) for number in text.split('.')[:2])


def needs_torch(minimum, part):
    """Skip tests of what torch has since a release.

    Args:
        minimum: a release that has the part, like '2.5'.
    """
    is_older = _parse(torch.__version__) < _parse(minimum)
    return pytest.mark.skipif(is_older, reason=f'torch {torch.__version__} has no {part}')


def _is_interpreter_broken():
    """Return whether Triton's interpreter, which runs without a GPU, makes numbers of arrays as numpy 1 allowed."""
    try:
        is_old = _parse(version('triton')) < (3, 1)
    except PackageNotFoundError:
        return False
    return is_old and _parse(version('numpy')) >= (2, 0) and not torch.cuda.is_available()


needs_interpreter = pytest.mark.skipif(_is_interpreter_broken(), reason='the interpreter of this Triton needs numpy 1')
