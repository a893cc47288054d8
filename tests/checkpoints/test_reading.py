"""Read files without execution of code. Raise an error of one sentence for a file without weights."""

import contextlib
import io
import os
import pickle
import random
import sys
import tarfile
import types
import zipfile
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.checkpoints.pickles import Reduced, makes_folder, saved
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, read_checkpoint, reading, trust_checkpoints


def write(path, kind, payload):
    """Write weights of a backbone and a payload in a file format of torch.load."""
    contents = {'state_dict': randomised().state_dict(), 'meta': payload}
    if kind == 'pickle':
        path.write_bytes(pickle.dumps(contents, protocol=4))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=kind != 'legacy')


@pytest.mark.parametrize('kind', ['zip', 'legacy', 'pickle'])
@pytest.mark.parametrize('door', ['load_checkpoint', 'init_cfg', 'convert_checkpoint'])
def test_a_pickle_that_would_make_a_file_does_not(record_fault, tmp_path, kind, door):
    path, made = tmp_path / 'weights.pth', tmp_path / 'made'
    write(path, kind, makes_folder(made))
    backbone = SwinBackbone(arch='nano', init_cfg=[dict(type='mmengine.Pretrained', checkpoint=str(path))])
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
        assert 'os.makedirs' in str(error.value)
    assert f'python tools/convert_checkpoint.py {path} OUT --to mmdet --unsafe-load' in str(error.value)
    record_fault('doors')


def test_unsafe_load_lets_it(tmp_path):
    path, made = tmp_path / 'weights.pth', tmp_path / 'made'
    write(path, 'zip', makes_folder(made))
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
    pytest.importorskip('mmengine', reason='mmengine is not installed')
    from helpers.in_process import run

    path, out, made = tmp_path / 'weights.pth', tmp_path / 'out.pth', tmp_path / 'made'
    write(path, 'zip', makes_folder(made))
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


def history_buffer():
    """Return the class of mmengine's checkpoints."""
    return pytest.importorskip('mmengine.logging', reason='mmengine is not installed').HistoryBuffer


class Allowed:
    """A class that a user allows by `torch.serialization.add_safe_globals`."""


def everything():
    """Return values that training scripts save beside weights."""
    return {
        'state_dict': torch.nn.BatchNorm2d(2).state_dict(),
        'numbers': [0, -(2**40), 2**100, 1.5, float('inf'), 1 + 2j, True, None],
        'strings': ('', 'Straße', '漢字', b'bytes\xff', bytearray(b'\xff')),
        'milestones': Counter([8, 11, 11]),
        'sets': [{1, 'a', (2, 'b')}, set()],
        'nested': {1: {'a': [[], [{}], ()]}, (1, 'x'): OrderedDict(b=1)},
        'arrays': [
            np.arange(6.0).reshape(2, 3),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.array(3, '>i4'),
            np.array([True, False]),
            np.zeros((0, 2), np.float16),
        ],
        'scalars': [np.float64(3), np.float32(0.1), np.int64(-5), np.bool_(True)],
        'random': random.getstate(),
        'numpy_random': np.random.RandomState(0).get_state(),
    }


def assert_same(read, expected):
    assert type(read) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(read, expected)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert read.dtype == expected.dtype.newbyteorder('=')
        np.testing.assert_array_equal(read, expected)
    elif isinstance(expected, dict):
        assert list(read) == list(expected)
        assert_same(list(read.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(read) == len(expected)
        for item, value in zip(read, expected):
            assert_same(item, value)
    else:
        assert read == expected


@pytest.mark.parametrize('kind', ['zip', 'legacy'])
def test_the_contents_of_a_file_come_back(tmp_path, kind):
    expected = everything()
    torch.save(expected, tmp_path / 'a.pth', _use_new_zipfile_serialization=kind != 'legacy')
    read = read_checkpoint(tmp_path / 'a.pth')
    assert_same(read, expected)
    assert read['arrays'][0].flags.writeable


@pytest.mark.parametrize('kind', ['zip', 'legacy'])
def test_contents_of_mmengines_checkpoints(tmp_path, monkeypatch, kind):
    HistoryBuffer = history_buffer()
    methods = HistoryBuffer._statistics_methods
    monkeypatch.setattr(HistoryBuffer, '_statistics_methods', {**methods, 'worst': HistoryBuffer.max})  # left out
    shared = {'a': 1}
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    write(tmp_path / 'weights.pth', kind, {'loss': history, 'dtype': torch.float16, 'both': [shared, shared]})
    monkeypatch.undo()
    with torch.serialization.safe_globals([HistoryBuffer, np.ndarray, np.dtype]):  # globals that a user allows
        allowed = set(torch.serialization.get_safe_globals())
        meta = read_checkpoint(tmp_path / 'weights.pth')['meta']
        assert set(torch.serialization.get_safe_globals()) == allowed
    meta['loss'].update(6.0)
    assert meta['loss'].statistics('max') == 6
    assert 'worst' not in HistoryBuffer._statistics_methods
    assert meta['dtype'] == torch.float16
    assert meta['both'][0] is meta['both'][1]


def test_threads_read_at_the_same_time(tmp_path):
    """Good files are read and a bad file is refused, whatever other threads read. Globals of the process stay."""
    write(tmp_path / 'good.pth', 'zip', {'loss': history_buffer()([1.0], [1]), 'arrays': everything()['arrays']})
    write(tmp_path / 'bad.pth', 'zip', makes_folder(tmp_path / 'made'))
    write(tmp_path / 'user.pth', 'zip', Allowed())
    results = []

    def work(name, read):
        for _ in range(6):
            try:
                results.append((name, type(read(tmp_path / name)).__name__))
            except Exception as error:
                results.append((name, type(error).__name__))

    readers = [('good.pth', read_checkpoint)] * 2 + [('bad.pth', read_checkpoint), ('user.pth', torch.load)]
    with torch.serialization.safe_globals([Allowed]):  # a global that a user allows, for his own loads
        before = set(torch.serialization.get_safe_globals())
        with ThreadPoolExecutor(len(readers)) as pool:
            list(pool.map(work, *zip(*readers)))
        assert set(torch.serialization.get_safe_globals()) == before
    expected = [('bad.pth', 'RefusedCheckpoint')] * 6 + [('good.pth', 'dict')] * 12 + [('user.pth', 'dict')] * 6
    assert sorted(results) == expected


def test_a_list_of_globals_that_torch_is_told_to_keep(tmp_path, monkeypatch):
    """Under torch's variable, torch reads with its own globals alone."""
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
    reading._make_load_arguments.cache_clear()
    write(tmp_path / 'weights.pth', 'zip', {'epoch': 1})
    assert read_checkpoint(tmp_path / 'weights.pth')['meta'] == {'epoch': 1}
    write(tmp_path / 'weights.pth', 'zip', np.arange(3))
    with pytest.raises(CheckpointError, match='refused, because it is more than weights'):
        read_checkpoint(tmp_path / 'weights.pth')
    reading._make_load_arguments.cache_clear()


@pytest.mark.parametrize('protocol', [2, 4, 5])
def test_a_pickle_of_detectron2(tmp_path, protocol):
    """Read arrays in column order, of a machine with the other byte order."""
    state = randomised().state_dict()
    model = {key: np.asfortranarray(value.numpy()).astype('>f4') for key, value in state.items()}
    contents = {'model': model, '__author__': 'third_party'}
    (tmp_path / 'model.pkl').write_bytes(pickle.dumps(contents, protocol=protocol))
    backbone = SwinBackbone(arch='nano')
    load_checkpoint(backbone, tmp_path / 'model.pkl')
    assert all(torch.equal(backbone.state_dict()[key], value) for key, value in state.items())


def test_tensors_go_to_the_device(tmp_path):
    torch.save({'a': torch.ones(4)}, tmp_path / 'a.pth')
    safetensors.torch.save_file({'a': torch.ones(4)}, tmp_path / 'a.safetensors')
    for name in ('a.pth', 'a.safetensors'):
        assert read_checkpoint(tmp_path / name, map_location='meta')['a'].device.type == 'meta'


class Module(torch.nn.Module):
    def forward(self, x):
        return x


def torchscript():
    torch.jit.save(torch.jit.script(Module()), buffer := io.BytesIO())
    return buffer.getvalue()


def compressed():
    torch.save({'a': torch.zeros(1 << 20)}, buffer := io.BytesIO())
    with zipfile.ZipFile(buffer) as archive, zipfile.ZipFile(out := io.BytesIO(), 'w', zipfile.ZIP_DEFLATED) as packed:
        for record in archive.infolist():
            packed.writestr(record.filename, archive.read(record))
    return out.getvalue()


def tar():
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode='w') as archive:
        archive.addfile(tarfile.TarInfo('\x80'))
    return buffer.getvalue()


REFUSED, DAMAGED = 'refused, because it is more than weights', 'truncated, damaged or no checkpoint'
ATTACKS = {
    'a call': (lambda: saved(Reduced(os.mkdir, ('made',))), REFUSED + r' \(it contains \w+\.mkdir\)'),
    'getattr of another class': (lambda: saved(Reduced(getattr, (torch.nn.Linear, '__init__'))), REFUSED),
    'a torch.load in the file': (lambda: saved(Reduced(torch.storage._load_from_bytes, (saved(1),))), REFUSED),
    'a class, left over': (lambda: saved({'a': history_buffer()}), REFUSED),
    'a dtype, left over': (lambda: saved({'a': np.dtype('f8')}), REFUSED),
    'an array of objects': (lambda: saved({'a': np.array([{}, None])}), REFUSED),
    'an array of records': (lambda: saved({'a': np.zeros(2, [('a', 'f8')])}), REFUSED),
    'a TorchScript program': (torchscript, REFUSED + r' \(a TorchScript program\)'),
    'another protocol': (lambda: saved({'a': 1}, pickle_protocol=4), REFUSED + r' \(Unsupported operand'),
    'a call, in a pickle': (lambda: pickle.dumps({'model': Reduced(os.mkdir, ('made',))}), REFUSED),
    'a pickle that is no checkpoint': (lambda: pickle.dumps({'state_dict': {}}, protocol=2), DAMAGED),
    'half a pickle': (
        lambda: pickle.dumps({'model': np.zeros(99)}, 2)[:300],
        DAMAGED + r' \(\w+: pickle data was truncated',
    ),
    'compressed records': (compressed, 'its records are compressed'),
    'a tar archive': (tar, 'no checkpoint'),
}


@pytest.mark.parametrize('name', ATTACKS)
def test_an_attack_is_one_sentence(record_fault, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    make, message = ATTACKS[name]
    path = tmp_path / 'weights.pth'
    path.write_bytes(make())
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(path)
    assert len(str(error.value).splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ['weights.pth']
    record_fault('doors')


def test_changed_at_random(record_fault, tmp_path):
    """Change bytes of the pickle, with correct checksums."""
    files = [saved(everything(), _use_new_zipfile_serialization=False), pickle.dumps({'model': everything()})]
    where, path = random.Random(0), tmp_path / 'a.pth'
    for number in range(400):
        contents = bytearray(files[number % 2])
        for _ in range(where.choice([1, 2, 8])):
            contents[where.randrange(len(contents))] = where.randrange(256)
        path.write_bytes(contents)
        with contextlib.suppress(CheckpointError):
            read_checkpoint(path)
        assert [file.name for file in tmp_path.iterdir()] == ['a.pth']
    record_fault('mutations', 400)


@pytest.mark.parametrize('first', [b'<', b'P', b'\x80', b' '])
def test_a_length_of_a_header_is_not_taken_for_text(tmp_path, first):
    """A safetensors file begins with the header length. The lowest byte has any value."""
    contents = safetensors.torch.save({'weight': torch.ones(1)})
    length = int.from_bytes(contents[:8], 'little')
    padding = (first[0] - length) % 256
    header = contents[8 : 8 + length] + b' ' * padding
    path = tmp_path / 'weights.safetensors'
    path.write_bytes((length + padding).to_bytes(8, 'little') + header + contents[8 + length :])
    assert path.read_bytes()[:1] == first
    assert read_checkpoint(path) == {'weight': 1}


def test_unsafe_load_names_a_module_that_is_not_installed(tmp_path, monkeypatch):
    module = types.ModuleType('no_such_mod')
    module.Weights = type('Weights', (), {'__module__': 'no_such_mod'})
    monkeypatch.setitem(sys.modules, 'no_such_mod', module)
    torch.save(module.Weights(), tmp_path / 'weights.pth')
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=r"needs a module that is not installed .*'no_such_mod'"):
        read_checkpoint(tmp_path / 'weights.pth', unsafe_load=True)


def test_the_contents_tell_the_kind_of_file(tmp_path):
    state = randomised().state_dict()
    safetensors.torch.save_file(state, tmp_path / 'weights.pth')
    torch.save(state, tmp_path / 'weights.safetensors')
    for path in (tmp_path / 'weights.pth', tmp_path / 'weights.safetensors'):
        assert not load_checkpoint(SwinBackbone(arch='nano'), path).missing


ONLY_NETWORK = 'a path, file://, http:// or https:// was expected'
ADDRESSES = {
    'missing.pth': 'there is no such file',
    '/tmp': 'it is a folder without model.safetensors or pytorch_model.bin',
    's3://bucket/weights.pth': ONLY_NETWORK,
    'ftp://127.0.0.1/swin.pth': ONLY_NETWORK,
    'http://127.0.0.1/folder/': 'the address names no file',
    'http://127.0.0.1:http/swin.pth': 'it could not be downloaded',
    'http://127.0.0.1:9/swin.pth': 'it could not be downloaded',
    'http://127.0.0.1/schön/swin.pth': 'it could not be downloaded',
}


@pytest.mark.parametrize('address', ADDRESSES)
def test_a_bad_address_is_one_sentence(record_fault, tmp_path, monkeypatch, address):
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path))
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(address)
    assert str(error.value).startswith(f'checkpoint {address!r}: {ADDRESSES[address]}')
    assert len(str(error.value).splitlines()) == 1
    record_fault('servers')
