"""Find `mmcv._ext` if mmcv has no compiled operators, also before `swin_backbone` is imported.

`setup.py` installs a copy of this file into site-packages, and a `.pth` file that imports the copy at each start of
Python. Therefore this file imports no module that Python has not loaded, and an operator imports `swin_backbone` at its
first call. All other finders come first: a compiled `mmcv._ext` takes precedence. `SWIN_BACKBONE_STAND_INS=0` switches
the finder off, and an installation with this variable has neither file.
"""

import os
import sys
from typing import Any

NAME = 'mmcv._ext'


class OperatorsFinder:
    """Finder and loader of a module with an operator for each name."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec, or None for all other names."""
        if name != NAME:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(NAME, OperatorsFinder, origin='swin_backbone.openmmlab.mmcv_ops')  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: Any) -> None:
        """Let Python create an empty module."""

    @staticmethod
    def exec_module(module: Any) -> None:
        """Make an operator at the first look at its name."""

        def make_operator(name: str) -> Any:
            if name.startswith('_'):
                raise AttributeError(name)

            def operator(*args: Any, **kwargs: Any) -> Any:
                from swin_backbone.openmmlab.mmcv_ops import ext

                return getattr(ext, name)(*args, **kwargs)

            operator.__name__ = name
            setattr(module, name, operator)
            return operator

        module.__getattr__ = make_operator


if os.environ.get('SWIN_BACKBONE_STAND_INS') != '0':
    sys.meta_path.append(OperatorsFinder)
