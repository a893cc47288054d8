"""An import of this package adds its classes to mmengine, and changes nothing else."""

import builtins
import importlib
import json
import os
import re
import sys

import pytest
from helpers import run_python

from swin_backbone.after_import import call_after_import

SNAPSHOT = """
import importlib.util, json, logging, os, signal, sys, warnings

OUR_ADAPTER = 'swin_backbone.adapters.peft'  # a finder waits for it


def import_others():
    import yaml
    for name in ('mmengine', 'mmcv', 'mmdet.models', 'mmseg.models'):
        if importlib.util.find_spec(name.partition('.')[0]):
            importlib.import_module(name)


def import_ours():
    import swin_backbone
    for name in swin_backbone.__all__:
        getattr(swin_backbone, name)


def name_of(thing):
    return f'{thing.__module__}.{thing.__qualname__}' if hasattr(thing, '__qualname__') else without_address(thing)


def file_of(module):
    return getattr(module, '__file__', None) or without_address(module)


def without_address(thing):
    return repr(thing).partition(' at 0x')[0]


def snapshot():
    '''Return the names of what another package, the process and the environment have, by kind.'''
    import matplotlib, mmengine.logging, torch, yaml
    from mmengine.config import Config
    from mmengine.config.utils import MODULE2PACKAGE
    from mmengine.fileio import backends
    from mmengine.fileio.handlers.registry_utils import file_handlers
    from mmengine.runner import checkpoint

    flags = torch.backends.cuda.cudnn_sdp_enabled(), torch.are_deterministic_algorithms_enabled()
    return dict(
        handlers={name: name_of(type(handler)) for name, handler in file_handlers.items()},
        backends={name: name_of(backend) for name, backend in backends.registry_utils.backends.items()},
        schemes={name: name_of(loader) for name, loader in checkpoint.CheckpointLoader._schemes.items()},
        functions=[*map(name_of, (Config._get_cfg_path, mmengine.logging.print_log, checkpoint.load_from_http,
                                  torch.load, yaml.load, sys.excepthook, warnings.showwarning))],
        yaml=[len(loader.yaml_constructors) for loader in (yaml.SafeLoader, yaml.FullLoader, yaml.UnsafeLoader)],
        prefixes=dict(MODULE2PACKAGE),
        environment=dict(os.environ),
        modules={name: file_of(module) for name, module in sys.modules.items()},
        finders=sorted(name_of(finder) for finder in sys.meta_path if getattr(finder, 'name', '') != OUR_ADAPTER),
        filters=sorted(map(repr, warnings.filters)),
        globals=sorted(map(name_of, torch.serialization.get_safe_globals())),
        settings=repr((torch.get_default_dtype(), torch.get_num_threads(), *flags)),
        backend=dict.get(matplotlib.rcParams, 'backend', '').__class__.__name__,
        signals={number: name_of(signal.getsignal(number)) for number in signal.valid_signals()},
        levels={name: logging.getLogger(name).level for name in ('', *logging.root.manager.loggerDict)},
    )


def in_a_fork(*calls):
    '''Print the snapshot after each call.'''
    process = os.fork()
    if process == 0:
        for call in calls:
            call()
            print(json.dumps(snapshot()), flush=True)
        os._exit(0)
    return os.waitpid(process, 0)[1] == 0


import cv2, matplotlib, torch.distributed.optim, yaml  # once for both: most of the time of an import
sys.exit(not (in_a_fork(import_others, import_ours) and in_a_fork(import_ours, import_others)))
"""


ADD = 'modules', 'levels', 'backends'  # kinds that an import may add to
OPERATORS = 'mmcv._ext'  # of an mmcv that has none


def differences(before, after):
    """Return what differs, by kind. A new module of another package may be none, and no file of this package."""
    changed = {key: (before[key], after[key]) for key in before if key not in ADD and before[key] != after[key]}
    for kind in ADD:
        changed[kind] = [name for name, value in before[kind].items() if after[kind].get(name) != value]
    for name in after['modules'].keys() - before['modules']:
        if not name.startswith('swin_backbone') and re.search('^None$|swin_backbone', after['modules'][name]):
            changed['modules'].append(name)
    changed['modules'] = [name for name in changed['modules'] if name != OPERATORS]
    return {kind: names for kind, names in changed.items() if names}


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='there is no fork')
def test_an_import_changes_nothing_of_others():
    pytest.importorskip('matplotlib')
    process = run_python('-c', SNAPSHOT, status=None)
    found = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('{')]
    if not found and 'torchvision' in process.stderr.splitlines()[-1]:
        pytest.skip('mmdet does not import beside this torchvision, which is built for another torch')
    assert process.returncode == 0, process.stderr
    alone, after, _, before = found
    assert differences(alone, after) == {}
    assert differences(alone, before) == {}


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Write a package that counts its imports, and return the calls after them."""
    (tmp_path / 'other_package').mkdir()
    (tmp_path / 'other_package' / '__init__.py').write_text('from . import part\nnames = [part.__name__]\n')
    (tmp_path / 'other_package' / 'part.py').write_text('if FAILS:\n    raise OSError\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'meta_path', [*sys.meta_path])
    calls = []
    yield calls
    for name in ('other_package', 'other_package.part'):
        sys.modules.pop(name, None)


def test_a_function_runs_once_after_an_import_whenever_that_is(other, monkeypatch):
    finders = [*sys.meta_path]
    call_after_import('other_package', lambda: other.append(sys.modules['other_package'].names))
    assert importlib.util.find_spec('other_package') is not None  # asks alone, and imports nothing
    with pytest.raises(NameError):
        importlib.import_module('other_package')
    assert other == []
    monkeypatch.setattr(builtins, 'FAILS', False, raising=False)
    module = importlib.import_module('other_package')
    assert other == [['other_package.part']]
    assert type(module.__loader__) is type(module.__spec__.loader) is type(importlib.import_module('json').__loader__)
    assert sys.meta_path == finders
    importlib.reload(module)
    assert len(other) == 1
    call_after_import('other_package', lambda: other.append('at once'))
    assert other[1:] == ['at once']


def test_an_error_of_a_function_after_an_import_is_raised(other, monkeypatch):
    def fail():
        raise ValueError('an addition fails')

    monkeypatch.setattr(builtins, 'FAILS', False, raising=False)
    call_after_import('other_package', fail)
    with pytest.raises(ValueError, match='an addition fails'):
        importlib.import_module('other_package')


def test_a_file_of_any_name_imports_the_package(tmp_path):
    """Programs of the names of our commands found no backbones."""
    for name in ('swin-backbone-demo.py', 'tools/train.py'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('from swin_backbone import ARCHS\nprint("tiny" in ARCHS)\n')
        assert run_python(path).stdout == 'True\n'


def test_names_are_imported_at_their_first_use():
    import swin_backbone

    code = 'import swin_backbone, sys; print("torch" in sys.modules, "numpy" in sys.modules)'
    assert run_python('-c', code).stdout == 'False False\n'
    assert set(swin_backbone.__all__) <= set(dir(swin_backbone))
    with pytest.raises(AttributeError, match="module 'swin_backbone' has no attribute 'swin'"):
        swin_backbone.swin  # noqa: B018
