"""benchmarks/windows.py: its literal ways to attend are what they say."""

import pytest
import torch

from benchmarks import windows as benchmark
from swin_backbone.windows.grid import Geometry


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(benchmark.console, 'width', 140)
    return benchmark


@torch.no_grad()
def test_padding_and_rolling_are_the_same_number_as_this_package(windows):
    x = torch.randn(2, 3, 230, 190)  # maps of 58x48, 29x24, 15x12, 8x6
    outputs = {way: windows.build(way, 'nano').eval()(x) for way in windows.WAYS}
    for way, maps in outputs.items():
        same = way not in ('sliding windows', 'windows that do not shift')
        for one, ours in zip(maps, outputs['this package']):
            assert ((one - ours).abs().max() < 1e-4) == same, way


@torch.no_grad()
def test_a_token_attends_to_the_window_around_it(windows):
    qkv = torch.randn(1, 12, 15, 3 * 8)
    bias_hNN = torch.randn(2, 49, 49)
    sliding = windows.SlidingWindows(Geometry(1, 12, 15, (7, 7), (0, 0), False, qkv.device))
    out_BHWC = sliding.attend(qkv, bias_hNN, 0.5, 0.0)
    q, k, v = qkv[0].unflatten(-1, (3, 2, 4)).permute(2, 0, 1, 3, 4)
    for y, x in ((0, 0), (5, 7), (11, 14), (2, 13)):
        rows, columns = range(max(0, y - 3), min(12, y + 4)), range(max(0, x - 3), min(15, x + 4))
        for head in range(2):
            logits = torch.tensor(
                [
                    [
                        0.5 * q[y, x, head] @ k[i, j, head] + bias_hNN[head, 24, (i - y + 3) * 7 + j - x + 3]
                        for j in columns
                    ]
                    for i in rows
                ]
            )
            values = v[rows.start : rows.stop, columns.start : columns.stop, head]
            expected = (logits.flatten().softmax(0).view(logits.shape)[..., None] * values).sum((0, 1))
            torch.testing.assert_close(out_BHWC[0, y, x, 4 * head : 4 * head + 4], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('what', [[], ['--train'], ['--memory']])
def test_a_row_for_each_way(windows, what, monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['windows.py', '--arch', 'nano', '--size', '48', '--runs', '1', *what])
    args = windows.parse_args()
    args.busy_machine = True
    monkeypatch.setattr(windows, 'parse_args', lambda: args)
    monkeypatch.setattr(windows.machine, 'pin_threads', lambda threads: None)
    monkeypatch.setattr(
        windows.timing, 'peak_rss_growth', lambda build, shape, threads: len(build()(torch.ones(shape)))
    )
    windows.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split('│')[1].strip() for line in lines if line.startswith('│')] == list(windows.WAYS)
