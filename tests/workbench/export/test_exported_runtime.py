"""Run an exported segmentor without torch, in tools/infer.py and in tools/test.py."""

import json
import os
import re
import shutil
import subprocess
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

pytest.importorskip('onnxscript', reason='onnxscript is not installed')
pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')

from helpers import ROOT, run_python
from helpers.export.small_exports import require, save_checkpoint, small_config
from helpers.export.tiny_export import export_to
from helpers.in_process import error_of, run_well
from helpers.openmmlab.jobs import open_predictor

from swin_backbone import load
from swin_backbone.kernels.native.library import load_library
from swin_backbone.workbench.export import export, runtime
from swin_backbone.workbench.export.predictor import evaluate_folder

VERIFIED_SIZES = [(64, 90), (64, 90), (50, 41)]
CONFIG = """
default_scope = 'mmseg'
norm_cfg = dict(type='BN')
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=[120., 110., 100.], std=[60., 50., 40.], bgr_to_rgb=True,
                           test_cfg=dict(size_divisor=16)),
    backbone=dict(type='SwinBackbone', embed_dims=32, depths=(1,), num_heads=(2,), strides=(4,), out_indices=(0,)),
    decode_head=dict(type='FCNHead', in_channels=32, channels=8, num_convs=1, num_classes=4, norm_cfg=norm_cfg,
                     in_index=0),
    test_cfg=dict(mode='whole'))
pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(96, 80), keep_ratio=True),
            dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
dataset = dict(type='BaseSegDataset', data_root='DATA', data_prefix=dict(img_path='pictures', seg_map_path='labels'),
               img_suffix='.png', seg_map_suffix='.png', pipeline=pipeline,
               metainfo=dict(classes=('a', 'b', 'c', 'd'), palette=[[0, 0, 0], [9, 9, 9], [99, 9, 9], [9, 99, 9]]))
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=1)]
train_dataloader = dict(batch_size=1, dataset=dataset)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
test_dataloader = dict(batch_size=1, num_workers=0, dataset=dataset, sampler=dict(type='DefaultSampler', shuffle=False))
test_cfg = dict(type='TestLoop')
test_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
"""


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """Make a folder with a config, data, a checkpoint and an export."""
    folder = tmp_path_factory.mktemp('work')
    rng = np.random.default_rng(0)
    for name in ('pictures', 'labels'):
        (folder / name).mkdir()
    for index, size in enumerate(VERIFIED_SIZES):
        coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
        cv2.imwrite(str(folder / 'pictures' / f'{index}.png'), cv2.resize(coarse, size[::-1]))
        cv2.imwrite(str(folder / 'labels' / f'{index}.png'), rng.integers(0, 4, size, np.uint8))
    (folder / 'config.py').write_text(CONFIG.replace('DATA', str(folder)))
    cfg = Config.fromfile(folder / 'config.py')
    save_checkpoint(cfg, folder / 'model.pth')
    export.export_model(cfg, str(folder / 'model.pth'), folder / 'out', pictures=pictures_of(folder))
    return folder


def pictures_of(work):
    return [cv2.imread(str(path)) for path in sorted((work / 'pictures').glob('*.png'))]


def test_what_is_verified_is_said(work):
    manifest = json.loads((work / 'out' / 'deploy.json').read_text())
    assert manifest['preprocessing']['resize'] == dict(scale=[96, 80], keep_ratio=True)
    assert manifest['preprocessing']['pad_divisor'] == 16
    assert manifest['classes'] == ['class 0', 'class 1', 'class 2', 'class 3']
    figures = manifest['verification']
    assert [batch for batch, _ in groupby(figure['batch'] for figure in figures)] == [1, 2] * 3
    assert all(figure['equal_labels'] > 0.999 for figure in figures)


def one_size(work):
    """Return the folder of a model of one size."""
    if not (work / 'one_size').exists():
        cfg = Config.fromfile(work / 'config.py')
        export.export_model(cfg, str(work / 'model.pth'), work / 'one_size', 'openvino', shape=(40, 72))
    return work / 'one_size'


def test_a_whole_model_of_one_size(work):
    """Pictures keep their proportions and are padded to the model's size. Results have the size of the picture."""
    manifest = json.loads((one_size(work) / 'deploy.json').read_text())
    assert manifest['inputs'][0]['shape'] == [1, 40, 72, 3]
    assert manifest['preprocessing']['resize'] == dict(scale=[72, 40], keep_ratio=True, pad=True)
    pictures = [[64, 90], [64, 90], [40, 72], [21, 72], [40, 37]]  # two of the test set
    assert [figure['picture'] for figure in manifest['verification']] == pictures
    assert all(figure['equal_labels'] > 0.99 and figure['compared'] for figure in manifest['verification'])
    results = list(runtime.load(work / 'one_size').predict(pictures_of(work), batch=2))
    assert [result['labels'].shape for result in results] == VERIFIED_SIZES


def test_its_own_command_line_without_pictures(work):
    result = run_python(runtime.__file__, work / 'out', status=1)
    assert result.stderr.endswith('takes DIR PICTURE...: a folder that tools/export.py made, and pictures\n')


@pytest.mark.parametrize(
    ('stored', 'printed'),
    [({}, 'nut 0.31, bolt 0.30'), (0.31, 'nut 0.31'), (dict(nut=0.5, bolt=0.2), 'bolt 0.30, bolt 0.20')],
)
def test_its_own_command_line_takes_the_threshold_of_the_export(stored, printed, tmp_path, monkeypatch, capsys):
    """It printed the scores above 0.3."""
    found = dict(boxes=np.zeros((3, 4)), scores=np.array([0.3125, 0.3, 0.2]), labels=np.array([0, 1, 1]))
    info = {} if stored == {} else dict(score_thr=stored)
    model = SimpleNamespace(manifest=info, classes=['nut', 'bolt'], bands=3, predict=lambda pictures: iter([found]))
    monkeypatch.setattr(runtime, 'load', lambda folder: model)
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((8, 8, 3), np.uint8))
    assert runtime.main('DIR', str(tmp_path / 'a.png')) == 0
    assert capsys.readouterr().out == f'{tmp_path / "a.png"} {printed}\n'


TWO_MODELS = """
import os, signal, sys

sys.path.insert(0, sys.argv[1])
import runtime

first, second = runtime.RuntimeModel(sys.argv[2]), runtime.RuntimeModel(sys.argv[2])
del first
del second
signal.signal(signal.SIGUSR1, lambda *_: print('handled'))
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_signals_are_handled_after_deleted_models(tmp_path):
    """A second Core of OpenVINO would restore the freed signal stack of the first Core."""
    pytest.importorskip('openvino', reason='openvino is not installed')
    result = run_python('-c', TWO_MODELS, Path(runtime.__file__).parent, export_to(tmp_path / 'm', 'openvino'))
    assert result.stdout == 'handled\n'


WITHOUT_TORCH = """
import sys

sys.modules.update(dict.fromkeys(('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'swin_backbone')))
import cv2, numpy
from runtime import load

model = load('out', threads=1)
pictures = [cv2.imread(f'pictures/{i}.png') for i in range(3)]
numpy.savez('found.npz', *[result['labels'] for result in model.predict(pictures, batch=2)])
"""


def test_it_runs_where_there_is_no_torch(work):
    (work / 'runtime.py').write_bytes((ROOT / 'swin_backbone' / 'workbench' / 'export' / 'runtime.py').read_bytes())
    run_python('-c', WITHOUT_TORCH, folder=work)
    predictor = open_predictor(Config.fromfile(work / 'config.py'), str(work / 'model.pth'), 'cpu')
    results = np.load(work / 'found.npz')
    for index, picture in enumerate(pictures_of(work)):
        truth = export.predict_result(predictor, picture)['labels']
        assert results[f'arr_{index}'].shape == VERIFIED_SIZES[index]
        assert (results[f'arr_{index}'] == truth).mean() > 0.999


def test_logits_if_wanted(work):
    model = runtime.load(work / 'out')
    (result,) = model.predict(pictures_of(work)[:1], logits=True)
    assert result['logits'].shape == (4, *VERIFIED_SIZES[0])
    assert np.array_equal(result['logits'].argmax(0), result['labels'])


def test_a_missing_device_and_a_large_picture(work):
    with pytest.raises(runtime.RuntimeProblem, match="no device 'cuda' here; it has cpu"):
        runtime.load(work / 'out', device='cuda')
    model = runtime.load(work / 'out')
    model.manifest['limits']['pixels'] = 5000
    with pytest.raises(runtime.RuntimeProblem, match='of 64x90 pixels, 68x96 to the model, is more than the 5000'):
        list(model.predict(pictures_of(work)))


def test_there_is_no_metric_without_a_test_set(work):
    cfg = Config.fromfile(work / 'config.py')
    cfg.test_dataloader.dataset.data_root = str(work / 'missing')
    assert evaluate_folder(cfg, work / 'out') == {}


def test_int8_needs_pictures(work):
    cfg = Config.fromfile(work / 'config.py')
    cfg.train_dataloader.dataset.data_root = str(work / 'nowhere')
    with pytest.raises(ValueError, match='int8 needs pictures to calibrate on: give --pictures'):
        export.export_model(cfg, str(work / 'model.pth'), work / 'int8', precision='int8')
    assert not (work / 'int8').exists()


@pytest.mark.skipif(load_library()[0] is None, reason='the compiled library is not built')
def test_int8_by_the_library_runs_in_each_tool(work):
    cfg, out = Config.fromfile(work / 'config.py'), work / 'int8-swin'
    cfg.train_dataloader.dataset.data_root = str(work / 'nowhere')
    manifest = export.export_model(cfg, str(work / 'model.pth'), out, precision='int8', operators='swin')
    assert (manifest['precision'], 'quantization' in manifest) == ('int8', False)
    assert all(figure['equal_labels'] > 0.9 for figure in manifest['verification'])
    picture = pictures_of(work)[0]
    (result,) = runtime.load(out).predict([picture])
    run_well('tools/infer.py', work / 'pictures' / '0.png', out, '--out-dir', work / 'inferred')
    assert np.array_equal(Image.open(work / 'inferred' / 'labels' / '0.png'), result['labels'])
    assert 'mIoU' in run_well('tools/test.py', work / 'config.py', out, '--work-dir', work / 'tested').stdout
    (prediction,) = load(str(out)).predict([np.ascontiguousarray(picture[..., ::-1])])
    assert np.array_equal(prediction.label_map, result['labels'])


@pytest.mark.slow
@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_int8_of_the_training_set(work, format):
    require(format, *(['nncf'] if format == 'openvino' else []))
    cfg, out = Config.fromfile(work / 'config.py'), work / f'int8-{format}'
    manifest = export.export_model(cfg, str(work / 'model.pth'), out, format, precision='int8')
    assert all(figure['equal_labels'] > 0.8 for figure in manifest['verification'])
    before, after = (manifest['quantization'][when] for when in ('before', 'after'))
    assert after['bytes'] < before['bytes']
    assert abs(after['mIoU'] - before['mIoU']) < 5  # percent
    if format == 'onnx':
        import onnx

        assert {path.name for path in out.iterdir()} == {'deploy.json', 'model.onnx'}
        kinds = [node.op_type for node in onnx.load(str(out / 'model.onnx')).graph.node]
        assert kinds.count('QuantizeLinear') >= 10
        assert kinds.count('Softmax') == sum(cfg.model.backbone.depths)
        return
    assert {path.name for path in out.iterdir()} == {'deploy.json', 'model.bin', 'model.xml'}
    quantized = {
        use.get_node().get_type_name()
        for op in runtime.get_openvino_core().read_model(str(out / 'model.xml')).get_ops()
        if op.get_type_name() == 'FakeQuantize'
        for use in op.output(0).get_target_inputs()
    }
    assert {'MatMul', 'Convolution'} <= quantized
    assert not quantized & {'MVN', 'Softmax', 'Add'}


def test_a_checkpoint_that_does_not_fit(work, tmp_path):
    meta = dict(dataset_meta=dict(classes=list('abcd')))
    torch.save(dict(state_dict={'decode_head.conv_seg.weight': torch.zeros(1)}, meta=meta), tmp_path / 'x.pth')
    with pytest.raises(ValueError, match=r'no weight of a Swin Transformer'):
        export.export_model(Config.fromfile(work / 'config.py'), str(tmp_path / 'x.pth'), tmp_path / 'out')


def test_the_example_in_python_runs_as_it_stands(work, tmp_path):
    shutil.copytree(work / 'out', tmp_path / 'DIR')
    shutil.copy(ROOT / 'swin_backbone' / 'workbench' / 'export' / 'runtime.py', tmp_path)
    *_, example = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'guides' / 'deploy.md').read_text(), re.S)
    (tmp_path / 'example.py').write_text(example)
    printed = run_python('example.py', *sorted((work / 'pictures').glob('*.png')), folder=tmp_path).stdout
    assert len(printed.splitlines()) == 3
    assert all(re.search(r"\.png \{'class \d': '\d+%'", line) for line in printed.splitlines())


def headers():
    """Return the folder of ONNX Runtime's C++ headers, or None."""
    places = [os.environ.get('ONNXRUNTIME_INCLUDE', ''), '/usr/include/onnxruntime', '/usr/local/include/onnxruntime']
    return next((place for place in places if place and (Path(place) / 'onnxruntime_cxx_api.h').is_file()), None)


needs_compiler = pytest.mark.skipif(not shutil.which('c++'), reason='there is no C++ compiler, c++')


def compile_and_run(source, include, library, folder, pictures, tmp_path, *threads):
    """Compile an example, run the program on pictures of equal size, and return the output."""
    (tmp_path / 'example.cpp').write_text(source)
    compiler = ['c++', '-std=c++17', '-pthread', f'-I{include}', f'-Wl,-rpath,{library.parent}', '-o', 'example']
    subprocess.run([*compiler, 'example.cpp', str(library)], cwd=tmp_path, check=True)
    return run_example(tmp_path / 'example', folder / 'model.onnx', pictures, *threads)


def run_example(program, model, pictures, *threads):
    data = b''.join(picture.tobytes() for picture in pictures)
    command = [str(part) for part in (program, model, *pictures[0].shape[:2], *threads)]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def noise(model, number):
    """Return different smooth pictures of equal size."""
    coarse = np.random.default_rng(0).integers(256, size=(number, 12, 16, 3), dtype=np.uint8)
    return [model.prepare(cv2.resize(one, (256, 192))) for one in coarse]


@needs_compiler
@pytest.mark.skipif(not headers(), reason='no onnxruntime_cxx_api.h: ONNXRUNTIME_INCLUDE names the folder that has it')
def test_the_example_in_cpp_of_onnxruntime_runs_as_it_stands(work, tmp_path):
    import onnxruntime

    (library,) = (Path(onnxruntime.__file__).parent / 'capi').glob('libonnxruntime.so.*')
    (tmp_path / 'libonnxruntime.so.1').symlink_to(library)
    library = tmp_path / 'libonnxruntime.so.1'
    model = runtime.load(work / 'out')
    pictures = noise(model, 1)
    source = (ROOT / 'examples' / 'segmentor.cpp').read_text()
    written = compile_and_run(source, headers(), library, work / 'out', pictures, tmp_path)
    (truth,) = labels_of(model, pictures)
    assert (np.frombuffer(written, np.uint8).reshape(truth.shape) == truth).mean() > 0.999


def labels_of(model, pictures):
    size = np.array(pictures[0].shape[:2])
    return np.stack([model.run([picture[None], size], ['labels'])[0][0] for picture in pictures])


def deployed(folder, pictures, tmp_path, *arguments):
    """Return the output of examples/deployed.cpp. OpenVINO's wheel contains headers and library."""
    openvino = pytest.importorskip('openvino', reason='openvino is not installed')
    place = Path(openvino.__file__).parent
    (library,) = (place / 'libs').glob('libopenvino.so.*')
    source = (ROOT / 'examples' / 'deployed.cpp').read_text()
    return compile_and_run(source, place / 'include', library, folder, pictures, tmp_path, *arguments)


@needs_compiler
def test_the_cpp_example_in_threads_gives_labels_of_one(work, tmp_path):
    model = runtime.load(work / 'out')
    pictures = noise(model, 40)
    written = deployed(work / 'out', pictures, tmp_path, 8)
    assert written == run_example(tmp_path / 'example', work / 'out' / 'model.onnx', pictures, 1)
    truth = labels_of(model, pictures)
    assert len(np.unique(truth)) > 1
    assert (np.frombuffer(written, np.uint8).reshape(truth.shape) == truth).mean() > 0.999
    folder = one_size(work)
    (picture, *_) = (runtime.resize(picture, dict(scale=[72, 40], keep_ratio=True)) for picture in pictures_of(work))
    written = run_example(tmp_path / 'example', folder / 'model.xml', [picture], 1)  # the program pads
    (result,) = runtime.load(folder).predict([picture])
    assert (np.frombuffer(written, np.uint8).reshape(picture.shape[:2]) == result['labels']).mean() > 0.999


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize('precision', ['fp32', 'int8'])
def test_the_cpp_example_runs_nodes_of_the_library(precision, work, tmp_path):
    openvino = pytest.importorskip('openvino', reason='openvino is not installed')
    out, place = tmp_path / 'out', Path(openvino.__file__).parent
    cfg = Config.fromfile(work / 'config.py')
    export.export_model(cfg, str(work / 'model.pth'), out, 'openvino', precision=precision, operators='swin')
    libraries = [next((place / 'libs').glob(f'libopenvino{name}.so.*')) for name in ('', '_onnx_frontend')]
    command = ['c++', '-std=c++17', '-shared', '-fPIC', f'-I{place}/include', f'-I{ROOT}/csrc', '-o', 'extension.so']
    command += [ROOT / 'examples' / 'openvino_operators.cpp', f'-L{out}', '-lswin', *libraries]
    subprocess.run([*command, f'-Wl,-rpath,{place}/libs:{out}'], cwd=tmp_path, check=True)
    model = runtime.load(out)
    pictures = noise(model, 8)
    written = deployed(out, pictures, tmp_path, 2, tmp_path / 'extension.so')
    expected = labels_of(model, pictures)
    assert (np.frombuffer(written, np.uint8).reshape(expected.shape) == expected).all()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    'config', ['mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', 'retinanet/retinanet_swin-t-p4-w7_fpn_1x_coco.py']
)
def test_the_cpp_example_prints_the_objects_python_finds(config, tmp_path):
    cfg = small_config(config)
    export.export_model(cfg, str(save_checkpoint(cfg, tmp_path / 'model.pth')), tmp_path / 'out')
    model = runtime.load(tmp_path / 'out')
    (picture,) = noise(model, 1)
    printed = deployed(tmp_path / 'out', [picture], tmp_path, 2)
    got = [np.array(line.split()[1:], float) for line in printed.decode().splitlines()]
    (results,) = model.predict([picture])
    seen = results['scores'] >= 0.3
    truth = np.column_stack([results['labels'], results['scores'], results['boxes']])[seen]
    if 'masks' in results:
        truth = np.column_stack([truth, results['masks'][seen].sum((1, 2))])
    assert len(truth) > 2
    assert len(got) == len(truth)
    tolerance = np.array([0, 2e-3, 0.2, 0.2, 0.2, 0.2, 50])[: truth.shape[1]]
    for one in truth:  # objects with similar scores may change places
        assert any(np.all(np.abs(one - other) <= tolerance) for other in got), one


@pytest.mark.parametrize('tool', ['test', 'report'])
def test_classes_in_another_order_stop_with_both_lists(tool, work, tmp_path, record_fault):
    cfg, names = Config.fromfile(work / 'config.py'), json.loads((work / 'out/deploy.json').read_text())['classes']
    cfg.test_dataloader.dataset.metainfo.classes = names[::-1]
    cfg.dump(tmp_path / 'config.py')
    more = ['--work-dir', tmp_path / 'work', *(['--out-dir', tmp_path / 'report'] if tool == 'report' else [])]
    error = error_of(f'tools/{tool}.py', tmp_path / 'config.py', work / 'out', *more)
    assert 'in another order' in error
    assert f'its classes are {", ".join(names)}; those of the data are {", ".join(names[::-1])}' in error
    record_fault('bad_commands')


def test_a_report_of_an_exported_folder_is_that_of_its_model(work, tmp_path):
    reports = []
    for model in ('model.pth', 'out'):
        words = [work / 'config.py', work / model, '--out-dir', tmp_path / model, '--work-dir', tmp_path]
        run_well('tools/report.py', *words)
        reports.append(json.loads((tmp_path / model / 'report.json').read_text()))
    assert reports[0]['checkpoint'] == str(work / 'model.pth')
    assert reports[0]['overall'] == pytest.approx(reports[1]['overall'], abs=0.002)
    assert [row['file'] for row in reports[0]['pictures']] == [row['file'] for row in reports[1]['pictures']]
