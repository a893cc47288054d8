import pytest
from helpers.kernels import count_blocks


@pytest.fixture
def calls(monkeypatch):
    """Return a list with the dtype of products for every block that the library computes."""
    return count_blocks(monkeypatch)
