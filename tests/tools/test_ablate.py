"""tools/ablate.py: what each row takes away, and a table that goes on where it was."""

import argparse
import json

import numpy as np
import pytest
import torch
from rich.progress import Progress


@pytest.fixture
def ablate(monkeypatch):
    from helpers.in_process import ROOT

    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    import ablate

    monkeypatch.setattr(ablate, 'TRAIN', 3)
    monkeypatch.setattr(ablate, 'VAL', 2)
    monkeypatch.setattr(ablate, 'BATCH', 2)
    return ablate


def test_each_row_lacks_what_it_says_and_keeps_the_rest(ablate):
    for name, row in ablate.ROWS.items():
        backbone = ablate.train(row, 0, 2, torch.randn(4, 1, 64, 64), torch.arange(4), Progress(disable=True)).backbone
        blocks = [block for stage in backbone.stages for block in stage.blocks]
        tables = [block.attn.w_msa.relative_position_bias_table for block in blocks]
        assert any(any(block.cut.shift) for block in blocks) == (name != 'no-shift')
        assert all(bool(table.any()) == (name in ('no-shift', 'both', 'swin')) for table in tables)
        assert (backbone.absolute_pos_embed is not None) == (name in ('absolute', 'both'))


def test_a_shape_is_cut_out_whole(ablate):
    mask = np.zeros((128, 128), bool)
    mask[60:88, 50:64] = True
    cut = ablate.cut_out(mask.astype(np.float32), mask)
    rows, columns = np.nonzero(cut > 0.5)
    assert cut.shape == (64, 64)
    assert rows.max() - rows.min() + 1 >= 0.95 * 64 / ablate.MARGIN
    assert abs(columns.mean() - 31.5) < 1.5
    assert cut.sum() >= 0.95 * mask.sum() * (64 / (ablate.MARGIN * 28)) ** 2


def test_a_run_whose_result_is_there_is_not_repeated(ablate, tmp_path, monkeypatch, capsys):
    document = tmp_path / 'page.md'
    document.write_text(f'before\n\n{ablate.BEGIN}\n\nold\n\n{ablate.END}\n\nbehind\n')
    monkeypatch.setattr('sys.argv', ['ablate.py', '--seeds', '2', '--steps', '1', '--out', str(tmp_path / 'out')])
    trained, train = [], ablate.train
    monkeypatch.setattr(ablate, 'train', lambda *args: trained.append(args[1]) or train(*args))
    for number, name in enumerate(ablate.ROWS):  # all results of seed 0, and of seed 1 all but one
        for seed in (0, 1)[: 1 + (name != 'swin')]:
            path = ablate.result_file(tmp_path / 'out', name, seed, 1)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(dict(top1=10.0 * number + seed, loss=1.0)))
    args = argparse.Namespace(**vars(ablate.parse_args()) | dict(docs=document))
    monkeypatch.setattr(ablate, 'parse_args', lambda: args)
    ablate.main()
    assert trained == [1]
    text = document.read_text()
    assert '| shifted windows, no position | 10.5 ± 0.7 | 1.00 ± 0.00 |' in text
    assert text.startswith('before\n')
    assert text.endswith('behind\n')
    assert 'old' not in text
    ablate.main()
    assert trained == [1]
    assert '10 of 10 runs are there already' in capsys.readouterr().out
