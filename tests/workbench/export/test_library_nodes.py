"""Layers of the compiled library as nodes of a graph: maps of both runtimes equal PyTorch's bit for bit."""

import copy
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip('onnxscript', reason='onnxscript is not installed')
pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')

import onnx
from helpers import edited_json, run_python
from helpers.export.small_exports import save_checkpoint, small_config, small_swin
from torch import nn

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone, accelerate, library_path
from swin_backbone.kernels.native.library import load_library
from swin_backbone.workbench.export import export, graph, library_nodes, runtime, verify

pytestmark = pytest.mark.skipif(load_library()[0] is None, reason='the compiled library is not built')
TWO_STAGES = dict(depths=(2, 2), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1))
WINDOWS = dict(window_size=((3, 5), (4, 4)), mask_padding=True)
SHAPES = [(1, 3, 1, 1), (3, 3, 75, 100), (1, 3, 133, 97)]


@pytest.fixture(autouse=True)
def _one_small_size(monkeypatch):
    monkeypatch.setattr(verify, 'VERIFIED_SIZES', ((33, 47),))


def write(model, folder, precision='fp32', shape=None, part='backbone'):
    export.write_folder(graph.build_maps_graph(model, part, shape), folder, 'onnx', precision, operators='swin')
    return folder


@pytest.fixture(scope='module')
def v1():
    return small_swin(SwinBackbone, **TWO_STAGES, **WINDOWS)


@pytest.fixture(scope='module')
def exported(v1, tmp_path_factory):
    return write(v1, tmp_path_factory.mktemp('exported') / 'out')


def kinds(folder):
    nodes = onnx.load(str(folder / 'model.onnx'), load_external_data=False).graph.node
    return [node.op_type for node in nodes if node.domain == 'swin'], [node for node in nodes if node.domain != 'swin']


def open_in(folder, format, to, **changes):
    """Open a copy of an exported folder in a different runtime."""
    if format == 'openvino':
        pytest.importorskip('openvino', reason='openvino is not installed')
    shutil.copytree(folder, to)
    with edited_json(to / 'deploy.json') as info:
        info.update(format=format, **changes)
    return runtime.load(to, threads=2)


def check_equal(run, model, shapes=SHAPES, dtype=torch.float32, error=0.0):
    """Compare maps with PyTorch's, to an error relative to the largest value."""
    for shape in shapes:
        image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), torch.autocast('cpu', dtype, enabled=dtype is torch.bfloat16):
            expected = model(image)
        for got, target in zip(map(torch.from_numpy, run([image.numpy()])), expected, strict=True):
            torch.testing.assert_close(got, target, rtol=0, atol=error * float(target.abs().max()))


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_each_layer_is_a_node_with_equal_numbers(format, exported, v1, tmp_path):
    own, others = kinds(exported)
    assert own == ['Embed', 'Block', 'Block', 'Merge', 'OutputNorm', 'Block', 'Block', 'OutputNorm']
    assert not others
    check_equal(open_in(exported, format, tmp_path / 'out').run, v1)


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_bfloat16_is_an_attribute_of_a_node(format, exported, v1, tmp_path):
    model = onnx.load(str(exported / 'model.onnx'), load_external_data=False)
    for attribute in (one for node in model.graph.node for one in node.attribute):
        if attribute.name == 'bfloat16':
            attribute.i = 1
    shutil.copytree(exported, tmp_path / 'bf16')
    onnx.save(model, str(tmp_path / 'bf16' / 'model.onnx'))
    files = json.loads((exported / 'deploy.json').read_text())['sha256']
    digests = {name: runtime.compute_digest(tmp_path / 'bf16' / name) for name in files}
    run = open_in(tmp_path / 'bf16', format, tmp_path / 'out', precision='bf16', sha256=digests).run
    check_equal(run, v1, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ('cls', 'arguments'), [(SwinBackbone, WINDOWS), (SwinV2Backbone, dict(window_size=4)), (SwinBackbone, None)]
)
def test_eight_bits_are_those_of_pytorch(cls, arguments, tmp_path):
    """Both runtimes compute PyTorch's numbers. The weights of linear layers are int8 in the file."""
    model = small_swin(cls, **TWO_STAGES, **(arguments or {}))
    if arguments is None:  # outputs of zeros, and of numbers that are subnormal or too small for a factor
        for i, value in enumerate((0.0, 1e-30, 1e-40)):
            model.stages[0].blocks[0].ffn.layers[1].weight.data[i] *= value
    folder = write(model, tmp_path / 'first', precision='int8')
    own, others = kinds(folder)
    names = ['EmbedInt8', *['BlockInt8'] * 2, 'MergeInt8', 'OutputNorm', *['BlockInt8'] * 2, 'OutputNorm']
    assert (sorted(own), others) == (sorted(names), [])
    whole = [one for one in onnx.load(str(folder / 'model.onnx')).graph.initializer if one.data_type == 3]
    linear = [one for one in model.modules() if isinstance(one, (nn.Linear, nn.Conv2d))]
    linear = [one.weight for name, one in model.named_modules() if one in linear and 'cpb' not in name]
    assert sum(len(one.raw_data) for one in whole) == sum(weight.numel() for weight in linear)
    round_to_eight_bits = accelerate(copy.deepcopy(model), precision='int8')
    for format in ('onnx', 'openvino'):
        check_equal(open_in(folder, format, tmp_path / format).run, round_to_eight_bits)


@pytest.mark.parametrize('part', ['whole', 'largest'])
def test_wrong_eight_bits_are_refused(part, tmp_path, monkeypatch):
    """Outputs with the factor or the numbers of another output."""
    right = library_nodes.round_to_eight_bits

    def wrong(weight):
        whole, largest = right(weight)
        return (whole.flip(0), largest) if part == 'whole' else (whole, largest * torch.rand(len(largest)) * 4)

    monkeypatch.setattr(library_nodes, 'round_to_eight_bits', wrong)
    with pytest.raises(export.ExportError, match=r'map\d is .* off PyTorch, and int8 by swin allows 1e-01'):
        write(small_swin(SwinBackbone, depths=(1,)), tmp_path / 'out', precision='int8', shape=(33, 47))
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_results_in_eight_threads_equal_those_in_one(format, exported, tmp_path):
    model = open_in(exported, format, tmp_path / 'out')
    images = np.random.default_rng(0).standard_normal((24, 1, 3, 40, 52), np.float32)
    expected = [runtime.load(tmp_path / 'out', threads=1).run([image]) for image in images]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda image: model.run([image]), images))
    for maps, truth in zip(results, expected, strict=True):
        assert all(map(np.array_equal, maps, truth))


def test_operators_of_openvino_need_a_cpu(exported, tmp_path):
    open_in(exported, 'openvino', tmp_path / 'out')
    with pytest.raises(runtime.RuntimeProblem, match=r"openvino cannot open .* on 'auto'"):
        runtime.load(tmp_path / 'out', device='auto')


@pytest.mark.parametrize(
    ('cls', 'arguments', 'shape', 'nodes'),
    [
        (SwinV2Backbone, dict(window_size=(5, 4), mask_padding=True), None, 4),
        pytest.param(SwinBackbone, dict(small_map='shrink'), (22, 50), 4, marks=pytest.mark.slow),
        pytest.param(SwinBackbone, dict(patch_norm=False, qkv_bias=False), None, 4, marks=pytest.mark.slow),
        pytest.param(SwinMLPBackbone, dict(window_size=(3, 4)), None, 2, marks=pytest.mark.slow),
    ],
)
def test_other_backbones(cls, arguments, shape, nodes, tmp_path):
    model = small_swin(cls, **arguments)
    folder = write(model, tmp_path / 'first', shape=shape)
    assert len(kinds(folder)[0]) == nodes
    for format in ('onnx', 'openvino'):
        run = open_in(folder, format, tmp_path / format).run
        if cls is not SwinMLPBackbone:  # blocks of Swin-MLP stay plain
            check_equal(run, model, SHAPES if shape is None else [(1, 3, *shape)])


class Neck(nn.Module):
    def __init__(self):
        super().__init__()
        self.lateral = nn.Conv2d(64, 48, 1)
        self.wide = nn.Sequential(
            nn.Conv2d(48, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 32, 3, padding=1, bias=False)
        )
        self.plain = nn.ModuleList([nn.Conv2d(32, 32, 3, 2, 1), nn.Conv2d(32, 8, 3, padding=1)])

    def forward(self, maps):
        x = self.wide(self.lateral(maps[-1]))
        return x, *(conv(x) for conv in self.plain)


def test_wide_3x3_convolutions_are_nodes(v1, tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict(dict(backbone=v1, neck=Neck())).eval()
    own, others = kinds(write(model, tmp_path / 'out', part='neck'))
    assert own[-2:] == ['Convolution'] * 2
    assert [node.op_type for node in others].count('Conv') == 3
    for format in ('onnx', 'openvino'):
        run = open_in(tmp_path / 'out', format, tmp_path / format).run
        check_equal(run, lambda image: model.neck(v1(image)), error=1e-5)


@pytest.mark.slow
def test_a_position_embedding_is_a_part_of_the_plain_graph(tmp_path):
    model = small_swin(SwinBackbone, use_abs_pos_embed=True, pretrain_img_size=32)
    own, others = kinds(write(model, tmp_path / 'out'))
    assert len(own) == 4
    assert 'Resize' in {node.op_type for node in others}


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_the_library_lies_in_the_folder_and_runs_without_torch(format, exported, tmp_path):
    names = {'deploy.json', 'model.onnx', 'model.onnx.data', load_library()[0]._library._name.rpartition('/')[2]}
    assert {path.name for path in exported.iterdir()} == names
    open_in(exported, format, tmp_path / 'out')
    shutil.copy(runtime.__file__, tmp_path / 'runtime.py')
    code = (
        'import os, sys, numpy, runtime\n'
        'maps = runtime.load(sys.argv[1]).run([numpy.zeros((1, 3, 40, 40), numpy.float32)])\n'
        "assert not {'torch', 'swin_backbone'} & set(sys.modules)\n"
        "threads = os.listdir('/proc/self/task') if sys.argv[2:] == ['openvino', 'linux'] else []\n"
        'assert all(os.sched_getaffinity(int(thread)) == os.sched_getaffinity(0) for thread in threads)'
    )
    run_python('-c', code, 'out', format, sys.platform, folder=tmp_path)


def test_users_register_the_installed_library(exported, v1):
    """Two sessions of a model have different numbers of threads."""
    import onnxruntime

    for threads in (1, 2):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(library_path())
        session = onnxruntime.InferenceSession(str(exported / 'model.onnx'), options)
        check_equal(lambda inputs, session=session: session.run(None, {'image': inputs[0]}), v1, SHAPES[:2])


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_what_does_not_fit_is_refused_in_a_sentence(format, exported, tmp_path):
    shutil.copytree(exported, tmp_path / 'out')
    library = tmp_path / 'out' / load_library()[0]._library._name.rpartition('/')[2]
    whole = library.read_bytes()
    library.write_bytes(whole[:-1] + b'?')
    with pytest.raises(runtime.RuntimeProblem, match='is not the file that was exported'):
        runtime.load(tmp_path / 'out')
    library.write_bytes(whole[:16] + b'\xff\xff\xff\xff' + whole[20:])  # a foreign machine in the ELF header
    info = dict(json.loads((tmp_path / 'out' / 'deploy.json').read_text()), format=format)
    info['sha256'][library.name] = runtime.compute_digest(library)
    (tmp_path / 'out' / 'deploy.json').write_text(json.dumps(info))
    with pytest.raises(runtime.RuntimeProblem, match='is for another system or processor'):
        runtime.load(tmp_path / 'out')
    del info['library']
    (tmp_path / 'out' / 'deploy.json').write_text(json.dumps(info))
    with pytest.raises(runtime.RuntimeProblem, match=r'cannot open .*[Ss]win'):
        runtime.load(tmp_path / 'out')


@pytest.mark.parametrize(
    ('name', 'value'),
    [('heads', 0), ('heads', 3), ('hidden', 8), ('channels', 8), ('window_height', 17), ('version', 3)],
)
def test_wrong_attributes_are_errors(name, value, exported):
    import onnxruntime

    model = onnx.load(str(exported / 'model.onnx'))
    for attribute in (one for node in model.graph.node if node.op_type == 'Block' for one in node.attribute):
        if attribute.name == name:
            attribute.i = value
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library_path())

    def open_and_run():
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        session.run(None, {'image': np.zeros((1, 3, 40, 40), np.float32)})

    with pytest.raises(Exception, match=r'must (be|have)'):
        open_and_run()


@pytest.mark.slow  # test_exported_runtime.py has a whole model in eight bits
@pytest.mark.parametrize(
    'config',
    ['mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py', 'mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'],
)
def test_a_whole_model(config, tmp_path):
    pytest.importorskip('mmseg' if 'mmseg' in config else 'mmdet', reason='the toolbox is not installed')
    cfg, out = small_config(config), tmp_path / 'onnx'
    manifest = export.export_model(cfg, str(save_checkpoint(cfg, tmp_path / 'x.pth')), out, operators='swin')
    assert set(kinds(out)[0]) == {'Embed', 'Block', 'Merge', 'OutputNorm', 'Convolution'}
    assert all(figure.get('equal_labels', figure.get('matched')) == 1 for figure in manifest['verification'])
    picture = np.random.default_rng(0).integers(0, 256, (97, 130, 3), np.uint8)
    (expected,) = runtime.load(out).predict([picture], logits=True)
    (result,) = open_in(out, 'openvino', tmp_path / 'openvino').predict([picture], logits=True)
    figures = verify.compare(result, expected, max_objects=manifest['limits'].get('objects'))
    assert figures.get('equal_labels', figures.get('matched')) == 1
