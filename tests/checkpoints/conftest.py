"""Fixtures for the tests of checkpoints."""

import pytest
from mmengine.logging import MMLogger


@pytest.fixture
def log():
    """Return a list for the log records."""
    logger = MMLogger.get_instance(f'checkpoints{id(object())}')
    records = []
    logger.addFilter(lambda record: records.append(record) or True)
    return records
