"""Changed or damaged exported folders give an error of a sentence, before a runtime reads the files."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('onnx', reason='onnx is not installed')
pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')

import onnx
from helpers.export.tiny_export import FREE, export_to, model_of

from swin_backbone.export import runtime


@pytest.fixture(scope='module', params=['onnx', 'openvino'])
def whole(request, tmp_path_factory):
    return export_to(tmp_path_factory.mktemp('exported') / request.param, request.param)


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / 'out')
    return tmp_path / 'out'


def picture(height=24, width=40):
    return np.full((height, width, 3), 200, np.uint8)


def test_what_is_whole_runs(folder):
    (result,) = runtime.load(folder).predict([picture()])
    assert (result['labels'] == 1).all()


DEEP = '[' * 100_000 + ']' * 100_000
# entry of deploy.json: wrong values
ENTRIES = {
    'format': ['', 'ONNX', 5, None, ['onnx'], {}, 'torch', 'x' * 10**6],
    'precision': ['fp8', None, 32, {'fp32': 1}],
    'task': ['detection', 'maps', 'boxes', 'instances', 0, None, [], {}],
    'file': ['', '.', '..', '../model.onnx', '/etc/passwd', '/dev/zero', 'other.onnx', 'a\0b', 5, None, ['model.onnx'],
             'x' * 5000, 'deploy.json'],
    'sha256': [None, {}, [], 'abc', 5, {'model.onnx': 5}, {'../model.onnx': 'a'}, {'/dev/zero': 'a'}, {'..': ''},
               {'a\0b': ''}, {'x' * 5000: ''}, {'deploy.json': '0' * 64}],
    'inputs': [None, [], {}, [None], 'picture', [{'name': 'picture'}], [{'name': 5, 'shape': []}],
               [{'name': 'picture', 'shape': [1, 40, 40, 3]}, {'name': 'size', 'shape': [2]}],
               [{'name': 'image', 'shape': FREE}, {'name': 'size', 'shape': [2]}],
               [{'name': 'picture', 'shape': [10**30, 'h', 'w', 3]}, {'name': 'size', 'shape': [2]}],
               [{'name': 'picture', 'shape': FREE}] * 3],
    'outputs': [None, [], {}, [{'name': 'labels'}], [{'name': 'scores', 'shape': ['n']}],
                [{'name': 'labels', 'shape': ['n']}] * 5],
    'preprocessing': [None, {}, [], 5, {'resize': 5}, {'resize': {}}, {'resize': {'scale': [40, 24]}}],
    'preprocessing.resize.scale': [None, 40, [], [40], [40, 24, 3], [0, 24], [-40, 24], [10**9, 10**9], [1e3, 24],
                                   ['40', '24'], [True, True]],
    'preprocessing.resize.keep_ratio': [None, 1, 'yes', []],
    'limits': [None, {}, [], 5],
    'limits.pixels': [0, -1, 10**12, 1e9, True, '10000', None, [10000]],
    'classes': [None, 'ab', [1, 2], [[]], {'dark': 0}, ['dark', 'bright', 'third']],
    'palette': [None, 5, 'red', [[0, 0]], [[0, 0, 0]], [[0, 0, 300]] * 2, [['0', '0', '0']] * 2, [[0.5, 0, 0]] * 2],
}  # fmt: skip


def refused(folder, record_fault, kind='tampered'):
    """Return the error of a refused folder in Python."""
    with pytest.raises(runtime.RuntimeProblem) as caught:
        list(runtime.load(folder).predict([picture()]))
    said = str(caught.value)
    assert len(said) < 8000
    assert str(folder) in said or 'part of a model' in said
    record_fault(kind)
    return said


@pytest.mark.parametrize('where', ENTRIES)
def test_an_entry_that_is_changed_or_missing(record_fault, folder, where):
    info = json.loads((folder / 'deploy.json').read_text())
    for value in [*ENTRIES[where], ...]:
        changed = copy.deepcopy(info)
        holder = changed
        *outer, last = where.split('.')
        for key in outer:
            holder = holder[key]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
        (folder / 'deploy.json').write_text(json.dumps(changed))
        assert last in refused(folder, record_fault) or where in ('task', 'format')


@pytest.mark.parametrize(
    'text',
    ['', 'null', '5', '[]', '"onnx"', '{', '{}', '{"format": NaN}', DEEP, '{"a":' * 50_000, '\x00' * 100, '\ufeff{}',
     '1' * 10_000, ' ' * (1 << 25), '{"format": "onnx"}' * 2,
     '{"classes": ["\\ud800"]}'],
)  # fmt: skip
def test_a_manifest_that_is_none(record_fault, folder, text):
    (folder / 'deploy.json').write_text(text)
    refused(folder, record_fault)


def test_what_nothing_reads_may_be_deep(record_fault, folder):
    text = (folder / 'deploy.json').read_text()
    (folder / 'deploy.json').write_text(text.replace('"verification": []', f'"verification": {DEEP}'))
    assert 'cannot be read' in refused(folder, record_fault)


def test_a_file_of_the_model_that_is_damaged(record_fault, folder):
    for path in sorted(folder.glob('model.*')):
        data = path.read_bytes()
        damages = [b'', data[:-1], data[: len(data) // 2], data + b'\0', b'\xff' * 1000, b'<net></net>', data[::-1]]
        damages += [
            data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :] for at in range(0, len(data), len(data) // 7 + 1)
        ]
        for damage in damages:
            if damage == data:
                continue
            path.write_bytes(damage)
            assert f'{path} is not the file that was exported' in refused(folder, record_fault)
        path.write_bytes(data)
        path.unlink()
        assert f'{path} is missing' in refused(folder, record_fault)
        path.mkdir()
        assert f'{path} is missing' in refused(folder, record_fault)
        path.rmdir()
        os.mkfifo(path)
        assert f'{path} is missing' in refused(folder, record_fault)
        path.unlink()
        path.symlink_to('/dev/zero')
        assert f'{path} is missing' in refused(folder, record_fault)
        path.unlink()
        path.symlink_to('/etc/hostname' if Path('/etc/hostname').is_file() else __file__)
        assert f'{path} is not the file that was exported' in refused(folder, record_fault)
        path.unlink()
        path.write_bytes(data)
    runtime.load(folder)


def test_a_manifest_that_is_no_file(record_fault, folder):
    path = folder / 'deploy.json'
    path.unlink()
    os.mkfifo(path)  # opening a pipe would never end
    assert 'no regular file' in refused(folder, record_fault)
    path.unlink()
    path.symlink_to('/dev/zero')
    assert 'no regular file' in refused(folder, record_fault)
    path.unlink()
    path.mkdir()
    refused(folder, record_fault)


def test_a_model_that_its_runtime_cannot_open(record_fault, folder):
    """A file may be changed together with the SHA-256 in deploy.json. Then the runtime refuses the file."""
    info = json.loads((folder / 'deploy.json').read_text())
    path = folder / info['file']
    for data in (b'', b'nonsense', b'\x08' * 100, path.read_bytes()[:60], b'<?xml version="1.0"?><net></net>'):
        path.write_bytes(data)
        info['sha256'][path.name] = runtime.file_digest(path)
        (folder / 'deploy.json').write_text(json.dumps(info))
        said = refused(folder, record_fault)
        assert f'cannot open {path}: ' in said or f'{path} has the' in said
        assert '\n' not in said


@pytest.mark.parametrize('location', ['../secret', '/etc/passwd', '/dev/zero', 'pipe', 'absent'])
def test_weights_in_another_file(record_fault, tmp_path, location):
    folder = export_to(tmp_path / 'out')
    (tmp_path / 'secret').write_bytes(bytes(100))
    os.mkfifo(folder / 'pipe')
    model = model_of(FREE)
    weight = next(one for one in model.graph.initializer if one.name == 'hundred')
    weight.Clear()
    weight.name, weight.data_type, weight.data_location = 'hundred', 1, onnx.TensorProto.EXTERNAL
    weight.dims.extend([1])
    for key, value in dict(location=location, offset='0', length='4').items():
        weight.external_data.add(key=key, value=value)
    (folder / 'model.onnx').write_bytes(model.SerializeToString())
    info = json.loads((folder / 'deploy.json').read_text())
    info['sha256']['model.onnx'] = runtime.file_digest(folder / 'model.onnx')
    (folder / 'deploy.json').write_text(json.dumps(info))
    assert 'cannot open' in refused(folder, record_fault)


@pytest.mark.parametrize(
    ('argument', 'values'),
    [
        ('device', ['meta', 'cpu:x', 'cpu,gpu', '', 'a\0b', 5, None, ['cpu']]),
        ('threads', [0, -1, 10**9, 'x', 1.5, True]),
    ],
)
def test_an_argument_that_is_another_thing(record_fault, folder, argument, values):
    for value in values:
        with pytest.raises(runtime.RuntimeProblem, match=rf'{argument} ') as said:
            runtime.load(folder, **{argument: value})
        assert repr(value) in str(said.value)
        record_fault('bad_commands')


def test_what_is_no_picture_or_no_batch(record_fault, folder):
    model = runtime.load(folder)
    for wrong in ([[1]], None, 'a.png', np.zeros((24, 40)), np.zeros((24, 40, 4), np.uint8), np.zeros(3, np.uint8),
                  np.zeros((0, 0, 3), np.uint8), np.full((24, 40, 3), np.nan, np.float32)):  # fmt: skip
        with pytest.raises(runtime.RuntimeProblem, match=r'picture takes uint8 pixels \(h, w, 3\), got'):
            list(model.predict([wrong]))
        record_fault('bad_pictures')
    for wrong in (None, 'a.png', 5):
        with pytest.raises(runtime.RuntimeProblem, match='pictures takes a list of pictures, got'):
            list(model.predict(wrong))
        record_fault('bad_pictures')
    for batch in (0, -1, 1.5, None, 10**30):
        with pytest.raises(runtime.RuntimeProblem, match='batch takes a whole number from 1 to 1073741824, got'):
            list(model.predict([picture()], batch=batch))
        record_fault('bad_commands')


def test_an_input_of_the_wrong_kind_is_named(record_fault, folder):
    model = runtime.load(folder)
    size, pixels = np.array([24, 40]), picture()[None]
    for inputs, says in {
        'none': ([], r'inputs takes a list of 2 arrays, got \[\]'),
        'text': (['a.png', size], r"picture takes uint8 values \(batch, height, width, 3\), got 'a.png'"),
        'float': ([pixels * np.nan, size], r'picture takes uint8 values .*, got float64 \(1, 24, 40, 3\)'),
        'four channels': ([pixels[..., [0, 1, 2, 2]], size], r'got uint8 \(1, 24, 40, 4\)'),
        'empty': ([pixels[:, :0], size], r'picture takes at least one value, got uint8 \(1, 0, 40, 3\)'),
        'no size': ([pixels, None], r'size takes int64 values \(2\), got None'),
    }.values():
        with pytest.raises(runtime.RuntimeProblem, match=says):
            model.run(inputs)
        record_fault('bad_pictures')


def test_a_class_that_has_no_name(record_fault, folder):
    info = json.loads((folder / 'deploy.json').read_text())
    info.update(classes=['dark'], palette=[])
    (folder / 'deploy.json').write_text(json.dumps(info))
    with pytest.raises(runtime.RuntimeProblem, match=r'found class 1, and .* has 1'):
        list(runtime.load(folder).predict([picture()]))
    record_fault('tampered')


def test_a_scale_asks_for_no_memory(record_fault, folder):
    info = json.loads((folder / 'deploy.json').read_text())
    info['preprocessing']['resize'] = dict(scale=[65535, 65535], keep_ratio=False)  # 12 GiB
    (folder / 'deploy.json').write_text(json.dumps(info))
    model = runtime.load(folder)
    with pytest.raises(runtime.RuntimeProblem, match='65535x65535 to the model, is more than the 10000 pixels'):
        model.prepare(picture())
    record_fault('tampered')


def run(folder, *pictures):
    command = [sys.executable, runtime.__file__, str(folder), *map(os.fsencode, pictures)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_one_bad_picture_among_good_ones(record_fault, tmp_path):
    """A bad picture for a model of fixed size is named and skipped. The exit status is 1."""
    import cv2

    exported = export_to(tmp_path / 'out', shape=[1, 24, 40, 3])
    info = json.loads((exported / 'deploy.json').read_text())
    (exported / 'deploy.json').write_text(json.dumps(dict(info, preprocessing=dict(resize=None))))
    bad = {}
    for name, data in {
        'size.png': cv2.imencode('.png', picture(30, 30))[1].tobytes(),
        'large.png': cv2.imencode('.png', picture(200, 200))[1].tobytes(),
        'dot.png': cv2.imencode('.png', picture(1, 1))[1].tobytes(),
        'text.png': b'no picture',
        'empty.png': b'',
    }.items():
        bad[name] = tmp_path / name
        bad[name].write_bytes(data)
    os.mkfifo(tmp_path / 'pipe.png')
    good = [tmp_path / 'first.png', tmp_path / os.fsdecode(b'caf\xe9.png')]
    for path in good:
        path.write_bytes(cv2.imencode('.png', picture())[1].tobytes())
    strange = [tmp_path / 'pipe.png', Path('/dev/zero'), tmp_path / 'absent.png', tmp_path, tmp_path / ('x' * 300)]
    status, stdout, stderr = run(exported, good[0], *bad.values(), *strange, good[1])
    assert status == 1
    assert 'Traceback' not in stderr
    assert stdout.count('bright 100%') == 2
    assert 'caf\\udce9.png bright 100%' in stdout
    lines = stderr.splitlines()
    assert [line.split(': ')[:2] for line in lines] == [['skipped', str(path)] for path in [*bad.values(), *strange]]
    assert 'takes pictures of 24x40 pixels, and one became 30x30' in lines[0]
    assert 'more than the 10000 pixels' in lines[1]
    assert 'one became 1x1' in lines[2]
    assert 'it is an empty file' in lines[4]
    assert 'OpenCV' not in stderr
    record_fault('bad_pictures', len(lines))
    assert run(exported, *good)[0] == 0
