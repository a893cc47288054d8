"""Servers that send something else than a checkpoint, too little, too much, too slowly, or nothing.

Whatever a server does, a download ends in the checkpoint or in one sentence, nothing else keeps its name, and the next
attempt, at a server that behaves, succeeds.
"""

import contextlib
import gzip
import hashlib
import io
import os
import socket
import socketserver
import ssl
import struct
import threading
import time
import zipfile

import pytest
import safetensors.torch
import torch
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, download, read_checkpoint
from swin_backbone.openmmlab.checkpointing.loading import load_from_file_or_address, read_checkpoints_safely

TIMEOUT_S = 0.15
MOST_BYTES = 16 << 20
# Of localhost, signed by itself, until 2126
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQglvrT8vIjHH7FcFom
ohR9WDpbsR23Q1KBNolKz32mOtOhRANCAAS9yETqRiwqI8DuUyMkda3cT3ZyYhF2
gG1VLtPYULyiLl/hzwSC97wm23hDBiZa9n66r9gszGNovKnY9NkGmPY+
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUVQ007ZaPaI97i5kr+ocOJddg0HgwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjE3NDYwMFoYDzIxMjYxMDI5
MTc0NjAwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS9yETqRiwqI8DuUyMkda3cT3ZyYhF2gG1VLtPYULyiLl/hzwSC97wm
23hDBiZa9n66r9gszGNovKnY9NkGmPY+o2kwZzAdBgNVHQ4EFgQU0F/UHAa5C0Zs
Rarc+Cd0ZTikd+MwHwYDVR0jBBgwFoAU0F/UHAa5C0ZsRarc+Cd0ZTikd+MwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIgdcuPJovD1jK6arBwYwbbEKa9oGlYwwR3Gxnx74wAU5cCIQD+NfpVVCc2
opHEfWg+y/1LGLKqDw0Gq+LRAWhMWFWKDw==
-----END CERTIFICATE-----
"""


def saved(**options):
    torch.save({'state_dict': {'weight': torch.arange(1000.0)}}, buffer := io.BytesIO(), **options)
    return buffer.getvalue()


ZIP, LEGACY = saved(), saved(_use_new_zipfile_serialization=False)
SAFETENSORS = safetensors.torch.save({'weight': torch.arange(1000.0)})
FLIPPED = bytearray(ZIP)
FLIPPED[ZIP.index(torch.arange(1000.0).numpy().tobytes()) + 100] ^= 1


class Answer(socketserver.BaseRequestHandler):
    """Reads the head of a request, or the start of a handshake in TLS, and leaves the connection to `answer`."""

    def handle(self):
        head = b''
        while not (head.startswith(b'\x16') or b'\r\n\r\n' in head) and (more := self.request.recv(4096)):
            head += more
        if head:
            self.server.requests.append(head.decode('latin-1'))
            with contextlib.suppress(OSError):  # the client has gone
                self.server.answer(self.request)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_):  # a handshake in TLS that fails
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(download, 'PAUSE_S', 0.0)
    monkeypatch.setattr(download, 'ATTEMPTS', 2)
    monkeypatch.setattr(download, 'MOST_BYTES', MOST_BYTES)
    monkeypatch.setattr(download, '_timeout', TIMEOUT_S)
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    server = Server(('127.0.0.1', 0), Answer)
    server.requests, server.answer = [], sends(ZIP)
    server.url = f'http://127.0.0.1:{server.server_address[1]}'
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def kept(tmp_path):
    folder = tmp_path / 'hub' / 'checkpoints'
    return sorted(path.name for path in folder.iterdir() if path.suffix != '.lock') if folder.exists() else []


def head(status='200 OK', *headers):
    return '\r\n'.join([f'HTTP/1.1 {status}', 'Connection: close', *headers, '', '']).encode()


def sends(body, status='200 OK', *headers, length=True):
    """An answer; `length` is what it says of its own."""
    length = len(body) if length is True else length
    said = [] if length is None else [f'Content-Length: {length}']

    def answer(connection):
        connection.sendall(head(status, *said, *headers) + body)

    return answer


def raw(*parts, pause=0.0):
    """Bytes as they are, and an iterator of them that may not end."""

    def answer(connection):
        for part in parts:
            for piece in [part] if isinstance(part, bytes) else part():
                connection.sendall(piece)
                time.sleep(pause)

    return answer


def endless(piece):
    def pieces():
        end = time.monotonic() + 5  # for a client that would take them all
        while time.monotonic() < end:
            yield piece

    return pieces


def waits(*parts):
    def answer(connection):
        raw(*parts)(connection)
        connection.recv(1)  # until the client closes it

    return answer


def resets(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.close()


def in_turn(*answers):
    left = list(answers)
    return lambda connection: (left.pop(0) if len(left) > 1 else left[0])(connection)


def zipped():
    with zipfile.ZipFile(buffer := io.BytesIO(), 'w') as archive:
        archive.writestr('word/document.xml', 'x' * 1000)
    return buffer.getvalue()


CHUNKED = head('200 OK', 'Transfer-Encoding: chunked')
TAGGED = 'ETag: "one"'
SERVERS = {
    'a page': (sends(b'<!DOCTYPE html><html>Sign in</html>'), 'web page'),
    'a page behind blanks': (sends(b'\n\n  <html>Sign in</html>'), 'web page'),
    'a page without end': (raw(head(), endless(b'<p>Sign in</p>' * 100)), 'web page'),
    'an error in JSON': (sends(b'{"error": "no such file"}'), 'no checkpoint'),
    'a page under the type of a file': (sends(b'<html>', '200 OK', 'Content-Type: application/zip'), 'web page'),
    'a pointer of Git LFS': (sends(b'version https://git-lfs.github.com/spec/v1\noid'), 'Git LFS'),
    'nothing': (sends(b''), 'empty'),
    'no content': (raw(head('204 No Content')), 'empty'),
    'another archive': (sends(zipped()), 'no checkpoint'),
    'another pickle': (sends(b'\x80\x02}q\x00.'), 'no checkpoint'),
    'a zip archive cut': (sends(ZIP[:-100], length=len(ZIP)), 'cut after'),
    'a zip archive cut without a length': (sends(ZIP[:-100], length=None), 'truncated'),
    'safetensors cut without a length': (sends(SAFETENSORS[:-100], length=None), 'truncated'),
    'an old file cut without a length': (sends(LEGACY[:-100], length=None), 'truncated'),
    'a length that is too small': (sends(ZIP, length=len(ZIP) - 100), 'truncated'),
    'a length that is too large': (sends(ZIP, length=len(ZIP) + 100), 'cut after'),
    'a length of a petabyte': (sends(ZIP, length=10**15), 'more than the'),
    'a bit flipped': (sends(bytes(FLIPPED)), 'CRC'),
    'a body without end': (raw(head(), ZIP, endless(bytes(1 << 16))), 'more than the'),
    'chunks without end': (raw(CHUNKED, endless(b'10000\r\nPK' + bytes((1 << 16) - 2) + b'\r\n')), 'more than the'),
    'chunks that end early': (raw(CHUNKED, b'1000\r\n' + ZIP[:100]), 'could not be downloaded'),
    'a chunk without a size': (raw(CHUNKED, b'many\r\n' + ZIP[:100]), 'could not be downloaded'),
    'a body that drips': (raw(head('200 OK', f'Content-Length: {len(ZIP)}'), endless(b'P'), pause=0.02), 'bytes in'),
    'chunks that drip': (raw(CHUNKED, endless(b'1\r\nP\r\n'), pause=0.02), 'bytes in'),
    'a head that drips': (raw(b'HTTP/1.1 200 OK\r\nX: ', endless(b'x'), pause=0.02), 'could not be downloaded'),
    'a head that stands still': (waits(b'HTTP/1.1 200 OK\r\n'), 'could not be downloaded'),
    'a body that stands still': (waits(head('200 OK', 'Content-Length: 1000'), ZIP[:100]), 'timed out'),
    'no answer': (waits(), 'could not be downloaded'),
    'a connection that is closed': (raw(), 'could not be downloaded'),
    'a connection that is reset': (resets, 'could not be downloaded'),
    'another protocol': (raw(b'220 ready\r\n' * 10), 'could not be downloaded'),
    'a head without end': (raw(b'HTTP/1.1 200 OK\r\nX: ', endless(b'x' * 10000)), 'could not be downloaded'),
    'headers without end': (raw(b'HTTP/1.1 200 OK\r\n', endless(b'X: y\r\n')), 'could not be downloaded'),
    'packed': (sends(gzip.compress(ZIP), '200 OK', 'Content-Encoding: gzip'), 'gzip'),
    'packed by its own word alone': (sends(ZIP, '200 OK', 'Content-Encoding: gzip'), 'gzip'),
    'packed without a word': (sends(gzip.compress(ZIP)), 'no checkpoint'),
    'not what was asked for': (sends(ZIP[100:], '206 Partial Content', 'Content-Range: bytes 100-'), 'another part'),
    'another part after a cut': (
        in_turn(sends(ZIP[:100], '200 OK', TAGGED, length=len(ZIP)),
                sends(ZIP[200:], '206 Partial Content', TAGGED, f'Content-Range: bytes 200-{len(ZIP)}')),
        'another part',
    ),
    'another file after a cut': (
        in_turn(sends(ZIP[:100], '200 OK', TAGGED, length=len(ZIP)),
                sends(bytes(len(ZIP) - 100), '206 Partial Content', TAGGED, f'Content-Range: bytes 100-{len(ZIP)}')),
        'truncated',
    ),
    'to itself': (sends(b'', '302 Found', 'Location: /swin.pth'), '302'),
    'to ftp': (sends(b'', '302 Found', 'Location: ftp://127.0.0.1/swin.pth'), 'ftp://127.0.0.1/swin.pth'),
    'to a file': (sends(b'', '302 Found', 'Location: file:///etc/passwd'), '302|file:'),
    'to data': (sends(b'', '302 Found', 'Location: data:,swin'), '302|data:'),
    'to nowhere': (sends(b'', '302 Found'), '302'),
    'to no address': (sends(b'', '302 Found', 'Location: http://[::1/swin.pth'), 'no address'),
    'to a port that is none': (sends(b'', '302 Found', 'Location: http://127.0.0.1:http/'), 'no address'),
    **{f'{code}': (sends(b'<html>', f'{code} said'), f'{code} said') for code in (400, 401, 403, 404, 410, 451)},
    **{f'{code}': (sends(b'<html>', f'{code} said'), f'{code} said') for code in (429, 500, 502, 503, 504)},
    **{f'{code}': (sends(ZIP, f'{code} said'), f'{code} said') for code in (300, 304, 305, 600)},
}  # fmt: skip


@pytest.mark.parametrize('what', SERVERS)
def test_what_is_no_checkpoint_does_not_get_its_name(record_fault, server, tmp_path, what, monkeypatch):
    server.answer, said = SERVERS[what]
    if not any(word in what for word in ('drip', 'stands still', 'no answer')):  # a busy machine may answer late
        monkeypatch.setattr(download, '_timeout', 3)
    url = f'{server.url}/swin.pth'
    begin = time.monotonic()
    with pytest.raises(CheckpointError, match=said) as caught:
        read_checkpoint(url)
    assert time.monotonic() - begin < 4  # and not as long as the server likes; a bound, and no timing
    assert str(caught.value).startswith(f'checkpoint {url!r}: ')
    assert len(str(caught.value).splitlines()) == 1
    assert kept(tmp_path) == []
    server.answer = sends(ZIP)
    assert read_checkpoint(url)['state_dict']['weight'][999] == 999
    record_fault('servers')


GOOD = {
    'chunks': raw(CHUNKED, f'{len(ZIP):x}\r\n'.encode() + ZIP + b'\r\n0\r\n\r\n'),
    'no length': sends(ZIP, length=None),
    'a length that is no number': sends(ZIP, length='many'),
    'a length below zero': sends(ZIP, length=-5),
    'an old file': sends(LEGACY),
    'safetensors': sends(SAFETENSORS),
    'the type of a page': sends(ZIP, '200 OK', 'Content-Type: text/html'),
    'another place': in_turn(sends(b'', '302 Found', 'Location: /there/swin.pth'), sends(ZIP)),
    'a cut, and no word of its version': in_turn(sends(ZIP[:100], length=len(ZIP)), sends(ZIP)),
    'a cut, and another version': in_turn(
        sends(ZIP[:100], '200 OK', TAGGED, length=len(ZIP)), sends(LEGACY, '200 OK', 'ETag: "two"')
    ),
    'an error that passes': in_turn(sends(b'', '503 busy'), sends(ZIP)),
}  # fmt: skip


@pytest.mark.parametrize('what', GOOD)
def test_what_is_one_is_kept(record_fault, server, tmp_path, what):
    server.answer = GOOD[what]
    for _ in range(2):
        read_checkpoint(f'{server.url}/swin.pth')
        number = len(server.requests)
        server.answer = resets
    assert len(server.requests) == number  # the second time nobody is asked
    assert len(kept(tmp_path)) == 1
    record_fault('servers')


@pytest.mark.parametrize(
    'before', [b'', b'<html>Sign in</html>', ZIP[:-100], bytes(FLIPPED), SAFETENSORS[:-1], LEGACY[:-1], b'PK']
)
def test_a_bad_file_from_before_is_downloaded_again(record_fault, server, tmp_path, before):
    url = f'{server.url}/swin.pth'
    read_checkpoint(url)
    (name,) = kept(tmp_path)
    (tmp_path / 'hub' / 'checkpoints' / name).write_bytes(before)
    assert read_checkpoint(url)['state_dict']['weight'][999] == 999
    assert (tmp_path / 'hub' / 'checkpoints' / name).read_bytes() == ZIP
    assert len(server.requests) == 2
    record_fault('servers')


def test_addresses_are_told_apart_by_all_that_is_in_them(record_fault, server, tmp_path):
    addresses = ['/a/swin.pth', '/b/swin.pth', '/a/swin.pth?version=2', '/a%2Fswin.pth', '/A/swin.pth']
    other = server.url.replace('127.0.0.1', 'localhost')
    for number, address in enumerate([*(server.url + one for one in addresses), other + addresses[0]]):
        torch.save({'number': number}, buffer := io.BytesIO())
        server.answer = sends(buffer.getvalue())
        assert read_checkpoint(address)['number'] == number
        record_fault('servers')
    assert len(kept(tmp_path)) == 6


@pytest.mark.parametrize(
    'address',
    ['http://', 'http:///swin.pth', 'http://[::1/swin.pth', 'http://127.0.0.1:http/swin.pth', 'http://./swin.pth',
     'http://127.0.0.1:99999/swin.pth', 'http://127.0.0.1/a b/swin.pth', 'http://127.0.0.1/schön/swin.pth',
     'http://127.0.0.1', 'http://127.0.0.1/folder/', 'http://127.0.0.1/%00', 'http://127.0.0.1/..',
     'http://' + 'x' * 300 + '/swin.pth', 'http://127.0.0.1/' + 'x' * 300, 'file://', 'ftp://127.0.0.1/swin.pth'],
)  # fmt: skip
def test_what_is_no_address(record_fault, server, tmp_path, address):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(address)
    assert len(str(caught.value).splitlines()) == 1
    assert kept(tmp_path) == []
    record_fault('servers')


def test_a_server_without_tls_and_one_that_cannot_prove_who_it_is(record_fault, server, tmp_path):
    url = server.url.replace('http', 'https').replace('127.0.0.1', 'localhost') + '/swin.pth'
    server.answer = raw(head('400 Bad Request'))
    with pytest.raises(CheckpointError, match=r'could not be downloaded in 2 attempts: SSLError'):
        read_checkpoint(url)
    record_fault('servers')
    (tmp_path / 'certificate.pem').write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / 'certificate.pem')
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with pytest.raises(CheckpointError, match=r'the server cannot prove who it is: self-signed certificate'):
        read_checkpoint(url)
    assert kept(tmp_path) == []
    record_fault('servers')


def test_an_interrupted_download_leaves_nothing(record_fault, server, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    for name in ('check_start', '_hash_is_right'):
        with monkeypatch.context() as patch:
            patch.setattr(download, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                read_checkpoint(f'{server.url}/swin.pth')
        assert kept(tmp_path) == []
        record_fault('servers')
    read_checkpoint(f'{server.url}/swin.pth')


def test_a_folder_that_takes_no_file(record_fault, server, tmp_path):
    (tmp_path / 'hub').write_text('precious')
    with pytest.raises(CheckpointError, match=r'cannot be kept in .*TORCH_HOME names another'):
        read_checkpoint(f'{server.url}/swin.pth')
    assert (tmp_path / 'hub').read_text() == 'precious'
    record_fault('servers')


class Runs:
    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.mkdir, (str(self.made),)


def test_what_is_refused_is_kept_for_whoever_allows_it(record_fault, server, tmp_path):
    made = tmp_path / 'made'
    torch.save({'state_dict': Runs(made)}, buffer := io.BytesIO())
    server.answer = sends(buffer.getvalue())
    for _ in range(2):
        with pytest.raises(CheckpointError, match='refused, because it is more than weights'):
            read_checkpoint(f'{server.url}/swin.pth')
    assert not made.exists()
    read_checkpoint(f'{server.url}/swin.pth', unsafe_load=True)
    assert made.exists()
    assert len(server.requests) == 1
    record_fault('servers')


WAYS = {
    'load_checkpoint': lambda url: load_checkpoint(SwinBackbone(arch='nano'), url),
    'init_cfg': lambda url: SwinBackbone(
        arch='nano', init_cfg=dict(type='Pretrained', checkpoint=url)
    ).init_weights(),
    'load_from': load_from_file_or_address,
}  # fmt: skip


def through_mmengine(prefix):
    def load(url):
        from mmengine.runner import CheckpointLoader, checkpoint

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, 'get_external_models', lambda: {'swin': url})
            patch.setattr(checkpoint, 'get_mmcls_models', lambda: {'swin': url})
            patch.setattr(checkpoint, 'get_torchvision_models', lambda: {'swin': url})
            read_checkpoints_safely()
            return CheckpointLoader.load_checkpoint(f'{prefix}swin' if prefix else url)

    return load


WAYS.update(
    {prefix or 'http://': through_mmengine(prefix) for prefix in ('', 'open-mmlab://', 'mmcls://', 'torchvision://')}
)


@pytest.mark.parametrize('way', WAYS)
def test_every_way_in_downloads_so(record_fault, server, tmp_path, way):
    torch.save(randomised().state_dict(), buffer := io.BytesIO())
    name = f'swin-{hashlib.sha256(b"another").hexdigest()[:8]}.pth'
    for path, body, message in (
        ('swin.pth', b'<html>Sign in</html>', 'web page'),
        (name.replace('swin-', 'swin_20220317-'), buffer.getvalue(), 'SHA-256'),
    ):
        server.answer = sends(body)
        with pytest.raises(CheckpointError, match=message):
            WAYS[way](f'{server.url}/{path}')
        assert kept(tmp_path) == []
        record_fault('servers')
    server.answer = sends(buffer.getvalue())
    WAYS[way](f'{server.url}/swin.pth')
    assert len(kept(tmp_path)) == 1
