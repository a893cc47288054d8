"""Tests of the compiled operators: without the library, the tests are skipped with a reason."""

import pytest
import torch
from helpers.kernels import refusal


@pytest.fixture(autouse=True)
def _built():
    reason = refusal(torch.float32)
    if reason is not None:
        pytest.skip(reason)
