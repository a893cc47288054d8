import pytest
import torch
from helpers.kernels import count_blocks, refusal


@pytest.fixture
def calls(monkeypatch):
    """Return a list with the dtype of products for every block that the library computes."""
    return count_blocks(monkeypatch)


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
