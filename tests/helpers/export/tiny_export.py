"""Make an exported folder of a model with six operators."""

import json

import onnx
import pytest
from onnx import TensorProto, helper

from swin_backbone.workbench.export import runtime

FITTED = dict(scale=[40, 24], keep_ratio=True)
FREE = ['batch', 'height', 'width', 3]


def model_of(shape):
    """Return a segmentor of two classes, `label = blue > 100`, with the ports of an exported model."""
    nodes = [
        helper.make_node('Cast', ['picture'], ['float'], to=TensorProto.FLOAT),
        helper.make_node('Slice', ['float', 'zero', 'one', 'last'], ['blue']),
        helper.make_node('Squeeze', ['blue', 'last'], ['plane']),
        helper.make_node('Greater', ['plane', 'hundred'], ['over']),
        helper.make_node('Cast', ['over'], ['labels'], to=TensorProto.UINT8),
        helper.make_node('Cast', ['size'], ['own'], to=TensorProto.FLOAT),
    ]
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in dict(zero=0, one=1, last=-1).items()
    ]
    constants.append(helper.make_tensor('hundred', TensorProto.FLOAT, [], [100.0]))
    inputs = [
        helper.make_tensor_value_info('picture', TensorProto.UINT8, shape),
        helper.make_tensor_value_info('size', TensorProto.INT64, [2]),
    ]
    outputs = [
        helper.make_tensor_value_info('labels', TensorProto.UINT8, shape[:3]),
        helper.make_tensor_value_info('own', TensorProto.FLOAT, [2]),
    ]
    graph = helper.make_graph(nodes, 'segmentor', inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 20)], ir_version=9)


def export_to(folder, format='onnx', shape=FREE, resize=FITTED):
    """Write an exported folder, like tools/export.py."""
    folder.mkdir(parents=True)
    onnx.save(model_of(shape), str(folder / 'model.onnx'))
    if format == 'openvino':
        openvino = pytest.importorskip('openvino', reason='openvino is not installed')
        openvino.save_model(openvino.convert_model(str(folder / 'model.onnx')), str(folder / 'model.xml'))
        (folder / 'model.onnx').unlink()
    names = sorted(path.name for path in folder.iterdir())
    info = dict(
        format=format,
        precision='fp32',
        task='segmentation',
        file={'onnx': 'model.onnx', 'openvino': 'model.xml'}[format],
        sha256={name: runtime.compute_digest(folder / name) for name in names},
        inputs=[dict(name='picture', dtype='uint8', shape=shape), dict(name='size', dtype='int64', shape=[2])],
        outputs=[
            dict(name='labels', dtype='uint8', shape=shape[:3]),
            dict(name='own', dtype='float32', shape=[2]),
        ],
        preprocessing=dict(resize=resize, mean=[0, 0, 0], std=[1, 1, 1]),
        limits=dict(pixels=10000),
        classes=['dark', 'bright'],
        palette=[[0, 0, 0], [255, 255, 255]],
        verification=[],
    )
    (folder / 'deploy.json').write_text(json.dumps(info))
    return folder
