"""mmcv's compiled operators on torch alone, so that mmdet and mmseg run where mmcv was installed without them.

`mmcv.ops` looks for its functions in a module `mmcv._ext`. Where that is absent, or does not load, `put_in_place` puts
`ext.py` there; an mmcv that has been compiled is left as it is.

    ext.py            the module, its names, and what a missing one says
    roi*.py, pool.py  regions pooled to one size   nms.py, rotated.py   suppression and overlaps
    deform.py         deformable convolutions      maps.py, losses.py   the rest
    bags.py           what samples a map           providers.py         whose kernel computes an operator
"""

import importlib
import importlib.util
import sys

NAME = 'mmcv._ext'


def put_in_place() -> None:
    """Let `ext.py` be `mmcv._ext`, if this mmcv has `mmcv.ops` and no such module that loads."""
    import mmcv
    import torch  # noqa: F401 - the compiled one is linked to its libraries

    if sys.modules.get(NAME) is not None or importlib.util.find_spec('mmcv.ops') is None:
        return
    try:
        importlib.import_module(NAME)
    except (ImportError, OSError):
        from . import ext

        sys.modules[NAME] = ext
        mmcv._ext = ext


def in_use() -> str:
    """Whose operators `mmcv.ops` takes, in one line."""
    module = sys.modules.get(NAME)
    if module is None:
        return 'none: this mmcv has no mmcv.ops'
    if module.__name__ == NAME:
        return 'compiled'
    return "swin_backbone's own, in place of mmcv's (MMCV=compiled make install)"
