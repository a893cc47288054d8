"""The compiled library's Python side.

The library is optional (`csrc/build.py`). `SWIN_BACKBONE_NATIVE=0` turns it off.
"""
