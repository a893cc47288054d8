"""The error of a named backend."""

import copy
import pickle

import pytest

from swin_backbone.replace import CannotRun


@pytest.mark.parametrize('copy_of', [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_passes_between_processes(copy_of):
    """Workers of a DataLoader and of torch.multiprocessing pickle their errors."""
    error = copy_of(CannotRun('native', 'The library has no block of this kind.'))
    assert type(error) is CannotRun
    assert error.reason == 'The library has no block of this kind.'
    assert str(error) == "backend='native' cannot compute this: The library has no block of this kind."
