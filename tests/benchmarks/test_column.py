"""benchmarks/column.py with stand-ins for the measurements."""

import sys

from benchmarks import column


def test_a_column_has_each_row_and_size(monkeypatch, capsys):
    calls = []

    def measure(args, name, options):
        calls.append(options)
        peers = {} if options[options.index('--peers') + 1] == '' else {'mmdet': 0.4, 'timm': 0.3}
        return {column.OURS: 0.2, column.WITH_CP: 0.1, column.TORCH: 0.2, **peers}

    monkeypatch.setenv('ATEN_CPU_CAPABILITY', 'avx2')
    monkeypatch.setattr(column, 'measure', measure)
    monkeypatch.setattr(sys, 'argv', ['column.py'])
    column.main()
    out = capsys.readouterr().out
    assert '| forward, 512x512, float32 | 200 ms, timm 300, **1.50**; torch 200, 2.00; with_cp 100, 4.00 |' in out
    assert '| training step, 512x512, bfloat16 | 200 ms, 1.00 of float32 |' in out
    assert '| 10240x10240 | 0.2 s | ' in out
    assert len(calls) == len(column.ROWS) + 2 * len(column.SIDES)
