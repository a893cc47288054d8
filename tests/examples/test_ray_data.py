"""examples/ray_data.py on one machine: inputs, outputs, and a killed actor."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from helpers import ROOT, run_python

pytestmark = [pytest.mark.ray, pytest.mark.train]
pytest.importorskip('ray', reason='Ray is not installed: make test ENV=ray')
parquet = pytest.importorskip('pyarrow.parquet', reason='pyarrow is not installed: make test ENV=ray')

LIMIT_S = 300
PICTURES = 24

# Only actors read the config. An actor writes its process id and number of pictures, and sleeps.
WATCHED = """
import os, time
from pathlib import Path
from swin_backbone.workbench.predict import predictor as predict
seen = Path({folder!r}, str(os.getpid()))
seen.touch()
own = predict.Predictor.predict
def predict_slowly(*args):
    time.sleep({seconds})
    found = own(*args)
    seen.write_text(seen.read_text() + 'x')
    return found
predict.Predictor.predict = predict_slowly
"""


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """Folder with pictures, a broken picture, a config and weights."""
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope

    import swin_backbone  # noqa: F401  registers the backbone

    folder = tmp_path_factory.mktemp('ray')
    run_python('tools/make_shapes_dataset.py', folder / 'shapes', '--train', 1, '--val', PICTURES, '--shape', 64)
    (folder / 'shapes' / 'images' / 'val' / '000003.png').write_bytes(b'no picture')
    base = str(ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py')
    (folder / 'config.py').write_text(
        f'_base_ = {base!r}\nmodel = dict(backbone=dict(depths=[1, 1, 1, 1]))\n'
        "custom_imports = dict(imports=['watched'])\n"
    )
    (folder / 'seen').mkdir()
    write_watched(folder, 0)
    cfg = Config.fromfile(folder / 'config.py', import_custom_modules=False)
    init_default_scope('mmseg')
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict(), 'meta': {}}, folder / 'a.pth')
    return folder


def write_watched(folder, seconds):
    (folder / 'watched.py').write_text(WATCHED.format(folder=str(folder / 'seen'), seconds=seconds))
    for path in (folder / 'seen').iterdir():
        path.unlink()


def start(model, source, out, *options):
    words = [sys.executable, 'examples/ray_data.py', source, model / 'config.py', model / 'a.pth', out, *options]
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': f'{ROOT}{os.pathsep}{model}'}
    return subprocess.Popen(
        [str(word) for word in words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def rows(out):
    return sorted(parquet.read_table(out).to_pylist(), key=lambda row: row['path'])


def test_an_actor_that_is_killed_loses_and_doubles_no_picture(model, tmp_path, record_fault):
    write_watched(model, 0.2)
    pictures = model / 'shapes' / 'images' / 'val'
    process = start(model, pictures, tmp_path / 'out', '--actors', 2, '--batch', 4)
    deadline = time.monotonic() + LIMIT_S
    while True:  # wait for both actors
        actors = [path for path in (model / 'seen').iterdir() if path.read_text()]
        if len(actors) == 2:
            break
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(int(actors[0].name), signal.SIGKILL)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert len(list((model / 'seen').iterdir())) > 2
    table = rows(tmp_path / 'out')
    assert [row['path'] for row in table] == [str(path) for path in sorted(pictures.iterdir())]
    (error,) = [row['error'] for row in table if row['error']]
    assert error.endswith('cannot be read as a picture')
    assert [row['path'] for row in table if not row['labels']] == [str(pictures / '000003.png')]
    assert not (tmp_path / 'out.partial').exists()
    record_fault('kills')


@pytest.mark.slow
def test_parquet_and_webdataset_equal_the_folder(model, tmp_path):
    import pyarrow as pa

    write_watched(model, 0)
    pictures = sorted((model / 'shapes' / 'images' / 'val').iterdir())[:6]
    parquet.write_table(
        pa.table(dict(path=[str(path) for path in [*pictures, tmp_path / 'gone.png']])), tmp_path / 'a.parquet'
    )
    with tarfile.open(tmp_path / 'a-0.tar', 'w') as tar:
        for path in pictures:
            info = tarfile.TarInfo(path.name)
            info.size = path.stat().st_size
            tar.addfile(info, io.BytesIO(path.read_bytes()))
    for source, out in (('a.parquet', 'paths'), ('a-*.tar', 'tar')):
        process = start(model, tmp_path / source, tmp_path / out)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
    of_paths, of_tar = rows(tmp_path / 'paths'), rows(tmp_path / 'tar')
    gone = [row for row in of_paths if 'gone.png' in row['path']]
    assert 'No such file' in gone[0]['error']
    of_paths.remove(gone[0])
    assert [Path(row['path']).stem for row in of_paths] == [Path(row['path']).stem for row in of_tar]
    assert [row['labels'] for row in of_paths] == [row['labels'] for row in of_tar]


@pytest.mark.parametrize(('source', 'message'), [('empty', 'has no pictures'), ('none-*.tar', 'is no WebDataset')])
@pytest.mark.slow
def test_nothing_to_read_is_a_sentence(model, tmp_path, source, message):
    (tmp_path / 'empty').mkdir()
    process = start(model, tmp_path / source, tmp_path / 'out')
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert message in output.splitlines()[-1]
    assert 'Traceback' not in output
