import pytest


@pytest.fixture(autouse=True, scope='session')
def _quick_exports(quick_exports):
    """All exports leave out what torch and onnxscript repeat."""
