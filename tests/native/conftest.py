"""Tests of the compiled operators run where these are built, and say why where not."""

import pytest
import torch

from swin_backbone import native


@pytest.fixture(autouse=True)
def _built():
    reason = native.why_not(torch.float32)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def _bf16():
    reason = native.why_not(torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
