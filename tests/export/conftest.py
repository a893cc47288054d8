"""Checks after every test of exports."""

import ctypes
import mmap
import sys

import pytest


class SignalStack(ctypes.Structure):
    """Linux's stack_t."""

    _fields_ = [('sp', ctypes.c_void_p), ('flags', ctypes.c_int), ('size', ctypes.c_size_t)]


@pytest.fixture(autouse=True)
def _a_signal_can_be_handled():
    """Check the signal stack, which OpenVINO's Cores can leave freed: see `runtime.openvino_core`."""
    yield
    if sys.platform != 'linux':
        return
    libc, stack = ctypes.CDLL(None, use_errno=True), SignalStack()
    assert libc.sigaltstack(None, ctypes.byref(stack)) == 0
    if stack.sp:
        page = stack.sp // mmap.PAGESIZE * mmap.PAGESIZE
        asynchronously = 1
        assert libc.msync(ctypes.c_void_p(page), ctypes.c_size_t(1), asynchronously) == 0, 'the signal stack is gone'
