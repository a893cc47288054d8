"""Tests of the compiled operators run where these are built, and say why where not."""

import pytest
import torch

from swin_backbone.backends.native.availability import why_not_in


@pytest.fixture(autouse=True)
def _built():
    reason = why_not_in(torch.float32)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope='module', params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    """One that the operators compute in here."""
    reason = why_not_in(request.param)
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope='module')
def _bf16():
    reason = why_not_in(torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
