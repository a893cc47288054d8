"""Bytes of checkpoints, and objects that run code when their pickle is loaded."""

import io
import os

import torch


class Reduced:
    """An object that pickles to a call and its arguments."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def makes_folder(path):
    """Return an object whose pickle makes a folder."""
    return Reduced(os.makedirs, (str(path), 0o777, True))


def saved(contents, **options):
    """Return the bytes that torch.save writes."""
    torch.save(contents, buffer := io.BytesIO(), **options)
    return buffer.getvalue()
