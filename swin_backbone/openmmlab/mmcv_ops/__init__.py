"""mmcv's compiled operators on torch alone, for an mmcv that was installed without them.

`mmcv.ops` takes its functions from a module `mmcv._ext`. Where mmcv has no such module, `finder.py` finds a stand-in.
`put_in_place` serves a checkout that pip did not install, and a compiled module that does not load. The configs
of mmdet, mmseg and mmrotate call these operators.

    ext.py            the stand-in for `mmcv._ext`, and the error of a missing operator
    finder.py         lets Python find the stand-in before `swin_backbone` is imported
    roi*.py           regions pooled to one size    nms.py, overlaps.py   suppression, and overlaps
    deform.py         deformable convolutions       maps.py, losses.py    the rest
    bags.py           weighted sums of a map        providers.py          the kernel of an operator
"""

import importlib
import importlib.util
import os
import sys

STAND_INS_SWITCH = 'SWIN_BACKBONE_STAND_INS'
NAME = 'mmcv._ext'


def put_in_place() -> None:
    """Let `ext.py` be `mmcv._ext`, if this mmcv has `mmcv.ops` and no compiled module that loads.

    `SWIN_BACKBONE_STAND_INS=0` switches this off.
    """
    if os.environ.get(STAND_INS_SWITCH) == '0':
        return
    if any(importlib.util.find_spec(name) is None for name in ('mmcv', 'mmcv.ops')):
        return
    import mmcv
    import torch  # noqa: F401 - the compiled one is linked to its libraries

    try:
        spec = importlib.import_module(NAME).__spec__
        if spec is None or spec.origin != __name__:  # compiled, or here already
            return
    except (ImportError, OSError):
        pass
    from . import ext

    sys.modules[NAME] = ext
    mmcv._ext = ext


def name_provider() -> str:
    """Return what computes the operators of `mmcv.ops`, in one line."""
    module = sys.modules.get(NAME)
    if module is None:
        return (
            f'none: {STAND_INS_SWITCH}=0 is set'
            if os.environ.get(STAND_INS_SWITCH) == '0'
            else 'none: this mmcv has no mmcv.ops'
        )
    if module.__name__ == NAME:
        return 'compiled'
    condition = '' if '_swin_backbone_mmcv' in sys.modules else ' once swin_backbone is imported'
    return f"swin_backbone's own, in place of mmcv's{condition} (mmcv's: MMCV=compiled make install)"
