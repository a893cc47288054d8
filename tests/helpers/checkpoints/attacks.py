"""Checkpoint files that were made to do harm, each as the bytes of a small file.

`ATTACKS` gives a name to each, and what reading it says. Pickles are put together from opcodes: see `pickletools`.
"""

import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib

HUGE = 1 << 32


def value(plain):
    """Opcodes that push a plain value."""
    return pickle.dumps(plain, protocol=2)[2:-1]


def name(module, name):
    return f'c{module}\n{name}\n'.encode()


def tuple_of(*items):
    return b'(' + b''.join(items) + b't'


def call(function, *items):
    return function + tuple_of(*items) + b'R'


def pickled(body):
    return b'\x80\x02' + body + b'.'


def archive(body, records=(), compression=zipfile.ZIP_STORED, order=b'little'):
    """A file of torch.save around the opcodes of its pickle; `records` are the storages '0', '1', ..."""
    with zipfile.ZipFile(buffer := io.BytesIO(), 'w', compression) as file:
        file.writestr('archive/data.pkl', pickled(body))
        file.writestr('archive/byteorder', order)
        for index, record in enumerate(records):
            file.writestr(f'archive/data/{index}', record)
        file.writestr('archive/version', b'3\n')
    return buffer.getvalue()


def legacy(body, keys=(), storages=b''):
    """A file of torch.save as it was until torch 1.6."""
    start = (0x1950A86A20F9469CFC6C, 1001, {'protocol_version': 1001, 'little_endian': True, 'type_sizes': {}})
    head = b''.join(pickle.dumps(part, protocol=2) for part in start)
    return head + pickled(body) + pickle.dumps(list(keys), protocol=2) + storages


def storage(numel=4, kind='FloatStorage', key='0', *more, location='cpu'):
    parts = value('storage'), name('torch', kind), value(key), value(location), value(numel), *map(value, more)
    return tuple_of(*parts) + b'Q'


def tensor(offset=0, size=(4,), stride=(1,), numel=4, kind='FloatStorage', *more):
    hooks = call(name('collections', 'OrderedDict'))
    plain = map(value, (offset, size, stride, False))
    return call(name('torch._utils', '_rebuild_tensor_v2'), storage(numel, kind, '0', *more), *plain, hooks)


def floats(**changed):
    return archive(tensor(**changed), [struct.pack('<4f', 1, 2, 3, 4)])


def raw(data):
    return call(name('_codecs', 'encode'), value(data.decode('latin1')), value('latin1'))


def dtype(spec='f8', state=(3, '<', None, None, None, -1, -1, 0)):
    """As numpy pickles it: the kind, and a BUILD that says all the rest."""
    plain = call(name('numpy', 'dtype'), value(spec), value(False), value(True))
    return plain + value(state) + b'b' if state else plain


def array(data=bytes(16), shape=(2,), kind=None, module='numpy.core.multiarray', start=(0,)):
    empty = call(name(module, '_reconstruct'), name('numpy', 'ndarray'), value(start), raw(b'b'))
    return empty + tuple_of(value(1), value(shape), kind or dtype(), value(False), raw(data)) + b'b'


def scalar(kind, data):
    return call(name('numpy.core.multiarray', 'scalar'), kind, raw(data))


def history(*pairs):
    body = b''.join(value(key) + item for key, item in pairs)
    return name('mmengine.logging.history_buffer', 'HistoryBuffer') + b')\x81' + b'}(' + body + b'u' + b'b'


def lists_of_lists(levels=40, width=10):
    """Each list holds the one before ten times: 1e40 numbers in 40 lists."""
    body = value([1])
    for _ in range(levels):
        body = b'](' + body + b'q\x01' + b'h\x01' * (width - 1) + b'e'
    return body


def huge_directory(entries=200_000):
    entry = struct.pack('<4s6H3L5H2L', b'PK\1\2', 20, 20, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b'a'
    end = struct.pack('<4s4H2LH', b'PK\5\6', 0, 0, 0xFFFF, 0xFFFF, len(entry) * entries, 0, 0)
    return entry * entries + end


def lying_record(real=1 << 25, said=1 << 10):
    """A record that says it is small once it is inflated."""
    data = bytearray(archive(tensor(numel=said // 4, size=(said // 4,)), [bytes(real)], zipfile.ZIP_DEFLATED))
    crc = zlib.crc32(bytes(real))
    for place, marker in ((14, b'PK\3\4'), (16, b'PK\1\2')):
        start = data.find(b'archive/data/0', 0 if marker == b'PK\3\4' else data.find(b'PK\1\2'))
        start = data.rfind(marker, 0, start)
        assert data[start + place : start + place + 4] == struct.pack('<L', crc)
        data[start + place + 8 : start + place + 12] = struct.pack('<L', said)
    return bytes(data)


def tar():
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode='w') as file:
        for part in ('storages', 'tensors', 'pickle'):
            file.addfile(tarfile.TarInfo(part), io.BytesIO())
    return buffer.getvalue()


def safetensors(header, data=bytes(16), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('<Q', len(text) if length is None else length) + text + data


def entry(start=0, end=16, shape=(4,), kind='F32'):
    return dict(dtype=kind, shape=list(shape), data_offsets=[start, end])


MEMORY = 'it would take more memory than'
DAMAGED = 'truncated, damaged or no checkpoint'
REFUSED = 'refused, because it is more than weights'
OBJECT_ADDRESSES = dtype('O8', (3, '|', None, None, None, -1, -1, 63))

# The name: how it is made, what is said of it
ATTACKS = {
    # memory
    'bytearray of 4 GB': (lambda: archive(call(name('builtins', 'bytearray'), value(HUGE))), DAMAGED),
    'bytearray of 4 GB, opcode': (lambda: archive(b'\x96' + struct.pack('<Q', HUGE)), DAMAGED),
    'bytes of 4 GB, opcode': (lambda: legacy(b'\x8e' + struct.pack('<Q', HUGE)), DAMAGED),
    'string of 4 GB, opcode': (lambda: legacy(b'\x8d' + struct.pack('<Q', HUGE)), DAMAGED),
    'number of 2 GB, opcode': (lambda: legacy(b'\x8b' + struct.pack('<l', 0x7FFFFFFF)), DAMAGED),
    'number of a million digits': (lambda: archive(b'\x8b' + struct.pack('<l', 400_000) + b'\1' * 400_000), DAMAGED),
    'frame of 1 EB': (lambda: archive(b'\x95' + struct.pack('<Q', 1 << 60) + b'\x96'), DAMAGED),
    'place in the memo': (lambda: archive(b'Nr\xff\xff\xff\xff' + b'N'), None),
    'array of 93 GB': (lambda: archive(array(start=(93 << 30,))), DAMAGED),
    'array of no bytes and 93 GB': (lambda: archive(array(b'', (93 << 27,))), MEMORY),
    'array that is empty and huge': (lambda: archive(array(b'', (0, 1 << 62))), MEMORY),
    'string dtype of 1 GB': (lambda: archive(scalar(dtype(f'S{1 << 30}', None), b'')), DAMAGED),
    'zip bomb': (lambda: archive(tensor(size=(1 << 25,), numel=1 << 25), [bytes(1 << 27)], zipfile.ZIP_DEFLATED),
                 MEMORY),
    'zip bomb in the pickle': (lambda: archive(b'N0' * (1 << 26), (), zipfile.ZIP_DEFLATED), MEMORY),
    'zip bomb that says it is small': (lying_record, DAMAGED),
    'directory of a zip': (huge_directory, MEMORY),
    'a million lists': (lambda: archive(b'](' + b']' * (1 << 20) + b'e', (), zipfile.ZIP_DEFLATED), MEMORY),
    'a million memos': (lambda: archive(b'N' + b'\x94' * (1 << 20), (), zipfile.ZIP_DEFLATED), MEMORY),
    'a million marks': (lambda: archive(b'(' * (1 << 20), (), zipfile.ZIP_DEFLATED), MEMORY),
    'lists of the same lists': (lambda: archive(lists_of_lists()), MEMORY),
    'one number, many times': (lambda: archive(tensor(size=(1 << 40,), stride=(0,)), [bytes(16)]), MEMORY),
    'one storage, many times': (
        lambda: archive(b'](' + tensor(size=(1 << 20,), numel=1 << 20) * 100 + b'e', [bytes(1 << 22)]), MEMORY),
    'legacy storage that is not there': (lambda: legacy(tensor(numel=1 << 40), ['0']), DAMAGED),
    'safetensors of a hundred thousand nothings': (
        lambda: safetensors({str(i): entry(0, 0, (0,)) for i in range(100_000)}, b''), MEMORY),
    # the stack
    'nested tuples': (lambda: archive(b')' + b'\x85' * 100_000), 'nested'),
    'nested lists': (lambda: archive(b']' * 100_000 + b'a' * 99_999), 'nested'),
    'nested tuples as a key': (lambda: archive(b'}' + b')' + b'\x85' * 100_000 + b'Ns'), 'key'),
    'a list in itself': (lambda: archive(b']q\0h\0a'), 'nested'),
    'a list in itself twice': (lambda: archive(b']q\0(h\0h\0e'), 'nested'),
    'lists that nest where they meet': (
        lambda: archive(b'](]q\0' + b''.join(b']q' + bytes([i + 1]) + b'h' + bytes([i]) + b'a' for i in range(250))
                        + b'e'), 'nested'),
    # addresses
    'dtype of objects': (lambda: archive(array(kind=OBJECT_ADDRESSES)), DAMAGED),
    'dtype that becomes one of objects': (
        lambda: archive(array(kind=dtype('f8', (3, '|', None, None, None, -1, -1, 63)))), DAMAGED),
    'dtype with a subarray of objects': (
        lambda: archive(array(kind=dtype('f8', None) + tuple_of(value(3), value('|'), tuple_of(
            OBJECT_ADDRESSES, value((1,))), *map(value, (None, None, 8, 8, 63))) + b'b')), DAMAGED),
    'dtype of more bytes than it has': (
        lambda: archive(scalar(dtype('f8', (3, '<', None, None, None, 1 << 20, 8, 0)), bytes(8))), DAMAGED),
    'dtype of fields': (
        lambda: archive(scalar(dtype('V8', (3, '|', None, ('a',), {'a': ('f8', 4096)}, 8, 1, 16)), bytes(8))), DAMAGED),
    'scalar of too few bytes': (lambda: archive(scalar(dtype(), b'')), DAMAGED),
    'array of too few bytes': (lambda: archive(array(bytes(8), (2,))), DAMAGED),
    'array of a negative size': (lambda: archive(array(bytes(16), (-1, -2))), DAMAGED),
    'history of objects': (
        lambda: archive(history(('_log_history', array(kind=OBJECT_ADDRESSES)), ('_count_history', array()))), DAMAGED),
    'history of unlike lengths': (
        lambda: archive(history(('_log_history', array()), ('_count_history', array(bytes(8), (1,))))), DAMAGED),
    'history of no arrays': (
        lambda: archive(history(('_log_history', value('x')), ('_count_history', value('x')))), DAMAGED),
    'storage beyond its record': (lambda: archive(tensor(numel=1 << 20), [bytes(16)]), DAMAGED),
    'storage of a negative size': (lambda: floats(numel=-1), DAMAGED),
    'storage of no number': (lambda: archive(storage('4'), [bytes(16)]), DAMAGED),
    'storage with no record': (lambda: archive(tensor(), []), DAMAGED),
    'storage in a folder above': (lambda: archive(storage(4, 'FloatStorage', '../data.pkl')), DAMAGED),
    'tensor behind its storage': (lambda: floats(offset=1), DAMAGED),
    'tensor before its storage': (lambda: floats(offset=-1), DAMAGED),
    'tensor larger than its storage': (lambda: floats(size=(5,)), DAMAGED),
    'tensor that strides out': (lambda: floats(size=(2, 2), stride=(3, 1)), DAMAGED),
    'tensor that strides back': (lambda: floats(offset=3, stride=(-1,)), DAMAGED),
    'tensor of a negative size': (lambda: floats(size=(-4, -1), stride=(1, 1)), DAMAGED),
    'tensor with a stride too few': (lambda: floats(size=(2, 2), stride=(1,)), DAMAGED),
    'tensor with a stride of 2**62': (lambda: floats(size=(1, 4), stride=(1 << 62, 1)), DAMAGED),
    'tensor that is empty and huge': (lambda: floats(size=(0, 1 << 62), stride=(1, 1)), MEMORY),
    'tensor of a thousand sides': (lambda: floats(size=(1,) * 1000, stride=(1,) * 1000), DAMAGED),
    'tensor of half a side': (lambda: floats(size=(0.5,)), DAMAGED),
    'truths that are 7': (lambda: archive(tensor(kind='BoolStorage'), [b'\7' * 4]), DAMAGED),
    'truths that are 7, in an array': (lambda: archive(array(b'\7\7', kind=dtype('b1', None))), DAMAGED),
    'truths that are 7, in safetensors': (
        lambda: safetensors({'a': entry(0, 4, kind='BOOL')}, b'\7' * 4), 'truncated or damaged'),
    'legacy tensor behind its storage': (
        lambda: legacy(tensor(1, (4,), (1,), 4, 'FloatStorage', None), ['0'], struct.pack('<q4f', 4, 1, 2, 3, 4)),
        DAMAGED),
    'legacy storage of another size': (
        lambda: legacy(tensor(0, (4,), (1,), 4, 'FloatStorage', None), ['0'], struct.pack('<q4f', 1, 1, 2, 3, 4)),
        DAMAGED),
    'legacy storage with another key': (
        lambda: legacy(tensor(0, (4,), (1,), 4, 'FloatStorage', None), ['1'], struct.pack('<q4f', 4, 1, 2, 3, 4)),
        DAMAGED),
    # programs
    'a call': (lambda: archive(call(name('os', 'mkdir'), value('made'))), REFUSED),
    'a call by names on the stack': (lambda: archive(value('os') + value('mkdir') + b'\x93' + tuple_of(value('made'))
                                                     + b'R'), REFUSED),
    'a call by the extension registry': (lambda: archive(b'\x82\1'), REFUSED),
    'a call of old': (lambda: archive(b'(' + value('made') + b'ios\nmkdir\n'), REFUSED),
    'an evaluated string': (lambda: archive(call(name('builtins', 'eval'), value('1'))), REFUSED),
    'getattr': (lambda: archive(call(name('builtins', 'getattr'), name('torch', 'FloatStorage'), value('mro'))),
                REFUSED),
    'a torch.load in the file': (lambda: archive(call(name('torch.storage', '_load_from_bytes'), raw(b''))), REFUSED),
    'a module': (lambda: archive(call(name('torch.nn.modules.linear', 'Linear'), value(1), value(1))), REFUSED),
    'state for a function': (lambda: archive(name('torch._utils', '_rebuild_tensor_v2') + b'}b'), DAMAGED),
    'attributes of a dict': (
        lambda: archive(call(name('collections', 'OrderedDict')) + value({'keys': 1, '__class__': 2}) + b'b'), None),
    'state for a tensor': (lambda: archive(tensor() + b'}b', [bytes(16)]), DAMAGED),
    'a function, left over': (lambda: archive(name('torch._utils', '_rebuild_tensor_v2')), REFUSED),
    'a method, left over': (
        lambda: archive(call(name('builtins', 'getattr'), name('mmengine.logging.history_buffer', 'HistoryBuffer'),
                             value('min'))), REFUSED),
    'a call of what is no name': (lambda: archive(value('os.mkdir') + b')R'), DAMAGED),
    # tensors that are none
    'a sparse tensor': (
        lambda: archive(call(name('torch._utils', '_rebuild_sparse_tensor'), value(0), value(()))), REFUSED),
    'a quantized tensor': (lambda: archive(call(name('torch._utils', '_rebuild_qtensor'), value(0))), REFUSED),
    'a quantized storage': (lambda: archive(storage(4, 'QInt8Storage'), [bytes(4)]), REFUSED),
    'a tensor on no device': (
        lambda: archive(call(name('torch._utils', '_rebuild_meta_tensor_no_storage'), value(0))), REFUSED),
    'a tensor of another class': (
        lambda: archive(call(name('torch._utils', '_rebuild_wrapper_subclass'), value(0))), REFUSED),
    'a tensor of numpy objects': (
        lambda: archive(call(name('torch._utils', '_rebuild_device_tensor_from_numpy'), value(0))), REFUSED),
    'a tensor from its class': (lambda: archive(name('torch', 'Tensor') + tuple_of(value(1 << 40)) + b'\x81'), REFUSED),
    'a parameter from its class': (
        lambda: archive(name('torch.nn.parameter', 'Parameter') + tuple_of(value(1)) + b'\x81'), REFUSED),
    # containers
    'a pickle that is no container': (lambda: pickle.dumps({'state_dict': {}}, protocol=2), DAMAGED),
    'a pickle that ends early': (lambda: archive(b'}')[:-200], DAMAGED),
    'an empty stack': (lambda: archive(b'0'), DAMAGED),
    'no mark': (lambda: archive(b't'), DAMAGED),
    'a memo that is not there': (lambda: archive(b'h\5'), DAMAGED),
    'a key that is a list': (lambda: archive(b'}]Ns'), 'key'),
    'an unknown opcode': (lambda: archive(b'\xff'), DAMAGED),
    'an unknown order of bytes': (lambda: archive(b'N', order=b'middle'), DAMAGED),
    'a tar archive': (tar, 'neither a file of torch.save nor of safetensors'),
    'safetensors, header beyond the file': (lambda: safetensors({}, length=1 << 31), 'truncated or damaged'),
    'safetensors, header of 2**63 bytes': (lambda: safetensors({}, length=1 << 63), 'neither a file of torch.save'),
    'safetensors, overlapping': (
        lambda: safetensors({'a': entry(), 'b': entry(8, 24)}, bytes(24)), 'truncated or damaged'),
    'safetensors, beyond the file': (lambda: safetensors({'a': entry(0, 1 << 40, (1 << 38,))}), 'truncated or damaged'),
    'safetensors, a size that overflows': (
        lambda: safetensors({'a': entry(0, 16, (1 << 32, 1 << 32))}), 'truncated or damaged'),
    'safetensors, a negative size': (lambda: safetensors({'a': entry(0, 16, (-4,))}), 'truncated or damaged'),
    'safetensors, empty and huge': (lambda: safetensors({'a': entry(0, 0, (0, 1 << 62))}, b''), MEMORY),
    'safetensors, unknown dtype': (lambda: safetensors({'a': entry(kind='F31')}), 'truncated or damaged'),
    'safetensors, nested': (lambda: safetensors(b'{"a":' + b'[' * 100_000), 'truncated or damaged'),
    'safetensors, no JSON': (lambda: safetensors(b'{]'), 'truncated or damaged'),
}  # fmt: skip
