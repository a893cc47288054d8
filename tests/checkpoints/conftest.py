"""Fixtures for the tests of checkpoints."""

import logging

import pytest


@pytest.fixture
def log(caplog):
    """Return a list for the log records."""
    caplog.set_level(logging.INFO, 'swin_backbone')
    records, handler = [], logging.Handler()
    handler.emit = records.append
    logging.getLogger('swin_backbone').addHandler(handler)
    yield records
    logging.getLogger('swin_backbone').removeHandler(handler)
