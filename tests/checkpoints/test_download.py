"""Addresses, against a server on this machine that misbehaves in what ways a test asks for."""

import hashlib
import io
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import safetensors.torch
import torch
from filelock import FileLock
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, download


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get('Range')))
        status, body = server.files.get(self.path.partition('?')[0], (404, b'gone'))
        start, total = 0, len(body)
        if server.etag and self.headers.get('Range') and self.headers.get('If-Range') == server.etag:
            start, status = int(self.headers['Range'].removeprefix('bytes=').rstrip('-')), 206
        self.send_response(status)
        self.send_header('Content-Length', str(total - start))
        if status == 206:
            self.send_header('Content-Range', f'bytes {start}-{total - 1}/{total}')
        if server.etag:
            self.send_header('ETag', server.etag)
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None  # how many bytes are sent before the connection ends
        self.wfile.write(body[start:] if cut is None else body[start : start + cut])
        if cut is not None and server.on_cut:
            server.on_cut()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(download, 'PAUSE_S', 0.0)
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.files, server.requests, server.cuts, server.etag, server.on_cut = {}, [], [], '"one"', None
    server.url = f'http://127.0.0.1:{server.server_port}'
    server.cache = tmp_path / 'hub' / 'checkpoints'
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def contents(**arguments):
    torch.save(randomised(**arguments).state_dict(), buffer := io.BytesIO())
    return buffer.getvalue()


def cached(server):
    """The files that are kept, by their names without what stands for the address."""
    return {path.name.partition('-')[2]: path for path in server.cache.iterdir() if path.suffix != '.lock'}


def load(url):
    return load_checkpoint(SwinBackbone(arch='nano'), url)


def test_a_file_is_downloaded_once(server):
    server.files['/a/swin.pth'] = (200, contents())
    for _ in range(2):
        assert not load(f'{server.url}/a/swin.pth?download=true').missing
    assert len(server.requests) == 1
    assert list(cached(server)) == ['swin.pth']


def test_init_cfg_and_safetensors(server):
    server.files['/swin.safetensors'] = (200, safetensors.torch.save(randomised().state_dict()))
    cfg = dict(type='Pretrained', checkpoint=f'{server.url}/swin.safetensors')
    SwinBackbone(arch='nano', init_cfg=cfg).init_weights()
    assert list(cached(server)) == ['swin.safetensors']


def test_a_cut_connection_goes_on_where_it_was(server):
    body = contents()
    server.files['/swin.pth'] = (200, body)
    server.cuts = [1000, 2000]
    assert not load(f'{server.url}/swin.pth').missing
    assert [span for _, span in server.requests] == [None, 'bytes=1000-', 'bytes=3000-']
    assert cached(server)['swin.pth'].read_bytes() == body


def test_a_server_that_cannot_resume_is_asked_anew(server):
    server.etag = None
    server.files['/swin.pth'] = (200, contents())
    server.cuts = [1000]
    assert not load(f'{server.url}/swin.pth').missing
    assert [span for _, span in server.requests] == [None, None]


def test_a_file_that_changed_meanwhile_is_begun_anew(server):
    server.files['/swin.pth'] = (200, contents())
    server.cuts = [1000]
    body = contents()

    def exchange():
        server.etag, server.files['/swin.pth'] = '"two"', (200, body)

    server.on_cut = exchange
    assert not load(f'{server.url}/swin.pth').missing
    assert cached(server)['swin.pth'].read_bytes() == body


def test_it_gives_up_and_leaves_nothing(server):
    server.files['/swin.pth'] = (200, contents())
    server.cuts = [0] * 99
    with pytest.raises(CheckpointError, match=r'could not be downloaded in 5 attempts: .* cut after 0 of \d+ bytes'):
        load(f'{server.url}/swin.pth')
    assert len(server.requests) == download.ATTEMPTS
    assert not cached(server)


@pytest.mark.parametrize(('status', 'requests'), [(404, 1), (403, 1), (503, 5)])
def test_what_the_server_answers_is_said(server, status, requests):
    server.files['/swin.pth'] = (status, b'')
    with pytest.raises(CheckpointError, match=rf'/swin\.pth.*{status}'):
        load(f'{server.url}/swin.pth')
    assert len(server.requests) == requests
    assert not cached(server)


def test_nobody_there(server, monkeypatch):
    with pytest.raises(CheckpointError, match='could not be downloaded in 5 attempts'):
        load('http://127.0.0.1:9/swin.pth')


def test_a_page_instead_of_weights(server):
    server.files['/swin.pth'] = (200, b'<html>Sign in</html>')
    with pytest.raises(CheckpointError, match=r'a web page \(HTML\)'):
        load(f'{server.url}/swin.pth')


@pytest.mark.parametrize('name', ['swin_20220317-{}.pth', 'mask-rcnn_swin-t_20210902_120937-{}.pth', 'swin_t-{}.pth'])
def test_the_hash_in_a_name_is_checked(server, name):
    body = contents()
    while not (digest := hashlib.sha256(body).hexdigest()[:8]).strip('0123456789'):
        body = contents()
    right, wrong = name.format(digest), name.format('deadbeef')
    server.files = {f'/{right}': (200, body), f'/{wrong}': (200, body)}
    assert not load(f'{server.url}/{right}').missing
    with pytest.raises(CheckpointError, match='does not have the SHA-256 its name says, deadbeef'):
        load(f'{server.url}/{wrong}')
    assert list(cached(server)) == [right]
    cached(server)[right].write_bytes(body[:-1])  # what an earlier program left there
    assert not load(f'{server.url}/{right}').missing
    assert len(server.requests) == 3


@pytest.mark.parametrize('name', ['swin-20220317.pth', 'swin_tiny_patch4_window7_224_22k.pth', 'swin-224.pth'])
def test_what_is_no_hash_is_not_taken_for_one(server, name):
    server.files[f'/{name}'] = (200, contents())
    assert not load(f'{server.url}/{name}').missing


def test_files_of_one_name_in_two_repositories_are_two(server):
    for number, owner in enumerate(('microsoft', 'timm')):
        body = safetensors.torch.save({**randomised().state_dict(), 'norm0.bias': torch.full((32,), float(number))})
        server.files[f'/{owner}/swin-tiny/resolve/main/model.safetensors'] = (200, body)
    for number, owner in enumerate(('microsoft', 'timm')):
        backbone = SwinBackbone(arch='nano')
        load_checkpoint(backbone, f'{server.url}/{owner}/swin-tiny/resolve/main/model.safetensors')
        assert backbone.norm0.bias[0] == number


def test_what_a_killed_process_left_is_removed_by_the_next_download(record_fault, server):
    """But no file of others, and none that a process goes on with, which holds its lock."""
    server.files['/swin.pth'] = (200, contents())

    def begin_and_die(url, partial):
        partial.write_bytes(contents()[:100_000])
        os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if not process:
        download._download = begin_and_die
        download.fetch(f'{server.url}/killed.pth', Path.read_bytes)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    (left,) = server.cache.glob('.partial-*killed.pth')
    for name in ('.partial-mine.pth', f'.partial-{"0" * 16}-going-on.pth'):
        (server.cache / name).touch()
    with FileLock(server.cache / f'{"0" * 16}-going-on.pth.lock'):
        assert not load(f'{server.url}/swin.pth').missing
    assert not left.exists()
    assert {path.name for path in server.cache.glob('.partial-*')} == {
        '.partial-mine.pth', f'.partial-{"0" * 16}-going-on.pth',
    }  # fmt: skip
    record_fault('kills')


def test_processes_wait_for_the_first(server):
    server.files['/swin.pth'] = (200, contents())
    sizes: list[int] = []
    threads = [
        threading.Thread(target=lambda: sizes.append(len(download.fetch(f'{server.url}/swin.pth', Path.read_bytes))))
        for _ in 'abc'
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [len(server.files['/swin.pth'][1])] * 3
    assert len(server.requests) == 1
