"""Running the tools in this process: to import the toolboxes takes seconds."""

import contextlib
import io
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

from mmengine.registry import DefaultScope

ROOT = Path(__file__).parents[2]


def run(tool, *arguments):
    """What `python TOOL ARGUMENTS` ends with and prints."""
    stdout, stderr = io.StringIO(), io.StringIO()
    before = sys.argv, sys.path[:]
    sys.argv = [tool, *map(str, arguments)]
    sys.path.insert(0, str(ROOT / 'tools'))
    code = 0
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            runpy.run_path(str(ROOT / tool), run_name='__main__')
    except SystemExit as stop:
        code = stop.code or 0
        if isinstance(code, str):
            stderr.write(code)
            code = 1
    finally:
        sys.argv, sys.path[:] = before
        DefaultScope._instance_dict.clear()
    return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())
