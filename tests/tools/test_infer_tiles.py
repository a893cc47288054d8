"""tools/infer_tiles.py, with a user's command lines."""

import json
import re

import cv2
import pytest
from helpers.in_process import error_of, run_well
from helpers.openmmlab.oracles import noise
from helpers.openmmlab.random_models import DETECTION, SEGMENTATION, save_random_model
from mmengine.config import Config

pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')

import tifffile

TILES = ('--tile', 128, '--overlap', 32)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A random detector and segmentor, and a picture of six tiles."""
    folder = tmp_path_factory.mktemp('files')
    for path in (DETECTION, SEGMENTATION):
        save_random_model(path, folder)
    cv2.imwrite(str(folder / 'a.png'), noise((200, 300)))
    return folder


def command(files, config, out, *arguments):
    model = (config, '--weights', files / f'{config.stem}.pth') if config.suffix == '.py' else (config,)
    return 'tools/infer_tiles.py', files / 'a.png', *model, *TILES, '--out-dir', out, *arguments


def test_a_segmentor_in_shards_and_in_one_run(tmp_path, files):
    whole = run_well(*command(files, SEGMENTATION, tmp_path / 'whole'))
    assert '6 of 6 tiles of a picture of 300x200 pixels' in whole.stdout
    assert '0 blank ones skipped; see' in whole.stdout
    assert re.search(r'tiles 6/6, [\d.]+ tiles/s, [\d.]+ Mpx/s, [\d:]+ left', whole.stderr)
    assert 'no multiple of 224' in whole.stderr
    for arguments in (('--shard', '1/2'), ('--shard', '0/2'), ('--merge',)):
        run_well(*command(files, SEGMENTATION, tmp_path / 'parts', *arguments))
    one, two = ((tmp_path / name / 'labels' / 'a.tif').read_bytes() for name in ('whole', 'parts'))
    assert one == two
    assert tifffile.imread(tmp_path / 'whole' / 'labels' / 'a.tif').shape == (200, 300)
    error = error_of(*command(files, SEGMENTATION, tmp_path / 'whole', '--resume', '--skip-blank'))
    assert 'was begun with skip_blank None, not 0' in error


def test_masks_of_a_detector_have_the_size_of_the_picture(tmp_path, files):
    run_well(*command(files, DETECTION, tmp_path, '--score-thr', 0.01))
    lines = (tmp_path / 'objects' / 'a.jsonl').read_text().splitlines()
    assert lines
    assert all(json.loads(line)['segmentation']['size'] == [200, 300] for line in lines)


@pytest.mark.slow
def test_an_exported_segmentor_gives_the_checkpoints_labels(tmp_path, files):
    pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
    pytest.importorskip('onnxscript', reason='onnxscript is not installed')
    from swin_backbone.workbench.export.export import export_model

    export_model(Config.fromfile(SEGMENTATION), str(files / f'{SEGMENTATION.stem}.pth'), tmp_path / 'DIR')
    assert json.loads((tmp_path / 'DIR' / 'deploy.json').read_text())['period'] == 224
    for name, model in (('checkpoint', SEGMENTATION), ('exported', tmp_path / 'DIR')):
        run_well(*command(files, model, tmp_path / name))
    one, two = (tifffile.imread(tmp_path / name / 'labels' / 'a.tif') for name in ('checkpoint', 'exported'))
    assert (one == two).mean() > 0.999
    for name, *more in ('exported',), ('checkpoint', '--precision=int8'):
        error = error_of(*command(files, SEGMENTATION, tmp_path / name, '--resume', *more))
        assert 'was begun with another model' in error


@pytest.mark.parametrize(
    ('arguments', 'status', 'words'),
    [
        (['--shard', '2/2'], 2, 'I from 0 to N - 1'),
        (['--overlap', '128'], 1, 'overlap takes 0 to half a tile'),
        (['--level', '3'], 1, 'level takes 0 to 0'),
        (['--merge'], 1, 'has 0 of 6 tiles'),
        (['--merge', '--resume'], 2, '--merge takes neither --shard nor --resume'),
        (['--merge', '--shard', '0/2'], 2, '--merge takes neither --shard nor --resume'),
    ],
)
def test_bad_commands(record_fault, tmp_path, files, arguments, status, words):
    assert words in error_of(*command(files, SEGMENTATION, tmp_path, *arguments), status=status)
    record_fault('bad_commands')
