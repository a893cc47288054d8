"""`load` and its model: train, test, predict and export from Python, with late imports."""

import numpy as np
import pytest
import torch
from helpers import ROOT
from helpers.in_process import run_well
from helpers.openmmlab import layouts
from helpers.openmmlab.jobs import SMALL_RETINANET

from swin_backbone import load, swap_backbone
from swin_backbone.workbench.export import export
from swin_backbone.workbench.model import _iter_frames
from swin_backbone.workbench.pictures.curves import read_log

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
SMALL = {
    **SMALL_RETINANET,
    'model.backbone.init_cfg': None,
    'model.test_cfg.score_thr': 0.0,
    **{f'{phase}_dataloader.num_workers': 0 for phase in ('train', 'val', 'test')},
    **{f'{phase}_dataloader.persistent_workers': False for phase in ('train', 'val', 'test')},
}


def test_from_a_name_to_predictions(tmp_path):
    root = layouts.made('yolo', tmp_path)
    model = load(RETINANET, backbone='swin-nano', data=root, work_dir=tmp_path / 'work', options=SMALL)
    with pytest.raises(ValueError, match='to predict, a model needs a checkpoint'):
        model.predict(np.zeros((64, 64, 3), np.uint8))
    assert model.train(epochs=1, batch=2, img_scale=(64, 64), val_loss=True) is model
    assert read_log(tmp_path / 'work').losses['val_loss']
    assert model.checkpoint.endswith('epoch_1.pth')
    picture = np.full((50, 70, 3), 90, np.uint8)
    one, *more = model.predict([root / 'images' / 'val', picture])
    assert len(more) == 2
    assert one.path.endswith('val_0.jpg')
    assert one.classes == ('nut', 'bolt')
    assert len(one.sample.pred_instances)
    assert more[1].path is None
    assert more[1].drawn.shape == picture.shape
    assert torch.from_numpy(more[1].drawn).is_contiguous()
    again = load(RETINANET, model.checkpoint, backbone='swin-nano', data=root, work_dir=tmp_path / 'work2',
                 options={**SMALL, 'test_dataloader.dataset.pipeline.1.scale': (64, 64)})  # fmt: skip
    metrics = again.test()
    assert 'coco/bbox_mAP' in metrics
    assert model.test() == metrics  # on pictures of the training size
    (saved,) = (tmp_path / 'work').glob('*.py')
    root.rename(tmp_path / 'elsewhere')
    moved = load(saved, model.checkpoint)  # as on another machine, without the data
    boxes = [found.predict(picture)[0].sample.pred_instances.bboxes for found in (model, again, moved)]
    assert (boxes[0] == boxes[1]).all()
    assert (boxes[0] == boxes[2]).all()
    with pytest.raises(ValueError, match=r'there is no .*, where test_dataloader\.dataset\.'):
        moved.test()


@pytest.mark.parametrize('shape', [(0, 5, 3), (5, 5), (5, 5, 4)])
def test_wrong_pictures(shape):
    with pytest.raises(TypeError, match='pictures takes paths, or pixels'):
        _iter_frames(np.zeros(shape, np.uint8), None)


def test_export_takes_config_checkpoint_and_options(tmp_path, monkeypatch):
    monkeypatch.setattr(export, 'export_model', lambda *arguments, **options: (arguments, options))
    model = load(ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py', work_dir=tmp_path)
    assert isinstance(model.module, torch.nn.Module)
    with pytest.raises(ValueError, match='to export, a model needs a checkpoint'):
        model.export(tmp_path)
    model.checkpoint = 'https://x/a.pth'
    (cfg, *given), options = model.export(tmp_path, part='neck')
    assert (cfg.model, *given) == (model.cfg.model, 'https://x/a.pth', tmp_path, 'onnx')
    assert options == dict(part='neck', unsafe_load=False)
    for name in ('amp', 'allow_missing'):
        loaded = load(ROOT / 'configs/demo/swin-nano_upernet_shapes.py', 'a.pth', work_dir=tmp_path, **{name: 'auto'})
        with pytest.raises(ValueError, match=f'--{name.replace("_", "-")} .*an export takes a model loaded without it'):
            loaded.export(tmp_path)


def test_wrong_names_are_named():
    with pytest.raises(ValueError, match='there is no config'):
        load('mmdet::retinanet/retinanet_r50')
    with pytest.raises(ValueError, match=r'nowhere\.pth'):
        load(RETINANET, 'nowhere.pth').predict(np.zeros((64, 64, 3), np.uint8))


def test_swap_backbone_takes_a_name():
    assert swap_backbone(RETINANET, 'swin-nano', verbose=False).model.backbone.type == 'SwinBackbone'


def test_a_command_is_the_tool_with_the_same_help():
    """The lines of usage have different program names."""
    printed = [run_well(*line, '--help').stdout for line in (('swin_backbone', 'train'), ('tools/train.py',))]
    assert len({text.partition('\n\n')[2] for text in printed}) == 1
    assert printed[0].startswith('usage: python -m swin_backbone train')
