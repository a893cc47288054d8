"""Train, export and run the recipes of docs/guides/more_bands.md on generated TIFFs."""

import copy
import json
import multiprocessing

import cv2
import numpy as np
import pytest
import torch
from helpers import ROOT

pytest.importorskip('tifffile', reason='tifffile is not installed')

import tifffile
from helpers.export.small_exports import WIDTHS, randomise, require
from helpers.openmmlab.jobs import build_runner, open_predictor
from helpers.openmmlab.random_models import SEGMENTATION, save_random_model

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.workbench.data.media import find_media, read_frames
from swin_backbone.workbench.export import export, predictor, runtime
from swin_backbone.workbench.export.picture import find_load_settings, load_bands
from swin_backbone.workbench.process import prepare_process

PAGE = ROOT / 'docs/guides/more_bands.md'
BANDS, SIZE = 10, (64, 96)
TWO_MAPS = dict(in_channels=WIDTHS[:2], in_index=[0, 1], channels=32, pool_scales=(1, 2))  # of a UPerNet
SHAPE = 128, 192  # a file of free sizes takes several times as long


def write_folder(root):
    """Write pictures with a box. Classes are levels of the last band."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 2), ('val', 1)):
        annotations = []
        for index in range(count):
            labels = np.full(SIZE, index % 3, np.uint8)
            labels[16:48, 32:64] = 2
            pixels = rng.integers(0, 2000, (*SIZE, BANDS)).astype(np.uint16)
            pixels[..., -1] += labels.astype(np.uint16) * 3000
            for folder in ('images', 'labels'):
                (root / folder / split).mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(
                root / 'images' / split / f'{index}.tif', pixels, photometric='minisblack', planarconfig='contig'
            )
            cv2.imwrite(str(root / 'labels' / split / f'{index}.png'), labels)
            box = dict(id=index + 1, image_id=index + 1, category_id=1, bbox=[32, 16, 32, 32], area=1024, iscrowd=0)
            annotations.append(box)
        images = [dict(id=i + 1, file_name=f'{i}.tif', height=SIZE[0], width=SIZE[1]) for i in range(count)]
        categories = [dict(id=1, name='ship'), dict(id=2, name='tank')]
        content = dict(images=images, annotations=annotations, categories=categories)
        (root / f'{split}.json').write_text(json.dumps(content))


def config_of_page(name, root):
    """Return a config of the page with a small model."""
    page = PAGE.read_text(encoding='utf-8')
    code = page[page.index(f'`{name}`') :].split('```python\n')[1].split('```')[0]
    path = root / name
    path.write_text(code.replace('data/bands', str(root)).replace('(1333, 800)', '(320, 256)'))
    prepare_process()  # the page's config has the prefix of a command
    cfg = read_config(str(path))
    cfg.model.backbone = dict(type='mmengine.Strided', in_channels=cfg.model.backbone.in_channels)
    if 'neck' in cfg.model:
        cfg.model.neck.in_channels = WIDTHS
        cfg.model.bbox_head.stacked_convs = 1
    else:
        cfg.model.decode_head.update(TWO_MAPS)
        cfg.model.auxiliary_head.update(in_channels=WIDTHS[1], in_index=1, channels=32)
    return cfg


def train(cfg, root):
    """Train for one step. Random weights give an export results to compare."""
    cfg.update(work_dir=str(root / 'work'), launcher='none', visualizer=None)
    cfg.update(val_dataloader=None, val_cfg=None, val_evaluator=None, param_scheduler=[])
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=1)
    cfg.train_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    cfg.default_hooks = dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1))
    runner = build_runner(copy.deepcopy(cfg))
    runner.train()
    torch.manual_seed(0)  # the runner's seed is random
    randomise(runner.model)
    runner.save_checkpoint(str(root), 'model.pth')
    return root / 'model.pth'


@pytest.mark.parametrize('name', ['bands_seg.py', pytest.param('bands_det.py', marks=pytest.mark.slow)])
def test_a_recipe(name, tmp_path):
    require('onnx')
    write_folder(tmp_path)
    cfg = config_of_page(name, tmp_path)
    test_settings = {key: cfg[key] for key in ('test_dataloader', 'test_evaluator', 'test_cfg')}
    checkpoint = train(cfg, tmp_path)
    out = tmp_path / 'out'
    of_free_sizes = export.build_graph(open_predictor(cfg, str(checkpoint)).model, cfg, 'model', None)
    assert tuple(of_free_sizes.inputs[0].shape) == ('batch', 'height', 'width', BANDS)
    manifest = export.export_model(cfg, str(checkpoint), out, shape=SHAPE)
    assert manifest['inputs'][0]['dtype'] == 'float32'
    assert manifest['inputs'][0]['shape'] == [1, *SHAPE, BANDS]
    model = runtime.load(out)
    path = str(tmp_path / 'images/val/0.tif')
    pixels = tifffile.imread(path)
    (result,) = model.predict([pixels])
    (other,) = model.predict([runtime.read_pixels(path, BANDS).astype(np.float32)])
    assert np.array_equal(result['labels'], other['labels'])
    assert result['labels'].size
    assert runtime.main(str(out), path) == 0
    changed = pixels.copy()
    changed[..., -1] = 0  # the last band counts
    (without,) = model.predict([changed])
    assert not np.array_equal(result.get('scores', result['labels']), without.get('scores', without['labels']))
    cfg.update(test_settings)
    assert predictor.evaluate_folder(cfg, out)
    for shown_by in (open_predictor(cfg, str(checkpoint)), open_predictor(cfg, str(out), None)):
        check_drawn(shown_by, path)
    assert not multiprocessing.active_children()


def check_drawn(predictor, path):
    """Predict on a TIFF, and draw the results."""
    (frame,) = read_frames(find_media([path])[0], read_pixels=predictor.read_pixels)
    assert np.array_equal(frame.pixels, tifffile.imread(path))
    (sample,) = predictor.predict([predictor.preprocess(frame)])
    assert predictor.draw(frame, sample, 0.3).shape == (*SIZE, 3)


def test_the_recipe_of_a_detector_trains_and_predicts(tmp_path):
    write_folder(tmp_path)
    cfg = config_of_page('bands_det.py', tmp_path)
    predictor = open_predictor(cfg, str(train(cfg, tmp_path)))
    assert predictor.model.backbone.in_channels == BANDS
    check_drawn(predictor, str(tmp_path / 'images/val/0.tif'))


def test_a_picture_of_other_bands_is_refused(tmp_path):
    path = tmp_path / 'x.tif'
    tifffile.imwrite(path, np.zeros((4, 5, 7), np.uint16), photometric='minisblack', planarconfig='contig')
    with pytest.raises(runtime.RuntimeProblem, match=r'it has the shape \(4, 5, 7\), and the model takes \(h, w, 10\)'):
        runtime.read_pixels(str(path), BANDS)


def test_a_model_of_grey_pictures(tmp_path):
    """A picture of one band was no input of the test pipeline, and no picture verified the export."""
    require('onnx')
    cfg = read_config(SEGMENTATION)
    cfg.model.backbone = dict(type='mmengine.Strided', in_channels=1)
    cfg.model.decode_head.update(TWO_MAPS)
    cfg.model.auxiliary_head = None
    cfg.model.data_preprocessor.update(mean=[100.0], std=[50.0], bgr_to_rgb=False)
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'grayscale'
    checkpoint, path = save_random_model(cfg, tmp_path, randomise), tmp_path / 'a.png'
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8))
    pixels = load_bands(str(path), find_load_settings(cfg.test_dataloader.dataset.pipeline))
    manifest = export.export_model(cfg, str(checkpoint), tmp_path / 'out', shape=(48, 64), pictures=[pixels])
    assert [figure['name'] for figure in manifest['verification']] == ['picture 1 of --pictures']
    maps = []
    for source in (open_predictor(cfg, str(checkpoint)), open_predictor(cfg, str(tmp_path / 'out'), None)):
        (frame,) = read_frames(find_media([str(path)])[0], read_pixels=source.read_pixels)
        assert np.array_equal(frame.pixels, cv2.imread(str(path), cv2.IMREAD_GRAYSCALE))
        (sample,) = source.predict([source.preprocess(frame)])
        maps.append(sample.pred_sem_seg.data)
    assert (maps[0] == maps[1]).float().mean() > 0.99
    assert runtime.main(str(tmp_path / 'out'), str(path)) == 0
