"""Changed or damaged exported folders give an error of a sentence, before a runtime reads the files."""

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

from helpers import edited_json
from helpers.export.tiny_export import export_to

from swin_backbone.workbench.export import runtime


@pytest.fixture(scope='module', params=['onnx', 'openvino'])
def whole(request, tmp_path_factory):
    return export_to(tmp_path_factory.mktemp('exported') / request.param, request.param)


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / 'out')
    return tmp_path / 'out'


def picture(height=24, width=40):
    return np.full((height, width, 3), 200, np.uint8)


def refused(folder, record_fault):
    """Return the error of a refused folder: one sentence."""
    with pytest.raises(runtime.RuntimeProblem) as caught:
        runtime.load(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert '\n' not in message
    record_fault('tampered')
    return message


def test_an_entry_that_is_missing(record_fault, folder):
    info = json.loads((folder / 'deploy.json').read_text())
    for name in runtime.REQUIRED_KEYS:
        (folder / 'deploy.json').write_text(json.dumps({key: value for key, value in info.items() if key != name}))
        assert f'has no {name}: export the model again' in refused(folder, record_fault)


@pytest.mark.parametrize(
    'text',
    ['', 'null', '5', '[]', '"onnx"', '{', '{}', '[' * 100_000, '\x00' * 100, '\ufeff{}', '{"format": "onnx"}' * 2],
)
def test_a_manifest_that_is_none(record_fault, folder, text):
    (folder / 'deploy.json').write_text(text)
    refused(folder, record_fault)


@pytest.mark.parametrize('value', ['torch', [], None])
def test_a_format_that_is_none(record_fault, folder, value):
    with edited_json(folder / 'deploy.json') as info:
        info['format'] = value
    assert f'format takes onnx or openvino, got {value!r}' in refused(folder, record_fault)


def test_a_file_of_the_model_that_is_damaged(record_fault, folder):
    for path in sorted(folder.glob('model.*')):
        data = path.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        for damage in (b'', data[:-1], data + b'\0', data[::-1], flipped):
            path.write_bytes(damage)
            assert f'{path} is not the file that was exported' in refused(folder, record_fault)
        path.unlink()
        assert f'{path} is missing' in refused(folder, record_fault)
        os.mkfifo(path)
        assert f'{path} is missing' in refused(folder, record_fault)
        path.unlink()
        path.write_bytes(data)
    runtime.load(folder)


def test_a_file_outside_the_folder_or_without_a_digest(record_fault, folder, monkeypatch):
    """A library runs code when it is opened, so it is checked before."""
    info = json.loads((folder / 'deploy.json').read_text())
    outside, inside = folder.parent / 'evil.so', folder / 'libswin.so'
    for path in (outside, inside, folder / 'sub' / 'libswin.so'):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b'evil')
    (folder / 'link.so').symlink_to(outside)
    (folder / 'linked').symlink_to(folder.parent)
    monkeypatch.setattr(runtime.ctypes, 'CDLL', lambda *_: pytest.fail('a library was opened'))
    digest, model = runtime.compute_digest(outside), info['sha256']
    names = (str(outside), '../evil.so', 'link.so', 'linked/evil.so', 'sub/libswin.so', './libswin.so', 'libswin.so/',
             '..', '.', '', 'libswin.so\0', None, 5, ['libswin.so'], {}, True)  # fmt: skip
    changes = [dict(library=name) for name in (*names, 'libswin.so')]  # without a digest
    changes += [dict(library='libswin.so', sha256={**model, 'libswin.so': wrong}) for wrong in ('0' * 64, '', None, 1)]
    for name in filter(lambda name: isinstance(name, str), names):
        changes += [dict(library=name, sha256={**model, name: digest})]
    changes += [dict(file=name) for name in (*names, 'other.onnx')]
    changes += [dict(file='../evil.so', sha256={'../evil.so': digest}), dict(sha256=[*model]), dict(sha256=None)]
    for change in changes:
        (folder / 'deploy.json').write_text(json.dumps({**info, **change}))
        refused(folder, record_fault)


def test_a_manifest_that_is_no_file(record_fault, folder):
    path = folder / 'deploy.json'
    path.unlink()
    os.mkfifo(path)  # opening a pipe would never end
    assert 'it has no file deploy.json' in refused(folder, record_fault)
    path.unlink()
    path.symlink_to('/dev/zero')
    assert 'it has no file deploy.json' in refused(folder, record_fault)


def test_a_model_that_its_runtime_cannot_open(record_fault, folder):
    """A file may be changed together with the SHA-256 in deploy.json. Then the runtime refuses the file."""
    info = json.loads((folder / 'deploy.json').read_text())
    path = folder / info['file']
    for data in (b'', b'nonsense', b'\x08' * 100, path.read_bytes()[:60], b'<?xml version="1.0"?><net></net>'):
        path.write_bytes(data)
        info['sha256'][path.name] = runtime.compute_digest(path)
        (folder / 'deploy.json').write_text(json.dumps(info))
        assert f'cannot open {path}' in refused(folder, record_fault)


def test_what_is_no_picture(record_fault, folder):
    model = runtime.load(folder)
    for wrong in ([[1]], None, 'a.png', np.zeros((24, 40)), np.zeros((24, 40, 4), np.uint8), np.zeros(3, np.uint8),
                  np.zeros((0, 0, 3), np.uint8), np.full((24, 40, 3), np.nan, np.float32)):  # fmt: skip
        with pytest.raises(runtime.RuntimeProblem, match=r'picture takes uint8 pixels \(h, w, 3\), got'):
            list(model.predict([wrong]))
        record_fault('bad_pictures')


def test_an_input_of_the_wrong_kind_is_named(record_fault, folder):
    model = runtime.load(folder)
    size, pixels = np.array([24, 40]), picture()[None]
    for inputs, says in {
        'none': ([], 'inputs takes 2 arrays, got 0'),
        'text': (['a.png', size], r"picture takes uint8 values \(batch, height, width, 3\), got 'a.png'"),
        'float': ([pixels * np.nan, size], r'picture takes uint8 values .*, got float64 \(1, 24, 40, 3\)'),
        'four channels': ([pixels[..., [0, 1, 2, 2]], size], r'got uint8 \(1, 24, 40, 4\)'),
        'empty': ([pixels[:, :0], size], r'picture takes at least one value, got uint8 \(1, 0, 40, 3\)'),
        'no size': ([pixels, None], r'size takes int64 values \(2\), got None'),
    }.values():
        with pytest.raises(runtime.RuntimeProblem, match=says):
            model.run(inputs)
        record_fault('bad_pictures')


def run(folder, *pictures):
    command = [sys.executable, runtime.__file__, str(folder), *map(os.fsencode, pictures)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_one_bad_picture_among_good_ones(record_fault, tmp_path):
    """A bad picture for a model of fixed size is named and skipped. The exit status is 1."""
    import cv2

    exported = export_to(tmp_path / 'out', shape=[1, 24, 40, 3], resize=None)
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
    assert 'picture takes uint8 values (1, 24, 40, 3), got uint8 (1, 30, 30, 3)' in lines[0]
    assert 'more than the 10000 pixels' in lines[1]
    assert 'got uint8 (1, 1, 1, 3)' in lines[2]
    assert 'it is empty, damaged' in lines[4]
    assert 'OpenCV' not in stderr
    record_fault('bad_pictures', len(lines))
    assert run(exported, *good)[0] == 0
