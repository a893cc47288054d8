"""Tests of the compiled operators: without the library, the tests are skipped with a reason."""

import pytest
import torch
from helpers.kernels import refusal


@pytest.fixture(autouse=True)
def _built():
    reason = refusal(torch.float32)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope='module', params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    """Return a dtype of the operators on the processor."""
    reason = refusal(request.param)
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope='module')
def _bf16():
    reason = refusal(torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
