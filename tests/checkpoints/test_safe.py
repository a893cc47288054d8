"""Nothing in a checkpoint is executed, and what is no checkpoint is said to be none."""

import io
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer
from small_models import randomised

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, read_checkpoint, trust_checkpoints

ROOT = Path(__file__).parents[2]
needs_allow_list = pytest.mark.skipif(
    not hasattr(torch.serialization, 'safe_globals'), reason='this torch has no list of safe globals'
)


class MakesAFile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def write(path, kind, payload):
    """A backbone with a payload beside its weights, as each kind of file that torch.load takes."""
    contents = {'state_dict': randomised().state_dict(), 'meta': payload}
    if kind == 'pickle':
        path.write_bytes(pickle.dumps(contents, protocol=4))
    else:
        arguments = dict(_use_new_zipfile_serialization=kind != 'legacy')
        torch.save(contents, path, **arguments, pickle_protocol=4 if kind == 'protocol 4' else 2)


@pytest.mark.parametrize('kind', ['zip', 'legacy', 'protocol 4', 'pickle'])
@pytest.mark.parametrize('door', ['load_checkpoint', 'init_cfg', 'list of init_cfg', 'convert_checkpoint'])
def test_a_pickle_that_would_make_a_file_does_not(tmp_path, kind, door):
    path, made = tmp_path / 'weights.pth', tmp_path / 'made'
    write(path, kind, MakesAFile(made))
    cfg = dict(type='Pretrained', checkpoint=str(path))
    backbone = SwinBackbone(arch='nano', init_cfg=[cfg] if door.startswith('list') else cfg)
    before = {key: value.clone() for key, value in backbone.norm0.state_dict().items()}
    doors = {
        'load_checkpoint': lambda: load_checkpoint(backbone, path),
        'convert_checkpoint': lambda: convert_checkpoint(path, tmp_path / 'out.pth', 'timm'),
    }
    with pytest.raises(CheckpointError, match=r'weights\.pth.*refused, because it is more than weights') as error:
        doors.get(door, backbone.init_weights)()
    assert not made.exists()
    assert not (tmp_path / 'out.pth').exists()
    assert all(torch.equal(value, before[key]) for key, value in backbone.norm0.state_dict().items())
    if kind == 'zip':
        assert f'{os.mkdir.__module__}.mkdir' in str(error.value)
    assert f'python tools/convert_checkpoint.py {path} OUT --to mmdet --unsafe-load' in str(error.value)


def test_unsafe_load_lets_it(tmp_path):
    path, made = tmp_path / 'weights.pth', tmp_path / 'made'
    write(path, 'zip', MakesAFile(made))
    assert not load_checkpoint(SwinBackbone(arch='nano'), path, unsafe_load=True).missing
    assert made.is_dir()
    made.rmdir()
    trust_checkpoints(True)
    try:
        assert not load_checkpoint(SwinBackbone(arch='nano'), path).missing
    finally:
        trust_checkpoints(False)
    assert made.is_dir()


def test_the_tool_makes_weights_of_it_when_told_to(tmp_path):
    path, out, made = tmp_path / 'weights.pth', tmp_path / 'out.pth', tmp_path / 'made'
    write(path, 'zip', MakesAFile(made))
    command = [sys.executable, 'tools/convert_checkpoint.py', str(path), str(out), '--to', 'mmdet']
    python_path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    environment = {**os.environ, 'PYTHONPATH': python_path, 'PYTHONWARNINGS': 'ignore'}
    results = [
        subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True)
        for more in ([], ['--unsafe-load'])
    ]
    refused, done = results
    assert refused.returncode == 1
    assert 'refused, because it is more than weights' in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f'{path} (mmdet or mmseg) to {out} (mmdet or mmseg): 125 tensors')
    assert made.is_dir()
    assert not load_checkpoint(SwinBackbone(arch='nano'), out).missing


@needs_allow_list
def test_everything_a_refused_file_wants_is_named(tmp_path):
    write(tmp_path / 'weights.pth', 'zip', {'a': pytest.approx, 'b': re.compile})
    with pytest.raises(CheckpointError, match=r'more than weights \(it wants .*approx, re\.compile\)'):
        read_checkpoint(tmp_path / 'weights.pth')


@needs_allow_list
@pytest.mark.parametrize('kind', ['zip', 'legacy'])
def test_what_mmengine_saves_is_let_in(tmp_path, kind):
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    write(tmp_path / 'weights.pth', kind, {'loss': history, 'scalar': np.float64(3), 'array': np.arange(3)})
    meta = read_checkpoint(tmp_path / 'weights.pth')['meta']
    assert meta['loss'].mean() == 1.5
    assert meta['scalar'] == 3
    assert meta['array'].tolist() == [0, 1, 2]


class Reaches:
    def __init__(self, owner, name):
        self.reach = owner, name

    def __reduce__(self):
        return getattr, self.reach


@needs_allow_list
@pytest.mark.parametrize(('owner', 'name'), [(torch.nn.Linear, '__init__'), (HistoryBuffer, '__init__')])
def test_a_checkpoint_may_look_up_nothing_else(tmp_path, owner, name):
    write(tmp_path / 'weights.pth', 'zip', Reaches(owner, name))
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(tmp_path / 'weights.pth')


def zip_of_text():
    with zipfile.ZipFile(buffer := io.BytesIO(), 'w') as archive:
        archive.writestr('notes.txt', 'hello')
    return buffer.getvalue()


def torchscript():
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), buffer := io.BytesIO())
    return buffer.getvalue()


def file_of(kind):
    state = randomised().state_dict()
    if kind == 'safetensors':
        return safetensors.torch.save(state)
    torch.save(state, buffer := io.BytesIO(), _use_new_zipfile_serialization=kind == 'zip')
    return buffer.getvalue()


BROKEN = {
    'empty': (lambda: b'', 'the file is empty'),
    'page': (lambda: b'\n<!DOCTYPE html><html><body>Sign in</body></html>', r'a web page \(HTML\)'),
    'pointer': (lambda: b'version https://git-lfs.github.com/spec/v1\noid sha256:00\n', 'git lfs pull'),
    'picture': (lambda: b'\x89PNG\r\n\x1a\n' + bytes(100), 'neither a file of torch.save nor of safetensors'),
    'text': (lambda: b'hello', 'neither a file of torch.save nor of safetensors'),
    'archive': (zip_of_text, 'truncated, damaged or no checkpoint'),
    'list': (lambda: pickle.dumps([1, 2], protocol=2), 'truncated, damaged or no checkpoint'),
    'program': (torchscript, 'TorchScript program'),
    'half a zip': (lambda: file_of('zip')[:-20000], 'truncated, damaged'),
    'the start of a zip': (lambda: file_of('zip')[:40], 'truncated, damaged'),
    'half a legacy file': (lambda: file_of('legacy')[:-20000], 'truncated, damaged'),
    'the start of a legacy file': (lambda: file_of('legacy')[:40], 'truncated, damaged'),
    'half safetensors': (lambda: file_of('safetensors')[:-20000], 'truncated or damaged'),
    'the start of safetensors': (lambda: file_of('safetensors')[:40], 'truncated or damaged'),
}


@pytest.mark.parametrize('kind', BROKEN)
@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_what_is_no_checkpoint_is_one_sentence_and_changes_nothing(tmp_path, kind, suffix):
    contents, message = BROKEN[kind]
    path = tmp_path / f'weights.{suffix}'
    path.write_bytes(contents())
    backbone = SwinBackbone(arch='nano')
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(backbone, path)
    assert str(error.value).startswith(f'checkpoint {str(path)!r}: ')
    assert len(str(error.value).splitlines()) == 1
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize('first', [b'<', b'P', b'\x80', b' '])
def test_a_length_of_a_header_is_not_taken_for_text(tmp_path, first):
    """safetensors begin with the length of their header, whose lowest byte may be anything."""
    contents = safetensors.torch.save({'weight': torch.ones(1)})
    length = int.from_bytes(contents[:8], 'little')
    padding = (first[0] - length) % 256
    header = contents[8 : 8 + length] + b' ' * padding
    path = tmp_path / 'weights.safetensors'
    path.write_bytes((length + padding).to_bytes(8, 'little') + header + contents[8 + length :])
    assert path.read_bytes()[:1] == first
    assert read_checkpoint(path) == {'weight': 1}


def test_unsafe_load_says_what_is_not_installed(tmp_path):
    (tmp_path / 'weights.pth').write_bytes(
        file_of('zip').replace(b'collections\nOrderedDict', b'no_such_mod\nOrderedDict')
    )
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=r"needs what is not installed here .*'no_such_mod'"):
        read_checkpoint(tmp_path / 'weights.pth', unsafe_load=True)


def test_what_kind_of_file_it_is_its_contents_say(tmp_path):
    (tmp_path / 'weights.pth').write_bytes(file_of('safetensors'))
    (tmp_path / 'weights.safetensors').write_bytes(file_of('zip'))
    for name in ('weights.pth', 'weights.safetensors'):
        assert not load_checkpoint(SwinBackbone(arch='nano'), tmp_path / name).missing


@pytest.mark.parametrize(
    ('address', 'message'),
    [
        ('missing.pth', "checkpoint 'missing.pth' is no file"),
        ('/tmp', 'is no file'),
        ('s3://bucket/weights.pth', "'s3://bucket/weights.pth': a path, file://, http:// or https:// was expected"),
    ],
)
def test_an_address_that_is_none(address, message):
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(address)
