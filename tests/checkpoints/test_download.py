"""Download from a local server. A download gives a checkpoint or an error of one sentence, and no partial file."""

import hashlib
import re
import socket
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers.checkpoints.pickles import makes_folder, saved
from helpers.models.small_models import lines, randomised

from swin_backbone import SwinBackbone, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, download, read_checkpoint
from swin_backbone.whole_files import PARTIAL

TIMEOUT_S = 0.3


CONTENTS = {'state_dict': {'weight': torch.arange(1000.0)}}
ZIP, LEGACY = saved(CONTENTS), saved(CONTENTS, _use_new_zipfile_serialization=False)
SAFETENSORS = safetensors.torch.save({'weight': torch.arange(1000.0)})
FLIPPED = bytearray(ZIP)
FLIPPED[ZIP.index(torch.arange(1000.0).numpy().tobytes()) + 100] ^= 1


def answer(body, status='200 OK', *headers, length=None):
    length = len(body) if length is None else length
    return '\r\n'.join([f'HTTP/1.1 {status}', f'Content-Length: {length}', *headers, '', '']).encode() + body


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        head = ''
        while '\r\n\r\n' not in head and (more := self.request.recv(4096)):
            head += more.decode('latin-1')
        if not head:
            return
        self.server.paths.append(head.split()[1])
        body = self.server.answers.get(head.split()[1].partition('?')[0], self.server.answer)
        if body is None:
            self.request.settimeout(None)  # the client's timeout is the process's default
            self.request.recv(1)  # until the client closes the connection
        else:
            self.request.sendall(body)


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(download, 'TIMEOUT_S', TIMEOUT_S)
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    server = socketserver.ThreadingTCPServer(('127.0.0.1', 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.paths, server.answers, server.answer = [], {}, answer(ZIP)
    server.url = f'http://127.0.0.1:{server.server_address[1]}'
    server.cache = tmp_path / 'hub' / 'checkpoints'
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def cached(server):
    """Return the cached files by name, without the hash of the address."""
    files = server.cache.iterdir() if server.cache.exists() else ()
    return {path.name.partition('-')[2]: path for path in files if path.suffix != '.lock'}


BAD = {
    'a page': (answer(b'<!DOCTYPE html><html>Sign in</html>'), 'web page'),
    'a page behind blanks': (answer(b'\n\n  <html>Sign in</html>'), 'web page'),
    'an error in JSON': (answer(b'{"error": "no such file"}'), 'no checkpoint'),
    'a pointer of Git LFS': (answer(b'version https://git-lfs.github.com/spec/v1\noid'), 'Git LFS'),
    'nothing': (answer(b''), 'empty'),
    'half a zip archive': (answer(ZIP[: len(ZIP) // 2], length=len(ZIP)), 'truncated'),
    'half a legacy file': (answer(LEGACY[: len(LEGACY) // 2], length=len(LEGACY)), 'truncated'),
    'half of safetensors': (answer(SAFETENSORS[: len(SAFETENSORS) // 2], length=len(SAFETENSORS)), 'truncated'),
    'a flipped bit': (answer(bytes(FLIPPED)), 'CRC'),
    'no HTTP': (b'SSH-2.0-OpenSSH_9.6\r\n', 'could not be downloaded'),
    'no answer': (None, 'could not be downloaded .*time'),
    'to a file': (answer(b'', '302 Found', 'Location: file:///etc/passwd'), 'could not be downloaded .*302'),
    'not found': (answer(b'', '404 Not Found'), 'could not be downloaded .*404'),
    'busy': (answer(b'', '503 busy'), 'could not be downloaded .*503'),
}


@pytest.mark.parametrize('name', BAD)
def test_a_bad_answer_is_one_sentence_and_not_kept(record_fault, server, name):
    server.answer, message = BAD[name]
    url = f'{server.url}/swin.pth'
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(url)
    assert str(error.value).startswith(f'checkpoint {url!r}: ')
    assert len(str(error.value).splitlines()) == 1
    assert not cached(server)
    server.answer = answer(ZIP)
    assert read_checkpoint(url)['state_dict']['weight'][999] == 999
    record_fault('servers')


def test_a_file_is_downloaded_once(server):
    server.answers = {
        '/a/swin.pth': answer(saved(randomised().state_dict())),
        '/swin.safetensors': answer(safetensors.torch.save(randomised().state_dict())),
        '/moved.pth': answer(b'', '302 Found', 'Location: /a/swin.pth'),
    }
    for path in ('/a/swin.pth?download=true', '/swin.safetensors', '/moved.pth'):
        for _ in range(2):
            assert not load_checkpoint(SwinBackbone(arch='nano'), server.url + path).missing
    assert len(server.paths) == 4
    assert set(cached(server)) == {'swin.pth', 'swin.safetensors', 'moved.pth'}


@pytest.mark.parametrize('name', ['swin_20220317-{}.pth', 'mask-rcnn_swin-t_20210902_120937-{}.pth', 'swin_t-{}.pth'])
def test_the_hash_in_a_name_is_checked(record_fault, server, name):
    body, number = ZIP, 0
    while not (digest := hashlib.sha256(body).hexdigest()[:8]).strip('0123456789'):
        number += 1
        body = saved({'number': number})
    server.answer = answer(body)
    right, wrong = name.format(digest), name.format('deadbeef')
    read_checkpoint(f'{server.url}/{right}')
    with pytest.raises(CheckpointError, match=r'invalid hash value .expected "deadbeef"'):
        read_checkpoint(f'{server.url}/{wrong}')
    assert list(cached(server)) == [right]
    record_fault('servers')


@pytest.mark.parametrize('name', ['swin-20220317.pth', 'swin_tiny_patch4_window7_224_22k.pth', 'swin-224.pth'])
def test_a_date_or_size_is_no_hash(server, name):
    assert read_checkpoint(f'{server.url}/{name}')


@pytest.mark.parametrize('before', [b'', b'<html>Sign in</html>', bytes(FLIPPED)])
def test_a_bad_file_in_the_cache_is_downloaded_again(record_fault, server, before):
    url = f'{server.url}/swin.pth'
    read_checkpoint(url)
    cached(server)['swin.pth'].write_bytes(before)
    assert read_checkpoint(url)['state_dict']['weight'][999] == 999
    assert cached(server)['swin.pth'].read_bytes() == ZIP
    record_fault('servers')


def test_a_file_of_the_name_in_torchs_folder_serves(record_fault, server, log):
    """torch.hub keeps downloads by their names. Users put files there on machines without a network."""
    server.answer = answer(b'', '404 Not Found')
    url, by_name = f'{server.url}/weights/swin.pth?download=1', server.cache / 'swin.pth'
    with pytest.raises(CheckpointError, match=re.escape(f'put the file at {by_name}, or write its path')):
        read_checkpoint(url)
    by_name.write_bytes(bytes(FLIPPED))
    with pytest.raises(CheckpointError, match=rf'{url[:20]}.*{by_name}.*Bad CRC'):
        read_checkpoint(url)
    by_name.write_bytes(ZIP)
    assert read_checkpoint(url)['state_dict']['weight'][999] == 999
    assert lines(log)[-1] == f'{by_name} serves for {url}'
    assert len(server.paths) == 1
    with pytest.raises(CheckpointError, match='could not be downloaded'):
        read_checkpoint(f'{server.url}/{"long" * 100}.pth')
    record_fault('servers', 2)


def test_a_name_in_torchs_folder_serves_one_address(record_fault, server):
    """A name such as model.safetensors belongs to many addresses. The first address gets the file."""
    server.answer = answer(b'', '404 Not Found')
    server.cache.mkdir(parents=True)
    file = server.cache / 'model.safetensors'
    file.write_bytes(SAFETENSORS)
    first, other = (f'{server.url}/{repository}/resolve/main/model.safetensors' for repository in 'AB')
    for url in (first, f'{first}?download=true', first):
        assert read_checkpoint(url)['weight'][999] == 999
    with pytest.raises(CheckpointError, match=re.escape(f'because {file} serves for {first}')) as error:
        read_checkpoint(other)
    place = re.search(r'put the file at (\S+),', str(error.value))[1]
    Path(place).write_bytes(safetensors.torch.save({'weight': torch.zeros(2)}))
    assert len(read_checkpoint(other)['weight']) == 2
    server.answer = answer(safetensors.torch.save({'weight': torch.zeros(3)}))
    assert len(read_checkpoint(f'{server.url}/C/resolve/main/model.safetensors')['weight']) == 3
    assert len(read_checkpoint(first)['weight']) == 1000
    record_fault('servers', 2)


def test_a_cache_that_cannot_be_written_serves(server, monkeypatch):
    """A read-only cache, as in a container, keeps no record of the address."""
    server.cache.mkdir(parents=True)
    (server.cache / 'swin.pth').write_bytes(ZIP)

    def refuse(path, *_):
        raise PermissionError(13, 'Permission denied', str(path))

    monkeypatch.setattr(download, 'FileLock', refuse)
    for repository in 'AB':
        assert read_checkpoint(f'{server.url}/{repository}/swin.pth')['state_dict']['weight'][999] == 999
    assert not server.paths


def test_files_of_one_name_at_two_addresses_are_two(server):
    addresses = ['/a/swin.pth', '/b/swin.pth', '/a/swin.pth?version=2', '/A/swin.pth']
    for number, address in enumerate(addresses):
        server.answer = answer(saved({'number': number}))
        assert read_checkpoint(server.url + address)['number'] == number


def test_a_killed_download_leaves_nothing_behind_the_next(record_fault, server):
    read_checkpoint(f'{server.url}/swin.pth')
    target = cached(server)['swin.pth']
    target.rename(target.with_name(f'{PARTIAL}{"0" * 16}-{target.name}'))
    read_checkpoint(f'{server.url}/swin.pth')
    assert list(cached(server).values()) == [target]
    record_fault('kills')


def test_each_thread_has_its_own_limit_of_time(server):
    """The limit was the socket module's, for all connections of the process."""
    server.answer = None
    ended = []

    def work(seconds):
        download.set_timeout(seconds)
        assert socket.getdefaulttimeout() is None
        with pytest.raises(CheckpointError, match='timed out'):
            read_checkpoint(f'{server.url}/{seconds}.pth')
        ended.append(seconds)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (1.5, 0.1)))
    assert ended == [0.1, 1.5]


def test_processes_wait_for_the_first(server):
    with ThreadPoolExecutor(3) as pool:
        contents = pool.map(lambda _: download.fetch(f'{server.url}/swin.pth', Path.read_bytes), 'abc')
    assert list(contents) == [ZIP] * 3
    assert len(server.paths) == 1


def test_a_folder_that_takes_no_file(record_fault, server, tmp_path):
    (tmp_path / 'hub').write_text('precious')
    with pytest.raises(CheckpointError, match=r'cannot be kept in .*TORCH_HOME names another'):
        read_checkpoint(f'{server.url}/swin.pth')
    assert (tmp_path / 'hub').read_text() == 'precious'
    record_fault('servers')


def test_a_refused_file_is_kept_for_unsafe_load(record_fault, server, tmp_path):
    server.answer = answer(saved({'state_dict': makes_folder(tmp_path / 'made')}))
    for _ in range(2):
        with pytest.raises(CheckpointError, match='refused, because it is more than weights'):
            read_checkpoint(f'{server.url}/swin.pth')
    assert not (tmp_path / 'made').exists()
    read_checkpoint(f'{server.url}/swin.pth', unsafe_load=True)
    assert (tmp_path / 'made').exists()
    assert len(server.paths) == 1
    record_fault('servers')


def through_mmengine(prefix):
    def load(url):
        from mmengine.runner import CheckpointLoader, checkpoint

        from swin_backbone.workbench.weights.loading import install_checkpoint_loaders

        with pytest.MonkeyPatch.context() as patch:
            for models in ('get_external_models', 'get_mmcls_models', 'get_torchvision_models'):
                patch.setattr(checkpoint, models, lambda: {'swin': url})
            install_checkpoint_loaders()
            return CheckpointLoader.load_checkpoint(f'{prefix}swin' if prefix else url)

    return load


def load_from(url):
    from swin_backbone.workbench.weights.loading import load_from_file_or_address

    load_from_file_or_address(url)


WAYS = {
    'init_cfg': lambda url: SwinBackbone(arch='nano', init_cfg=dict(type='Pretrained', checkpoint=url)).init_weights(),
    'load_from': load_from,
    **{prefix or 'http://': through_mmengine(prefix) for prefix in ('', 'open-mmlab://', 'mmcls://', 'torchvision://')},
}


@pytest.mark.parametrize('way', WAYS)
def test_every_way_in_downloads_so(record_fault, server, way):
    if way != 'init_cfg':
        pytest.importorskip('mmengine', reason='mmengine is not installed')
    weights = saved(randomised().state_dict())
    for path, body, message in (
        ('swin.pth', b'<html>Sign in</html>', 'web page'),
        ('swin_20220317-deadbeef.pth', weights, 'invalid hash'),
    ):
        server.answer = answer(body)
        with pytest.raises(CheckpointError, match=message):
            WAYS[way](f'{server.url}/{path}')
        assert not cached(server)
        record_fault('servers')
    server.answer = answer(weights)
    WAYS[way](f'{server.url}/swin.pth')
    assert list(cached(server)) == ['swin.pth']
