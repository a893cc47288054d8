"""`Prediction`: a picture's prediction as numpy arrays, and the features of `load`'s model."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers import edited_json
from helpers.export.small_exports import randomise
from helpers.openmmlab.oracles import noise
from helpers.openmmlab.random_models import DETECTION, SEGMENTATION, save_random_model
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from swin_backbone import load
from swin_backbone.workbench.data.media import Frame, Medium
from swin_backbone.workbench.predict.explain import _find_pixels
from swin_backbone.workbench.predict.prediction import Prediction
from swin_backbone.workbench.predict.predictor import Predictor


@pytest.fixture(scope='module', params=[DETECTION, SEGMENTATION], ids=['detector', 'segmentor'])
def model(request, tmp_path_factory):
    """A model with random weights."""
    return load(request.param, save_random_model(request.param, tmp_path_factory.mktemp('model'), randomise))


def prediction_of(sample, classes=('nut', 'bolt'), thr=0.5):
    frame = Frame(Medium(None, 'a', False), 0, np.zeros((2, 3, 3), np.uint8), (2, 3))
    return Prediction(
        'a.png', BaseDataElement(**sample), frame, SimpleNamespace(scope='mmpretrain', meta=dict(classes=classes)), thr
    )


def test_the_arrays_are_those_of_the_sample(model, monkeypatch):
    def drawn(self, frame, sample, score_thr):
        draws.append(score_thr)
        return frame.pixels.copy()

    draws = []
    monkeypatch.setattr(Predictor, 'draw', drawn)
    pixels = noise((64, 96), 1)
    picture = pixels.copy()
    (everything,) = model.predict(picture, score_thr=0.0)
    thr = float(np.median(everything.scores)) if len(everything.scores) else 0.3
    (p,) = model.predict(picture, score_thr=thr)
    picture[:] = 0  # a camera reuses its array
    assert not draws
    assert (p.drawn == pixels).all()
    assert p.drawn is p.drawn
    p.draw(score_thr=0.9)
    assert draws == [thr, 0.9]
    assert p.boxes.shape == (len(p.names), 4)
    assert [p.classes[label] for label in p.labels] == p.names
    assert '\n' not in repr(p)
    if p.label_map is not None:
        assert (p.label_map == p.sample.pred_sem_seg.data[0].numpy()).all()
        assert p.masks is None
        assert not len(p.scores)
        assert '%' in repr(p)
        return
    instances = p.sample.pred_instances
    kept = instances.scores >= thr
    assert 0 < len(p.scores) == kept.sum() < len(kept)
    assert (np.diff(p.scores) <= 0).all()
    assert sorted(map(tuple, p.boxes)) == sorted(map(tuple, instances.bboxes[kept].numpy()))
    assert p.masks.shape == (len(p.scores), 64, 96)
    assert p.masks.dtype == bool
    assert repr(p).startswith(f'Prediction(pixels; 96x64; {len(p.scores)} objects: ')


def test_pictures_are_read_one_after_the_other(model, tmp_path, monkeypatch):
    """All were read before the first prediction, and stayed in memory. A wrong one is named before any is read."""
    calls, pixels = [], noise((64, 96), 1)
    load_file, predict = Predictor.read_pixels, Predictor.predict
    for name in ('a', 'b'):
        cv2.imwrite(str(tmp_path / f'{name}.png'), pixels[..., ::-1])
    monkeypatch.setattr(Predictor, 'draw', lambda self, frame, *_: frame.pixels)
    monkeypatch.setattr(Predictor, 'read_pixels', lambda self, path: calls.append(path.name) or load_file(self, path))
    monkeypatch.setattr(Predictor, 'predict', lambda self, given: calls.append(len(given)) or predict(self, given))
    with pytest.raises(TypeError, match='pictures takes paths, or pixels'):
        model.predict([tmp_path, np.zeros(3)])
    assert not calls
    first, _ = model.predict(tmp_path)
    assert calls == ['a.png', 1, 'b.png', 1]
    assert not any(hasattr(value, 'pixels') for value in vars(first).values())
    assert (first.drawn == pixels).all()
    assert calls[4:] == ['a.png']


@pytest.mark.parametrize(
    ('sample', 'words'),
    [
        (dict(pred_score=torch.tensor([0.25, 0.75])), 'bolt 0.75'),
        (dict(pred_instances=InstanceData(scores=torch.rand(0), labels=torch.zeros(0).long())), '0 objects'),
        (
            dict(pred_panoptic_seg=PixelData(sem_seg=torch.tensor([[[0, 1000, 2], [1, 1, 2000]]]))),
            'nut 50%, bolt 33%, background 17%',
        ),
    ],
)
def test_models_of_other_kinds(sample, words):
    p = prediction_of(sample)
    assert repr(p) == f'Prediction(a.png; 3x2; {words})'
    assert p.boxes.shape == (0, 4)
    assert sum(one['area'] for one in p.segments) == (5 if 'pred_panoptic_seg' in sample else 0)
    if 'pred_score' in sample:
        assert (p.names, p.scores.tolist()) == (['bolt', 'nut'], [0.75, 0.25])


def test_a_second_model_leaves_the_colours_of_the_first(tmp_path):
    """A model drew with the classes and colours of the model of its toolbox that was opened last."""
    first, second = save_random_model(SEGMENTATION, tmp_path, randomise), tmp_path / 'second.pth'
    loaded = torch.load(first)
    loaded['meta']['dataset_meta']['palette'].reverse()
    torch.save(loaded, second)
    (prediction,) = load(SEGMENTATION, first).predict(noise((64, 96), 1))
    before = prediction.draw()
    (other,) = load(SEGMENTATION, second).predict(noise((64, 96), 1))
    assert (other.draw() != before).any()
    assert (prediction.draw() == before).all()


def test_features_are_the_outputs_of_the_backbone(model):
    picture = noise((64, 96), 2)
    seen = []
    hook = model.module.backbone.register_forward_hook(lambda module, inputs, maps: seen.append(maps))
    try:
        maps = model.features(picture)
        model.predict(picture)
    finally:
        hook.remove()
    assert not model.module.training
    assert len(maps) == 4
    for map_CHW, first, second in zip(maps, *seen):
        assert map_CHW.dtype == np.float32
        assert torch.equal(first, second)  # features sees what predict sees
        assert np.array_equal(map_CHW, first[0].numpy())
    with pytest.raises(ValueError, match='features takes one picture, got several'):
        model.features([picture, picture])


def test_ids_are_those_of_a_detector(model, tmp_path):
    if model.cfg.default_scope == 'mmseg':
        with pytest.raises(ValueError, match='--annotations takes a detector'):
            model.predict(noise((64, 96), 1), annotations=tmp_path / 'no.json')


def test_an_exported_folder_has_the_same_methods(tmp_path):
    pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
    pytest.importorskip('onnx', reason='onnx is not installed')
    from helpers.export.tiny_export import export_to

    folder = export_to(tmp_path / 'exported')
    with edited_json(folder / 'deploy.json') as manifest:
        manifest['score_thr'] = 0.75
    model = load(folder)
    (p,) = model.predict(np.full((24, 40, 3), 200, np.uint8))
    assert repr(p) == 'Prediction(pixels; 40x24; bright 100%)'
    assert p.score_thr == 0.75
    assert p.drawn.shape == (24, 40, 3)
    for option in (dict(backbone='swin-t'), dict(recipe='keep'), dict(unsafe_load=True), dict(amp='auto')):
        name = next(iter(option)).replace('_', '-')
        with pytest.raises(ValueError, match=f'--{name}.* takes a config, got the exported folder'):
            load(folder, **option)
    with pytest.raises(ValueError, match=r"an exported folder, takes no checkpoint, got 'a\.pth'"):
        load(folder, 'a.pth')
    for action in (model.train, model.test, lambda: model.export(tmp_path / 'again')):
        with pytest.raises(ValueError, match=r'a model needs a config: load\(CONFIG, '):
            action()
    with pytest.raises(ValueError, match='features take a checkpoint'):
        model.features(np.zeros((24, 40, 3), np.uint8))
    with pytest.raises(ValueError, match=r'is exported and has no torch module'):
        assert model.module


def test_the_single_score_of_a_segmentor_is_explained():
    """Its second class had no plane."""
    scores, labels = torch.tensor([[[0.9, 0.2], [0.7, 0.8]]]), torch.tensor([[[1, 0], [1, 1]]])
    sample = BaseDataElement(seg_logits=PixelData(data=scores), pred_sem_seg=PixelData(data=labels))
    for label, value, share in ((None, 0.8, 0.75), (1, 0.8, 0.75), (0, 0.8, 0.25)):
        score, chosen, found, _ = _find_pixels(sample, label, 1)
        assert (score.item(), chosen, found) == (pytest.approx(value), label if label == 0 else 1, share)
