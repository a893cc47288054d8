"""Export, verify and refuse backbones. Tests skip without the runtime."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.export.small_exports import require, small_swin
from helpers.in_process import run_well
from helpers.openmmlab.random_models import DETECTION, save_random_model
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, TRANSFORMS, DefaultScope
from mmengine.structures import BaseDataElement

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.workbench.data.load_picture import LOADER
from swin_backbone.workbench.export import export, formats, graph, picture, quantize, runtime, verify
from swin_backbone.workbench.export.graph import ExportError
from swin_backbone.workbench.predict.predictor import Predictor


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch):
    monkeypatch.setattr(verify, 'VERIFIED_SIZES', ((5, 6), (33, 47), (97, 130)))


TWO_WINDOWS = dict(depths=(1, 1), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1), window_size=((3, 5), (4, 4)))
RECTANGULAR = dict(window_size=(5, 4), mask_padding=True, use_abs_pos_embed=True, pretrain_img_size=32)


@pytest.mark.parametrize(
    ('cls', 'arguments', 'format', 'shape'),
    [
        pytest.param(SwinV2Backbone, RECTANGULAR, 'onnx', None, id='V2, onnx', marks=pytest.mark.slow),
        pytest.param(SwinV2Backbone, RECTANGULAR, 'openvino', None, id='V2, openvino', marks=pytest.mark.slow),
        pytest.param(SwinMLPBackbone, dict(window_size=(3, 4)), 'onnx', None, id='MLP, onnx', marks=pytest.mark.slow),
        pytest.param(SwinBackbone, dict(small_map='shrink'), 'onnx', (22, 50), id='shrink, one size'),
    ],
)
def test_a_backbone_computes_what_pytorch_does_at_all_sizes(cls, arguments, format, shape, tmp_path):
    require(format)
    one = graph.build_maps_graph(small_swin(cls, **arguments), 'backbone', shape)
    manifest = export.write_folder(one, tmp_path / 'out', format, 'fp32')
    assert manifest == json.loads((tmp_path / 'out' / 'deploy.json').read_text())
    assert len(manifest['verification']) == (6 if shape is None else 1)
    assert all(figures['error'] < 1e-5 for figures in manifest['verification'])
    assert [path.name for path in tmp_path.iterdir()] == ['out']


def test_onnx_runtime_and_openvino_equal_pytorch_at_all_sizes(tmp_path):
    """Capture once. OpenVINO reads the ONNX file."""
    require('onnx')
    onnx = pytest.importorskip('onnx')
    model = small_swin(SwinBackbone, **TWO_WINDOWS, mask_padding=True)
    model.stages[1].blocks[0].shift = 2, 2  # as of a second block, without the first
    one = graph.build_maps_graph(model, 'backbone', None)
    manifest = export.write_folder(one, tmp_path / 'out', 'onnx', 'fp32')
    assert len(manifest['verification']) == 6
    model = onnx.load(str(tmp_path / 'out' / 'model.onnx'))
    assert {node.domain for node in model.graph.node} == {''}
    assert (model.ir_version, model.opset_import[0].version) == (9, 20)  # for ONNX Runtime 1.17
    lengths = [one.dim_param or one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
    assert lengths == ['batch', 3, 'height', 'width']
    require('openvino')
    (tmp_path / 'out' / 'deploy.json').write_text(json.dumps(dict(manifest, format='openvino')))
    of_openvino = verify.verify_maps(runtime.RuntimeModel(tmp_path / 'out').run, one, 'fp32')
    for figures in (*manifest['verification'], *of_openvino):
        assert figures['error'] < 1e-5


def test_a_file_of_one_size_has_no_expanded_masks(tmp_path):
    """The runtime computes the masks and the index tables of all windows, from small tables."""
    require('openvino')
    model = small_swin(SwinBackbone, embed_dims=64)
    export.write_model(graph.build_maps_graph(model, 'backbone', (96, 160)), tmp_path, 'openvino', 'fp32')
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert weights < (tmp_path / 'model.bin').stat().st_size < 1.2 * weights


def test_a_neck_takes_the_smallest_pictures_too(tmp_path):
    """On a map of a single row or column, a strided convolution reads memory formats."""
    FPN = pytest.importorskip('mmdet.models', reason='mmdet is not installed').FPN
    neck = FPN([32], 8, 3, add_extra_convs='on_input')
    model = SimpleNamespace(backbone=small_swin(SwinBackbone, depths=(1,)), neck=neck)
    one = graph.build_maps_graph(model, 'neck', None)
    require('onnx')
    export.write_folder(one, tmp_path / 'out', 'onnx', 'fp32')
    run = runtime.RuntimeModel(tmp_path / 'out').run
    for size in ((1, 1), (8, 3), (5, 33)):
        image = torch.randn(2, 3, *size)
        for got, truth in zip(run([image.numpy()]), one.module(image)):
            torch.testing.assert_close(torch.from_numpy(got), truth, rtol=1e-4, atol=1e-4)
    with pytest.raises(runtime.RuntimeProblem, match='image takes finite values, got nan'):
        run([image.numpy() * np.nan])


def test_a_failed_verification_leaves_what_was_there(tmp_path, monkeypatch):
    """Change the weights between capture and verification, so the verification fails."""
    model = small_swin(SwinBackbone, depths=(1,))
    one = graph.build_maps_graph(model, 'backbone', (8, 12))
    require('onnx')
    export.write_folder(one, tmp_path / 'out', 'onnx', 'fp32')
    before = {path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()}
    write = export.write_model

    def write_and_change(*args):
        write(*args)
        one.module.backbone.norm0.bias.data += 0.01

    monkeypatch.setattr(export, 'write_model', write_and_change)
    with pytest.raises(ExportError, match=r'map0 is \d.\de-0\d off PyTorch, and fp32 allows 1e-04'):
        export.write_folder(one, tmp_path / 'out', 'onnx', 'fp32', overwrite=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ['out']


def test_an_earlier_export_without_user_files_is_replaced(record_fault, tmp_path):
    out = tmp_path / 'out'

    def make(text, **more):
        with export.replace_folder(out, **more) as folder:
            for name in ('deploy.json', 'model.onnx'):
                (folder / name).write_text(text)

    make('1')
    with pytest.raises(ExportError, match=r'with --overwrite one of an earlier export, got .* with deploy\.json$'):
        make('3')
    assert (out / 'deploy.json').read_text() == '1'
    make('4', overwrite=True)
    for mine in ('notes.md', 'model.onnx.d/notes.md'):
        (out / mine).parent.mkdir(exist_ok=True)
        (out / mine).write_text('mine')
        for more in ({}, dict(overwrite=True)):
            with pytest.raises(ExportError, match=f'with {mine.partition("/")[0]}, which' if more else 'with'):
                make('5', **more)
            assert (out / mine).read_text() == 'mine'
            assert (out / 'model.onnx').read_text() == '4'
            record_fault('outputs')
        (out / mine).rename(tmp_path / 'mine')
    (out / 'model.onnx.d').rmdir()
    make('6', overwrite=True)
    (tmp_path / 'link').symlink_to(out)
    with pytest.raises(ExportError, match='--out-dir takes a new folder'), export.replace_folder(tmp_path / 'link'):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ['link', 'mine', 'out']


def test_what_cannot_be_exported_is_said():
    model = small_swin(SwinBackbone, depths=(1,), small_map='shrink')
    for ask, says in (
        (lambda: graph.build_maps_graph(model, 'backbone', None), "small_map='shrink'.*give --shape H W"),
        (lambda: graph.build_maps_graph(model, 'neck', (8, 8)), 'SwinBackbone has none: use --part backbone'),
        (lambda: formats.check_format('tflite', 'fp32'), "'onnx', 'openvino', got 'tflite'"),
        (lambda: formats.check_format('onnx', 'bf16'), "onnx takes one of 'fp32', 'fp16', 'int8', got 'bf16'"),
        (lambda: formats.check_format('onnx', 'fp16', 'swin'), "swin takes one of 'fp32', 'bf16', 'int8', got 'fp16'"),
    ):
        with pytest.raises(ValueError, match=says):
            ask()


def test_a_map_of_another_shape_is_no_match():
    assert verify.compute_map_error(np.zeros((1, 2)), np.zeros((1, 3))) == float('inf')
    assert verify.compute_map_error(np.full((1, 2), 4.0), np.array([[2.0, 4.0]])) == 0.5


def test_resize_rule_of_a_pipeline():
    def rule_at_one_size(pipeline):
        cfg = Config(dict(model=dict(backbone={}), test_dataloader=dict(dataset=dict(pipeline=pipeline))))
        steps = picture.fix_size(cfg, (96, 64)).test_dataloader.dataset.pipeline
        assert list(cfg.test_dataloader.dataset.pipeline) == pipeline
        return [one['type'] for one in steps], picture.find_resize_rule(steps)

    load, pack = dict(type='LoadImageFromFile'), dict(type='PackDetInputs')
    assert picture.find_resize_rule([load, pack]) is None
    step = dict(type='Resize', scale=(1333, 800), keep_ratio=True)
    assert picture.find_resize_rule([load, step, pack]) == dict(scale=[1333, 800], keep_ratio=True)
    for pipeline in ([load, pack], [load, dict(step, keep_ratio=False), pack]):
        kinds, rule = rule_at_one_size(pipeline)
        assert (kinds, rule) == (
            ['LoadImageFromFile', 'Resize', 'PackDetInputs'],
            dict(scale=[64, 96], keep_ratio=False),
        )
    for pipeline in ([load, step, pack], [load, step, dict(type='Pad', size_divisor=32), pack]):
        kinds, rule = rule_at_one_size(pipeline)
        assert kinds == ['LoadImageFromFile', 'PackDetInputs', 'Letterbox']
        assert rule == dict(scale=[64, 96], keep_ratio=True, pad=True)
    for resize in (step, dict(step, keep_ratio=False)):  # a part of the model takes any further step
        steps = [load, resize, dict(type='RandomFlip'), pack]
        cfg = Config(dict(model=dict(backbone={}), test_dataloader=dict(dataset=dict(pipeline=steps))))
        kept = picture.fix_size(cfg, (96, 64)).test_dataloader.dataset.pipeline
        assert 'RandomFlip' in [one['type'] for one in kept]
        with pytest.raises(ExportError, match="the test pipeline has 'RandomFlip'"):
            picture.find_resize_rule(kept)
    with pytest.raises(ExportError, match="the test pipeline has 'RandomFlip'"):
        picture.find_resize_rule([load, step, dict(type='RandomFlip'), pack])


@pytest.mark.parametrize('keeps_ratio', [True, False])
@pytest.mark.parametrize('pad_val', [(10, 20, 30), 114])
def test_padding_is_that_of_the_pad_step(keeps_ratio, pad_val):
    """The padding of all bands was the value of the first."""
    resize = dict(type='Resize', scale=(48, 48) if keeps_ratio else (48, 20), keep_ratio=keeps_ratio)
    pad = dict(type='Pad', size_divisor=32, pad_to_square=True, pad_val=dict(img=pad_val))
    pixels = np.random.default_rng(0).integers(0, 256, (20, 48, 3), np.uint8)
    padded, content = picture.Padding([resize, pad])(torch.from_numpy(pixels)[None], torch.tensor([20, 48]))
    assert content is None
    with DefaultScope.overwrite_default_scope('mmdet'):
        expected = TRANSFORMS.build(pad)(dict(img=pixels))['img']
    assert padded[0].numpy().tolist() == expected.tolist()


@pytest.mark.parametrize('shape', [(96, 64), (64, 64), (37, 333)])
@pytest.mark.parametrize('pad', [None, dict(size_divisor=32, pad_val=dict(img=(114, 115, 116)))])
def test_graph_runtime_and_toolbox_letterbox_alike(shape, pad):
    """The padding is the mean, or what the Pad step gives; zeros of the runtime are replaced."""
    steps = [dict(type='Resize', scale=(80, 48), keep_ratio=True), *([dict(type='Pad', **pad)] if pad else [])]
    preprocessor = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
    model = dict(backbone={}, data_preprocessor=preprocessor)
    cfg = Config(dict(model=model, test_dataloader=dict(dataset=dict(pipeline=[*steps, dict(type='PackX')]))))
    pipeline = picture.fix_size(cfg, shape).test_dataloader.dataset.pipeline
    padding, rule = picture.Padding(pipeline), picture.find_resize_rule(pipeline)
    letterbox = picture.Letterbox(**{name: value for name, value in pipeline[-1].items() if name != 'type'})
    values = [114, 115, 116] if pad else preprocessor['mean'][::-1]
    rng = np.random.default_rng(0)
    sides = [*rng.integers(2, 400, (200, 2)), (1, 2), (1, 20), (20, 1), (1000, 50), (10, 6), (6, 10)]
    for h, w in sides:
        h, w = int(h), int(w)
        try:
            height, width = runtime.compute_resized_size((h, w), rule)
        except runtime.RuntimeProblem:
            assert max(h, w) > 2 * min(h, w) * min(shape)
            continue
        assert height == shape[0] or width == shape[1]
        exact = min(shape[0] / h, shape[1] / w)
        assert max(abs(height - h * exact), abs(width - w * exact)) < 0.501
        pixels = rng.integers(0, 256, (h, w, 3), np.uint8)
        resized = runtime.resize(pixels, rule)
        assert resized.shape == (*shape, 3)
        padded, content = padding(torch.from_numpy(resized)[None], torch.tensor([h, w]))
        assert picture.measure_content(content).tolist() == [height, width]
        sample = BaseDataElement()
        packed = letterbox(dict(inputs=torch.from_numpy(pixels).permute(2, 0, 1), data_samples=sample))
        assert torch.equal(padded[0].permute(2, 0, 1), packed['inputs'])
        assert (packed['inputs'][:, height:].reshape(3, -1) == torch.tensor(values)[:, None]).all()
        assert (packed['inputs'][:, :, width:].reshape(3, -1) == torch.tensor(values)[:, None]).all()
        assert sample.pad_shape == tuple(padded.shape[1:3]) == tuple(picture.round_up(shape, 32) if pad else shape)
        assert sample.img_shape == (sample.pad_shape if pad else (height, width))
        assert sample.scale_factor == (width / w, height / h)


@pytest.mark.parametrize(
    ('preprocessor', 'pad', 'shape', 'expected'),
    [
        (dict(type='mmdet.DetDataPreprocessor', pad_size_divisor=32), {}, (60, 90), (60, 90)),
        (dict(type='mmdet.DetDataPreprocessor', pad_size_divisor=32), {}, None, (64, 96)),
        (dict(type='mmdet.DetDataPreprocessor', pad_value=7), dict(keep_ratio=True), (30, 90), (30, 90)),
        (dict(type='mmdet.DetDataPreprocessor'), dict(size=(100, 70)), None, (70, 100)),
        (dict(type='mmseg.SegDataPreProcessor', size_divisor=32), {}, None, (48, 80)),
        (dict(type='mmseg.SegDataPreProcessor', size_divisor=8, test_cfg=dict(size_divisor=32)), {}, None, (64, 96)),
    ],
)
def test_a_part_is_calibrated_at_its_own_size(preprocessor, pad, shape, expected):
    """A free part is calibrated at the padded sizes of the model, and a part of one size at this size."""
    scope = preprocessor['type'].split('.')[0]
    pytest.importorskip(scope)
    resize = dict(dict(type='Resize', scale=(80, 48), keep_ratio=False), **pad)
    keeps_ratio, size = resize['keep_ratio'], resize.pop('size', None)
    steps = [dict(type='LoadImageFromFile'), resize, *([dict(type='Pad', size=size)] if size else [])]
    steps.append(dict(type='PackDetInputs' if scope == 'mmdet' else 'PackSegInputs', meta_keys=('img_shape',)))
    for bands in (3, 1):
        model = dict(backbone=dict(in_channels=bands), data_preprocessor=preprocessor)
        cfg = Config(dict(model=model, test_dataloader=dict(dataset=dict(pipeline=steps))))
        cfg = picture.fix_size(cfg, shape) if shape else cfg
        predictor = Predictor.__new__(Predictor)
        with DefaultScope.overwrite_default_scope(scope):
            built = MODELS.build(cfg.model.data_preprocessor)
            pipeline = Compose([dict(type=LOADER), *cfg.test_dataloader.dataset.pipeline[1:]])
        model = SimpleNamespace(
            backbone=small_swin(SwinBackbone, depths=(1,), in_channels=bands), data_preprocessor=built
        )
        vars(predictor).update(scope=scope, model=model, pipeline=pipeline)
        one = export.build_graph(model, cfg, 'backbone', shape)
        assert {'mean', 'std', 'channels', 'pad_divisor', 'pad_value'} == set(one.settings['preprocessing'])
        ((image,),) = quantize.make_feeds([np.zeros((30, 40, bands), np.uint8)], one, cfg, predictor)
        assert (image.dtype, image.shape) == (np.float32, (1, bands, *expected))
        assert (image[..., 40:] == 7).all() == keeps_ratio


@pytest.mark.parametrize('rule', [dict(scale=[1333, 800], keep_ratio=True), dict(scale=[64, 48], keep_ratio=False)])
def test_pictures_are_resized_as_mmcv_does(rule):
    import mmcv

    for size in ((427, 640), (333, 101), (800, 1333)):
        picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        scale = tuple(rule['scale'])
        truth = mmcv.imrescale(picture, scale) if rule['keep_ratio'] else mmcv.imresize(picture, scale)
        assert np.array_equal(runtime.resize(picture, rule), truth)


@pytest.mark.parametrize('size', [(0, 7), (1, 4000)])
def test_a_picture_of_which_nothing_is_left_is_refused(size):
    with pytest.raises(runtime.RuntimeProblem, match=f'a picture of {size[0]}x{size[1]} pixels would be 0x'):
        runtime.resize(np.zeros((*size, 3), np.uint8), dict(scale=[1333, 800], keep_ratio=True))


def test_pixel_limits_are_lower_for_larger_results():
    cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=[]))))
    for planes, pixels in ((1, 1 << 26), (150, (8 << 30) // (150 * 4))):
        normalise = SimpleNamespace(settings=dict)
        assert picture.make_settings(cfg, normalise, planes)['limits'] == dict(pixels=pixels)


def test_building_a_graph_changes_no_layer():
    from mmseg.models import UPerHead

    from swin_backbone.workbench.export.heads.layers import copy_for_graph

    head = UPerHead(in_channels=[8, 8], in_index=[0, 1], channels=4, num_classes=3).eval()
    changed = copy_for_graph(head)
    pools = [[layer for layer in one.modules() if 'forward' in vars(layer)] for one in (head, changed)]
    assert list(map(len, pools)) == [0, 4]
    maps = [torch.randn(1, 8, 16, 20), torch.randn(1, 8, 8, 10)]
    torch.testing.assert_close(changed(maps), head(maps))


@pytest.mark.parametrize(('runner_up', 'share'), [(9.999999, 1.0), (9.99, 0.75)])
def test_a_label_that_ties_in_pytorch_is_equal(runner_up, share):
    logits = np.zeros((3, 2, 2), np.float32)
    logits[1], logits[2, 0, 0] = 10, runner_up
    truth = dict(labels=logits.argmax(0), logits=logits)
    got = truth['labels'].astype(np.uint8)
    assert verify.compare(dict(labels=got), truth)['equal_labels'] == 1
    got[0, 0] = 2
    assert verify.compare(dict(labels=got), truth)['equal_labels'] == share
    got[0, 0] = 0
    assert verify.compare(dict(labels=got), truth)['equal_labels'] == 0.75


@pytest.mark.parametrize(
    ('box', 'pixels', 'matched', 'mask_iou'),
    [
        ([0, 0, 20, 20], 4, 1, 0.99),  # 4 of 400 pixels
        ([0, 0, 2, 2], 1, 1, 0.9975),  # 1 of 4 pixels, counted as of 400
        ([9, 3, 9, 7], 4, None, None),
        ([0, 0, 2, 2.1], 0, 0, 1),
    ],
)
def test_objects_are_compared_by_boxes_with_area_and_masks(box, pixels, matched, mask_iou):
    def result(box, pixels):
        mask = np.zeros((1, 20, 20), bool)
        mask[0, : int(box[3]), : int(box[2])] = True
        mask.ravel()[:pixels] = False
        return dict(boxes=np.array([box], np.float32), scores=np.ones(1), labels=np.zeros(1), masks=mask)

    expected = [*box[:3], 2] if box[3] == 2.1 else box
    figure = verify.compare(result(box, pixels), result(expected, 0))
    assert (figure.get('matched'), figure.get('min_mask_iou')) == (matched, mask_iou and pytest.approx(mask_iou))


def squares(masks=None):
    boxes = np.array([[5, 5, 40, 40], [10, 5, 40, 40], [15, 5, 40, 40]], np.float32)
    drawn = np.zeros((3, 64, 64), bool)
    for mask, (left, top, right, bottom) in zip(drawn, boxes.astype(int)):
        mask[top:bottom, left:right] = True
    scores = np.array([0.9, 0.8, 0.7], np.float32)
    return dict(boxes=boxes, scores=scores, labels=np.arange(3), masks=drawn if masks is None else masks(drawn))


@pytest.mark.parametrize('precision', verify.TOLERANCES)
@pytest.mark.parametrize(
    'masks', [np.logical_not, np.zeros_like, lambda m: m[::-1, ::-1, ::-1], lambda m: m[:, :32, :32]]
)
def test_objects_with_wrong_masks_do_not_match(masks, precision):
    assert verify.compare(squares(), squares(), precision)['matched'] == 1
    assert verify.compare(squares(masks), squares(), precision)['matched'] < verify.TOLERANCES[precision].objects


def test_a_surplus_object_has_a_finite_error():
    """deploy.json has the figures: JSON has no infinity."""
    surplus = {name: np.concatenate([values, values[:1]]) for name, values in squares().items()}
    assert verify.compare(surplus, squares())['score_error'] == 1


class File:
    """An exported file that returns `results` in turn."""

    def __init__(self, *results):
        self.manifest, self.results = dict(limits={}, inputs=[dict(shape=[1, 8, 8, 3])]), iter(results)

    def predict(self, pictures, batch):
        return [next(self.results) for _ in pictures]


def sample(name, is_generated=False):
    return verify.Sample(name, np.zeros((8, 8, 3), np.uint8), is_generated)


def test_a_generated_picture_refuses_no_file():
    samples = [sample('a'), sample('noise', True)]
    file = File(objects(0.9), objects(0.9, 0.8))
    figures = verify.verify_results(file, lambda _: objects(0.9), samples, 'int8 by swin')
    words = '66.67% of the objects are those of PyTorch, and int8 by swin takes 70.0%'
    assert verify.describe_outcome(figures) == f'verified in 1 of 2 pictures; noise: {words}'
    figures = verify.verify_results(File(objects(0.9)), lambda _: objects(0.9, 0.8), samples[1:], 'fp32')
    assert verify.describe_outcome(figures).startswith(
        'not verified: give --pictures with objects; noise: 66.67% of the objects'
    )
    with pytest.raises(ExportError, match=f'verification failed in b: {words}; --pictures compares others'):
        verify.verify_results(File(objects(0.9, 0.8)), lambda _: objects(0.9), [sample('b')], 'int8 by swin')


@pytest.mark.parametrize(
    ('found', 'words'),
    [
        ([1, 1], 'verified'),
        ([1, 0], 'verified in 1 of 2 pictures'),
        ([0, 0], 'not verified: nothing was compared, since PyTorch finds nothing in the pictures: give --pictures '),
    ],
)
def test_the_outcome_tells_how_many_pictures_compared_something(found, words):
    results = [objects(0.9) if number else objects() for number in found]
    truth = iter(results)
    figures = verify.verify_results(File(*results), lambda _: next(truth), [sample('a'), sample('b')], 'fp32')
    assert verify.describe_outcome(figures).startswith(words)


def test_labels_of_one_logit_are_compared_alone():
    truth = dict(labels=np.array([[0, 1]]), logits=np.array([[[-1.0, 1.0]]]))
    assert verify.compare(dict(labels=np.array([[1, 1]])), truth) == dict(compared=2, equal_labels=0.5)
    assert verify.compare(truth, dict(labels=np.ones((1, 2)))) == dict(compared=0, equal_labels=0.5)


def objects(*scores, at=0):
    """Return objects of a row of boxes."""
    left = np.arange(len(scores))[:, None] * 20 + at
    boxes = np.concatenate([left, left * 0, left + 10, left * 0 + 10], 1).astype(np.float32)
    return dict(boxes=boxes, scores=np.array(scores), labels=np.zeros(len(scores)))


def twice(result):
    return {name: np.repeat(values, 2, axis=0) for name, values in result.items()}


@pytest.mark.parametrize(
    ('result', 'expected', 'max_objects', 'compared', 'matched'),
    [
        (objects(0.9, 0.8), objects(0.9), 100, 3, 2 / 3),  # an object that only the file finds
        (objects(0.9), objects(0.9, 0.8), 100, 3, 2 / 3),
        (twice(objects(0.9)), objects(0.9), 100, 3, 2 / 3),  # without suppression
        (twice(objects(0.9)), twice(objects(0.9)), 100, 4, 1),
        (objects(0.9), objects(), 100, 1, 0),
        (objects(0.9, 0.0505), objects(0.9), 100, 2, 1),  # rounding moves an object over the threshold
        (objects(0.04, 0.01, at=3), objects(0.04, 0.01), 100, 2, 0),  # no object is clear
        (objects(0.04, 0.01), objects(0.04, 0.01), 2, 2, 1),
        (objects(0.9, 0.5, 0.4, at=0), objects(0.9, 0.5, 0.4), 3, 4, 1),  # the last object may differ
        (objects(1, 1, at=3), objects(1, 1), 2, 0, None),  # chosen among equals
        (objects(), objects(), 100, 0, None),
    ],
)
def test_objects_are_compared_both_ways(result, expected, max_objects, compared, matched):
    figure = verify.compare(result, expected, 'fp32', max_objects)
    assert figure['compared'] == compared
    assert figure.get('matched') == (matched if matched is None else pytest.approx(matched))


def test_an_object_without_a_match_takes_none_of_another():
    result, expected = objects(0.9, 0.8), objects(0.95, 0.9, 0.8)
    expected['boxes'] = expected['boxes'][[0, 0, 1]] + np.array([[6, 0, 6, 0], [0] * 4, [0] * 4], np.float32)
    assert verify.compare(result, expected, 'fp32', 100)['matched'] == 4 / 5


LIMITS = [('int8', 0.23), ('int8 by swin', 0.12), ('bf16', 0.23), ('fp16', 0.03), ('fp32', 2e-4)]


@pytest.mark.parametrize(('precision', 'error'), LIMITS)
def test_an_error_of_maps_is_refused_in_every_precision(precision, error):
    one = graph.build_maps_graph(small_swin(SwinBackbone, depths=(1,)), 'backbone', (8, 12))

    def run(images):
        (y,) = one.module(torch.from_numpy(images[0]))
        return [y.numpy() + error * max(1, float(y.abs().max()))]

    with torch.no_grad(), pytest.raises(ExportError, match=f'verification failed: .* and {precision} allows'):
        verify.verify_maps(run, one, precision)


def test_a_tool_that_compared_nothing_says_so(tmp_path, monkeypatch):
    figures = [dict(name=name, objects=0, found=0, compared=0) for name in 'ab']
    made = dict(verification=figures, format='onnx', precision='fp32')
    monkeypatch.setattr(export, 'export_model', lambda *_, **__: made)
    checkpoint = tmp_path / 'x.pth'
    checkpoint.touch()
    result = run_well('tools/export.py', DETECTION, checkpoint, '--out-dir', tmp_path)
    assert result.stdout.splitlines()[-1].startswith(f'{tmp_path}: onnx, fp32, not verified: nothing was compared')


@pytest.mark.parametrize('name', ['_channel_conversion', 'channel_conversion'])
def test_channels_are_flipped_by_either_name_of_mmsegmentation(name):
    preprocessor = SimpleNamespace(_enable_normalize=False, pad_size_divisor=1, pad_value=0)
    assert not picture.Normalise(preprocessor).flip_channels
    setattr(preprocessor, name, True)
    assert picture.Normalise(preprocessor).flip_channels


def test_the_thresholds_of_a_report_are_those_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(export, 'write_folder', lambda *_, meta, **__: meta)
    cfg, checkpoint = Config.fromfile(DETECTION), str(save_random_model(DETECTION, tmp_path))
    report = dict(best=dict(threshold=0.5), classes=[dict(name=name, threshold=None) for name in cfg.metainfo.classes])
    report['classes'][1]['threshold'] = 0.25
    path = tmp_path / 'report.json'
    path.write_text(json.dumps(report))
    meta = export.export_model(cfg, checkpoint, tmp_path / 'out', score_thr=path)
    assert list(meta['score_thr'].values()) == [0.5, 0.25, 0.5, 0.5]
    path.write_text(json.dumps(dict(report, classes=report['classes'][:2])))
    with pytest.raises(ValueError, match='score_thr takes thresholds of the classes circle, square, triangle, star'):
        export.export_model(cfg, checkpoint, tmp_path / 'out', score_thr=path)
