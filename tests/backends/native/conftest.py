"""Tests of the compiled operators run where these are built, and say why where not."""

import pytest
import torch

from swin_backbone.backends import native


@pytest.fixture(autouse=True)
def _built():
    reason = native.why_not(torch.float32)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope='module', params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    """One that the operators compute in here."""
    reason = native.why_not(request.param)
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope='module')
def _bf16():
    reason = native.why_not(torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
