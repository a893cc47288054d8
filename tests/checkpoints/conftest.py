"""What the tests of checkpoints share."""

import pytest
from mmengine.logging import MMLogger


@pytest.fixture
def log():
    """The lines that are logged, and which of them are warnings."""
    logger = MMLogger.get_instance(f'checkpoints{id(object())}')
    records = []
    logger.addFilter(lambda record: records.append(record) or True)
    return records
