"""Nothing in a checkpoint is executed, and what is no checkpoint is said to be none."""

import io
import os
import pickle
import random
import re
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.checkpoints.attacks import archive, call, name
from helpers.in_process import run
from helpers.models.small_models import randomised
from mmengine.logging import HistoryBuffer

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, read_checkpoint, trust_checkpoints


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
def test_a_pickle_that_would_make_a_file_does_not(record_fault, tmp_path, kind, door):
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
    record_fault('doors')


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
    command = ['tools/convert_checkpoint.py', path, out, '--to', 'mmdet']
    refused = run(*command)
    try:
        done = run(*command, '--unsafe-load')
    finally:
        trust_checkpoints(False)
    assert refused.returncode == 1
    assert 'refused, because it is more than weights' in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f'{path} (mmdet or mmseg) to {out} (mmdet or mmseg): 125 tensors')
    assert made.is_dir()
    assert not load_checkpoint(SwinBackbone(arch='nano'), out).missing


def test_everything_a_refused_file_wants_is_named(tmp_path):
    write(tmp_path / 'weights.pth', 'zip', {'a': pytest.approx, 'b': re.compile})
    with pytest.raises(CheckpointError, match=r'more than weights \(it wants .*approx, re\.compile\)'):
        read_checkpoint(tmp_path / 'weights.pth')


def everything():
    """What training scripts keep beside weights, and tensors of every kind."""
    torch.manual_seed(0)
    flat = torch.arange(24.0)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
             torch.uint8, torch.complex64, torch.complex128]  # fmt: skip
    tensors = {str(kind): torch.randn(3, 2).to(kind) for kind in kinds}
    tensors.update(
        view=flat[4:16].view(3, 4).t(),
        of_the_same=flat,
        strided=flat[::3],
        expanded=torch.ones(1, 3).expand(4, 3),
        empty=torch.empty(0, 5),
        number=torch.tensor(2.5),
        truths=torch.tensor([True, False]),
        parameter=torch.nn.Parameter(torch.ones(2)),
        images=torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
    )
    module = torch.nn.BatchNorm2d(2)
    adam = torch.optim.AdamW(module.parameters())
    module(torch.randn(2, 2, 3, 3)).sum().backward()
    adam.step()
    return {
        'tensors': tensors,
        'state_dict': module.state_dict(),
        'optimizer': adam.state_dict(),
        'numbers': [0, -1, 300, 70000, -(2**40), 2**100, 1.5, -0.0, float('inf'), 1 + 2j, True, None],
        'strings': ('', 'a', 'Straße', '漢字', '😀' * 100, b'', b'bytes\xff'),
        'milestones': Counter([8, 11, 11]),
        'sets': [{1, 'a', (2, 'b')}, set()],
        'size': tuple(torch.Size([2, 3])),
        'nested': {1: {'a': [[], [{}], ()]}, (1, 'x'): OrderedDict(b=1)},
        'arrays': [
            np.arange(6.0).reshape(2, 3),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.array(3, '>i4'),
            np.array([True, False]),
            np.zeros((0, 2), np.float16),
            np.arange(300, dtype=np.uint8),
        ],
        'scalars': [np.float64(3), np.float32(0.1), np.int64(-5), np.bool_(True)],
        'random': random.getstate(),
        'numpy_random': np.random.RandomState(0).get_state(),
        'torch_random': torch.get_rng_state(),
    }


def assert_same(read, expected):
    if isinstance(expected, torch.Tensor):
        assert type(read) is torch.Tensor
        assert (read.dtype, read.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(read, expected)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert type(read) is type(expected)
        assert read.dtype == expected.dtype.newbyteorder('=')
        np.testing.assert_array_equal(read, expected)
    elif isinstance(expected, dict):
        assert type(read) is type(expected)
        assert list(read) == list(expected)
        for key, value in expected.items():
            assert_same(read[key], value)
        assert getattr(read, '_metadata', None) == getattr(expected, '_metadata', None)
    elif isinstance(expected, (list, tuple)):
        assert type(read) is type(expected)
        assert len(read) == len(expected)
        for item, value in zip(read, expected):
            assert_same(item, value)
    else:
        assert read == expected
        assert type(read) is type(expected)


@pytest.mark.parametrize('kind', ['zip', 'legacy', 'protocol 3', 'protocol 4', 'protocol 5'])
def test_what_torch_saves_comes_back_bit_by_bit(tmp_path, kind):
    expected = everything()
    protocol = int(kind[-1]) if 'protocol' in kind else 2
    torch.save(expected, tmp_path / 'a.pth', pickle_protocol=protocol, _use_new_zipfile_serialization=kind != 'legacy')
    read = read_checkpoint(tmp_path / 'a.pth')
    assert_same(read, expected)
    tensors = read['tensors']
    assert tensors['view'].untyped_storage().data_ptr() == tensors['of_the_same'].untyped_storage().data_ptr()
    assert read['arrays'][0].flags.writeable


@pytest.mark.parametrize('kind', ['zip', 'legacy', 'protocol 4'])
def test_what_mmengine_saves_is_let_in(tmp_path, kind):
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    shared = {'a': 1}
    write(tmp_path / 'weights.pth', kind, {'loss': history, 'dtype': torch.float16, 'both': [shared, shared]})
    meta = read_checkpoint(tmp_path / 'weights.pth')['meta']
    assert meta['loss'].mean() == 1.5
    meta['loss'].update(6.0)
    assert meta['loss'].statistics('max') == 6
    assert meta['dtype'] == 'torch.float16'
    assert meta['both'][0] is meta['both'][1]


def test_a_history_brings_no_methods_of_its_own(tmp_path):
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    before = dict(HistoryBuffer._statistics_methods)
    HistoryBuffer._statistics_methods['worst'] = HistoryBuffer.max
    try:
        write(tmp_path / 'weights.pth', 'zip', {'loss': history})
    finally:
        del HistoryBuffer._statistics_methods['worst']
    loss = read_checkpoint(tmp_path / 'weights.pth')['meta']['loss']
    assert HistoryBuffer._statistics_methods == before
    assert set(vars(loss)) == {'max_length', '_log_history', '_count_history'}


def test_tensors_go_where_they_are_wanted(tmp_path):
    torch.save({'flat': (flat := torch.ones(4)), 'view': flat[1:]}, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth', map_location='meta')
    assert {tensor.device.type for tensor in read.values()} == {'meta'}
    assert [tuple(tensor.shape) for tensor in read.values()] == [(4,), (3,)]


@pytest.mark.parametrize('where', [0.1, 0.5, 0.9])
def test_64_overwritten_bytes_are_noticed(record_fault, tmp_path, where):
    torch.save({'state_dict': randomised().state_dict()}, tmp_path / 'a.pth')
    contents = bytearray((tmp_path / 'a.pth').read_bytes())
    place = int(len(contents) * where)
    contents[place : place + 64] = bytes(byte ^ 1 for byte in contents[place : place + 64])
    (tmp_path / 'a.pth').write_bytes(contents)
    with pytest.raises(CheckpointError, match=r"damaged .*Bad CRC-32 for file '.*/data/\d+'"):
        read_checkpoint(tmp_path / 'a.pth')
    record_fault('damages')


def test_how_much_memory_may_be_said(tmp_path, monkeypatch):
    torch.save({'a': torch.ones(1 << 20)}, tmp_path / 'a.pth')
    monkeypatch.setenv('SWIN_BACKBONE_LOAD_MIB', '3')
    with pytest.raises(CheckpointError, match=r'more memory than the 3 MiB .*SWIN_BACKBONE_LOAD_MIB'):
        read_checkpoint(tmp_path / 'a.pth')
    monkeypatch.setenv('SWIN_BACKBONE_LOAD_MIB', '16')
    assert read_checkpoint(tmp_path / 'a.pth')['a'].sum() == 1 << 20
    monkeypatch.setenv('SWIN_BACKBONE_LOAD_MIB', '1 GB')
    with pytest.raises(CheckpointError, match="SWIN_BACKBONE_LOAD_MIB takes a number of MiB, got '1 GB'"):
        read_checkpoint(tmp_path / 'a.pth')


def test_long_training_logs_are_within_the_memory_allowed(tmp_path):
    """A small model trained for long: the file is logs, which are strings in a pickle."""
    logs = {str(i): HistoryBuffer(np.random.rand(300_000).tolist(), [1] * 300_000) for i in range(8)}
    torch.save({'message_hub': logs}, tmp_path / 'a.pth')
    assert (tmp_path / 'a.pth').stat().st_size > 20 << 20
    assert len(read_checkpoint(tmp_path / 'a.pth')['message_hub']['7']._log_history) == 300_000


class Reaches:
    def __init__(self, owner, name):
        self.reach = owner, name

    def __reduce__(self):
        return getattr, self.reach


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
def test_what_is_no_checkpoint_is_one_sentence_and_changes_nothing(record_fault, tmp_path, kind, suffix):
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
    record_fault('damages')


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
    (tmp_path / 'weights.pth').write_bytes(archive(call(name('no_such_mod', 'Weights'))))
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=r"needs what is not installed here .*'no_such_mod'"):
        read_checkpoint(tmp_path / 'weights.pth', unsafe_load=True)


def test_what_kind_of_file_it_is_its_contents_say(tmp_path):
    (tmp_path / 'weights.pth').write_bytes(file_of('safetensors'))
    (tmp_path / 'weights.safetensors').write_bytes(file_of('zip'))
    for path in (tmp_path / 'weights.pth', tmp_path / 'weights.safetensors'):
        assert not load_checkpoint(SwinBackbone(arch='nano'), path).missing


@pytest.mark.parametrize(
    ('address', 'message'),
    [
        ('missing.pth', "checkpoint 'missing.pth': there is no such file"),
        ('/tmp', "checkpoint '/tmp': it is a folder without model.safetensors or pytorch_model.bin"),
        ('s3://bucket/weights.pth', "'s3://bucket/weights.pth': a path, file://, http:// or https:// was expected"),
    ],
)
def test_an_address_that_is_none(address, message):
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(address)
