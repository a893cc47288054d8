"""Changes real checkpoints at random and reads them: they load as plain data, or are a CheckpointError.

python -m helpers.checkpoints.fuzz FOLDER NUMBER [SEED]     NUMBER files, the same for the same SEED
python -m helpers.checkpoints.fuzz FOLDER NUMBER atheris    as many, which Atheris chooses by what they reach

FOLDER is for the file that is read. Whatever else happens stops it with an error, and the file is left there.
"""

import contextlib
import faulthandler
import io
import json
import pickle
import random
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

if sys.argv[-1] == 'atheris':
    import atheris

    instrument = atheris.instrument_imports(include=['swin_backbone.checkpoints', 'pickletools', 'zipfile'])
else:
    instrument = contextlib.nullcontext()
with instrument:
    from helpers.checkpoints.attacks import ATTACKS
    from helpers.checkpoints.reading import Watch, limit_addresses, try_reading

import numpy as np
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer

KINDS = ('zip', 'pickle in a zip', 'legacy', 'safetensors', 'pkl')
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, np.ndarray, np.generic, HistoryBuffer)
NUMBERS = [0, 1, 2, 7, 8, 127, 128, 255, 1 << 15, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1]
OPCODES = [
    getattr(pickle, name)[0] for name in pickle.__all__ if name.isupper() and isinstance(getattr(pickle, name), bytes)
]


def contents():
    weights = OrderedDict(a=torch.arange(6.0).view(2, 3), b=torch.tensor([True, False]), c=torch.ones(2).half())
    weights._metadata = OrderedDict({'': dict(version=1)})
    return {
        'state_dict': weights,
        'meta': {'iter': 3, 'epoch': 1, 'classes': ('a', 'b'), 'lr': 0.1, 'big': 1 << 70},
        'message_hub': {'log_scalars': OrderedDict(loss=HistoryBuffer([1.0, 2.0], [1, 1]))},
        'array': [np.arange(4), np.float64(2.5), np.zeros((2, 2), np.float32)],
        'milestones': Counter([8, 11]),
    }


def seeds():
    """Real files, of each kind."""
    files = {kind: [] for kind in KINDS}
    for protocol in (2, 4, 5):
        for kind in ('zip', 'legacy'):
            torch.save(
                contents(), file := io.BytesIO(), pickle_protocol=protocol, _use_new_zipfile_serialization=kind == 'zip'
            )
            files[kind].append(file.getvalue())
        files['pkl'].append(pickle.dumps({**contents(), 'state_dict': {'a': np.ones(3)}}, protocol=protocol))
    files['pickle in a zip'] = [zipfile.ZipFile(io.BytesIO(file)).read('archive/data.pkl') for file in files['zip']]
    files['safetensors'] = [safetensors.torch.save(dict(contents()['state_dict']))]
    return files


def wrapped(kind, data):
    """A pickle goes into an archive with right checksums, or nothing behind them would be reached."""
    if kind != 'pickle in a zip':
        return data
    with zipfile.ZipFile(buffer := io.BytesIO(), 'w') as archive:
        archive.writestr('archive/data.pkl', data)
        for index, size in enumerate((24, 2, 4)):
            archive.writestr(f'archive/data/{index}', bytes(size))
    return buffer.getvalue()


def mutated(rng, data, others):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64))
        number = rng.choice(NUMBERS).to_bytes(8, 'little')[: rng.choice((1, 2, 4, 8))]
        other = rng.choice(others)
        start = rng.randrange(len(other))
        change = rng.randrange(8)
        if change == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif change == 1:
            data[place : place + 1] = bytes([rng.choice(OPCODES)])
        elif change == 2:
            data[place:place] = bytes([rng.choice(OPCODES)])
        elif change == 3:
            data[place : place + len(number)] = number
        elif change == 4:
            del data[place : place + length]
        elif change == 5:
            data[place:place] = data[place : place + length] * rng.choice((1, 1, 2, 1000))
        elif change == 6:
            data[place : place + rng.choice((0, length))] = other[start : start + length]
        elif rng.random() < 0.1:
            del data[place:]
    return bytes(data)


def assert_plain(value, deep=0):
    assert deep < 100
    if isinstance(value, torch.Tensor):
        assert type(value) is torch.Tensor
        value.clone()  # reads all of its memory
    elif isinstance(value, np.ndarray):
        assert value.dtype.kind in 'biufc'
        value.copy()
    elif isinstance(value, HistoryBuffer):
        assert_plain(value._log_history)
        assert_plain(value._count_history)
    elif isinstance(value, dict):
        assert type(value) in (dict, OrderedDict, Counter)
        for key, item in value.items():
            assert_plain(key, deep + 1)
            assert_plain(item, deep + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        assert type(value) in (list, tuple, set, frozenset)
        for item in value:
            assert_plain(item, deep + 1)
    else:
        assert isinstance(value, PLAIN), type(value)


def main():
    faulthandler.enable()
    folder, number, how = Path(sys.argv[1]), int(sys.argv[2]), (*sys.argv[3:], '0')[0]
    path, files = folder / 'input.pth', seeds()
    counts = Counter()
    for codec in ('cp437', 'raw_unicode_escape'):  # zipfile and pickletools import them
        ''.encode(codec)
    watch = Watch()

    def check(kind, data):
        path.write_bytes(wrapped(kind, data))
        outcome, sentence, done, read = try_reading(path, watch)
        counts[outcome] += 1
        assert outcome in ('loads', 'CheckpointError'), (outcome, sentence)
        assert not done, done
        assert_plain(read)

    for kind in KINDS:
        for file in files[kind]:
            check(kind, file)
    assert counts == {'loads': sum(map(len, files.values())) - len(files['pkl']), 'CheckpointError': len(files['pkl'])}
    counts.clear()
    if how == 'atheris':
        corpus = folder / 'corpus'
        corpus.mkdir()
        for index, kind in enumerate(KINDS):
            for place, file in enumerate(files[kind]):
                (corpus / f'{index}-{place}').write_bytes(bytes([index]) + file)
        for place, (make, _) in enumerate(ATTACKS.values()):
            if len(attack := make()) < 10_000:
                (corpus / f'attack-{place}').write_bytes(b'\0' + attack)
        words = folder / 'words'
        words.write_text(''.join(f'"\\x{opcode:02x}"\n' for opcode in OPCODES))
        options = [f'-runs={number}', '-seed=1', '-max_len=20000', f'-dict={words}', f'-artifact_prefix={folder}/']
        atheris.Setup(
            [sys.argv[0], *options, str(corpus)], lambda data: data and check(KINDS[data[0] % len(KINDS)], data[1:])
        )
        atheris.Fuzz()
        return
    limit_addresses()
    rng = random.Random(int(how))
    everything = [file for kind in KINDS for file in files[kind]]
    for index in range(number):
        kind = KINDS[index % len(KINDS)]
        check(kind, mutated(rng, rng.choice(files[kind]), everything))
    print(json.dumps(counts))


if __name__ == '__main__':
    main()
