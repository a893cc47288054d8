"""Settings of the process that a function changes for a moment: two threads, and an error in the middle."""

import contextlib
import logging
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from swin_backbone.checkpoints import read_checkpoint, trust_checkpoints
from swin_backbone.checkpoints.reading import are_checkpoints_trusted
from swin_backbone.compat import preserve_torch_rng, without_cudnn_attention
from swin_backbone.openmmlab.mixed_precision import MixedPrecisionHook
from swin_backbone.silence import silent
from swin_backbone.workbench.data.media import read_picture
from swin_backbone.workbench.data.seeds import preserve_rng_state, seed_rng
from swin_backbone.workbench.export.formats import quiet
from swin_backbone.workbench.runner.safe_runner import SafeRunner
from swin_backbone.workbench.weights import loading


@contextlib.contextmanager
def seeded():
    with preserve_rng_state():
        seed_rng(threading.get_ident())
        yield


@contextlib.contextmanager
def seeded_torch():
    with preserve_torch_rng():
        torch.manual_seed(threading.get_ident())
        yield


def state_of_generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


SETTINGS = {
    seeded: state_of_generators,
    seeded_torch: state_of_generators,
    quiet: lambda: (logging.root.manager.disable, len(warnings.filters)),
    silent: lambda: (sys.stdout, sys.stderr),
    without_cudnn_attention: torch.backends.cuda.cudnn_sdp_enabled,
}


@pytest.mark.parametrize('change', SETTINGS)
@pytest.mark.parametrize('fails', [False, True])
def test_two_threads_leave_the_setting_as_it_was(change, fails):
    """The second thread begins before the first one ends, and ends after it: it gave back the first one's setting."""
    before, first, seen = SETTINGS[change](), threading.Event(), []

    def work(begin, end):
        begin.wait(5)
        with contextlib.suppress(ZeroDivisionError), change():
            first.set()
            seen.append(SETTINGS[change]())
            end.wait(0.3)
            seen.append(SETTINGS[change]())
            if fails:
                1 / 0  # noqa: B018

    done, never = threading.Event(), threading.Event()
    done.set()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (done, first), (never, never)))
    assert SETTINGS[change]() == before
    assert all(value != before for value in seen)


def test_a_loader_reads_safely_while_another_thread_loads_by_torch(tmp_path):
    original, inside = torch.load, threading.Event()
    torch.save(dict(state_dict={}), tmp_path / 'a.pth')

    @loading._make_safe
    def load(path, fails):
        inside.set()
        checkpoint = torch.load(path)
        done.wait(5)
        if fails:
            raise OSError('half a file')
        return checkpoint

    def load_by_torch():
        inside.wait(5)
        checkpoint = torch.load(tmp_path / 'a.pth', weights_only=True, map_location='meta')
        done.set()
        return checkpoint

    for fails in (False, True):
        done = threading.Event()
        inside.clear()
        with ThreadPoolExecutor() as threads:
            loaded = threads.submit(load_by_torch)
            with pytest.raises(OSError, match='half a file') if fails else contextlib.nullcontext():
                assert load(tmp_path / 'a.pth', fails) == dict(state_dict={})
            assert loaded.result() == dict(state_dict={})
        assert torch.load is original


def test_trust_in_checkpoints_is_of_a_thread(tmp_path):
    torch.save(dict(code=threading.Event), path := tmp_path / 'a.pth')
    trust_checkpoints(True)
    try:
        with ThreadPoolExecutor() as threads:
            assert not threads.submit(are_checkpoints_trusted).result()
        assert are_checkpoints_trusted()
        assert read_checkpoint(path) == dict(code=threading.Event)
    finally:
        trust_checkpoints(False)


def test_a_tiff_is_read_without_a_change_of_the_filters(tmp_path, monkeypatch):
    """Filters of warnings are those of all threads: one that began and ended inside another one left its own."""
    pytest.importorskip('rasterio', reason='rasterio is not installed')
    Image.new('RGB', (8, 6)).save(path := tmp_path / 'a.tif')
    monkeypatch.setattr(warnings, 'catch_warnings', lambda: pytest.fail('changes the filters'))
    with pytest.warns(UserWarning, match='has no geotransform'):  # hidden by `prepare_process`
        assert read_picture(path).shape == (6, 8, 3)


def test_an_error_in_a_test_ends_mixed_precision(monkeypatch):
    """Autocast stayed on in the process."""
    hook, runner = MixedPrecisionHook('bfloat16'), object.__new__(SafeRunner)
    runner.model, runner._hooks = torch.nn.Linear(2, 2), [hook]

    def fail(runner):
        hook.before_test_epoch(runner)
        assert torch.is_autocast_enabled('cpu')
        raise OSError('a picture cannot be read')

    monkeypatch.setattr(SafeRunner.__mro__[1], 'test', fail)
    with pytest.raises(OSError, match='cannot be read'):
        runner.test()
    assert not torch.is_autocast_enabled('cpu')
