"""Run the tools in the test process. A new import of the toolboxes takes seconds."""

import contextlib
import copy
import io
import os
import runpy
import sys
import sysconfig
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.dataset import base_dataset
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope
from mmengine.utils import ManagerMixin
from torch.utils.data import _utils
from yapf.yapflib import yapf_api

from helpers import ROOT
from swin_backbone.openmmlab.swap import backbone
from swin_backbone.workbench.runner.hooks.curves import CurvesHook

# What takes most of a small training's time, and changes no result
yapf_api.FormatCode = lambda text, style_config, verify=True: (text, True)  # mmengine's layout of a config
base_dataset.gc = SimpleNamespace(collect=int)  # mmengine's garbage collection for each data set
_utils.MP_STATUS_CHECK_INTERVAL = 0.5  # seconds for the end of a collected loader's worker; torch waits 5
draw_curves, CurvesHook._draw = CurvesHook._draw, lambda hook, runner: None  # curves.png
find_levels, found_levels = backbone.find_backbone_maps, {}  # of the old backbone, a second for each swap


def find_levels_once(*backbone, **more):
    case = repr((DefaultScope.get_current_instance().scope_name, backbone, more))
    if case not in found_levels:
        found_levels[case] = find_levels(*backbone, **more)
    return found_levels[case]


backbone.find_backbone_maps = find_levels_once


parse_file, parsed_files = Config._file2dict, {}
FIXED_FOLDERS = (str(ROOT / 'configs'), str(ROOT / 'swin_backbone'), sysconfig.get_paths()['purelib'])


def parse_file_once(filename, *options, **named):
    """Return a copy of what mmengine parses, for a config of the package or of a toolbox, as a base too."""
    filename = os.path.abspath(filename)
    if not filename.startswith(FIXED_FOLDERS):
        return parse_file(filename, *options, **named)
    key = filename, options, *named.items()
    if key not in parsed_files:
        parsed_files[key] = parse_file(filename, *options, **named)
    return copy.deepcopy(parsed_files[key])


Config._file2dict = staticmethod(parse_file_once)


def forget_instances(cls=ManagerMixin):
    """Forget the instances of a Runner. mmengine keeps scopes, visualizers and message hubs by name.

    A hook takes the newest visualizer. Loggers stay until the next tool: a new logger would print to the captured
    stdout of a test.
    """
    for child in cls.__subclasses__():
        if child is not MMLogger:
            child._instance_dict.clear()
            forget_instances(child)


def run(tool, *arguments):
    """Return exit code and output of `python TOOL ARGUMENTS`. A tool without a slash is a module."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = 0
    MMLogger._instance_dict.clear()  # a Runner of the same second has the same name, and prints to an earlier stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', [tool, *map(str, arguments)])
        patch.syspath_prepend(ROOT / 'tools')
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                if '/' in tool:
                    runpy.run_path(str(ROOT / tool), run_name='__main__')
                else:
                    runpy.run_module(tool, run_name='__main__')
        except SystemExit as stop:
            code = stop.code or 0
            if isinstance(code, str):
                stderr.write(code)
                code = 1
        finally:
            forget_instances()
    return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def run_well(tool, *arguments):
    """Run a tool that succeeds."""
    result = run(tool, *arguments)
    assert result.returncode == 0, result.stderr[-2000:]
    return result


def error_of(tool, *arguments, status=1):
    """Return the last line of stderr of a tool that fails without a traceback."""
    result = run(tool, *arguments)
    assert result.returncode == status, result.stderr[-2000:]
    assert 'Traceback' not in result.stderr
    return result.stderr.strip().splitlines()[-1]
