"""The explorer computes the windows, regions and masks of `Windows`, in Node.js; the page opens in Chromium."""

import json
import random
import re
import shutil
import subprocess

import pytest
import torch

from swin_backbone.pictures.explorer import explorer_html
from swin_backbone.pictures.layout import map_size
from swin_backbone.windows.grid import Windows, find_indices, fit_window

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
NODE = shutil.which('node')
SETTINGS = 500

# For each setting the tokens and regions of all windows, and facts about some tokens.
CHECK = """
const found = CHECKED.map(({setting, tokens}) => {
  const g = Windows.layOut(setting), all = [...Array(g.counts[0] * g.counts[1]).keys()];
  return {
    size: g.size,
    windows: all.map(n => Windows.places(g, n).map(p => Windows.tokenAt(g, p))),
    regions: all.map(n => Windows.places(g, n).map(p => Windows.regionAt(g, p)).join('')),
    tokens: tokens.map(part => {
      const at = g.size.map((length, axis) => Math.floor(part[axis] * length)), place = Windows.roll(g, at);
      return {at, place, window: Windows.windowAt(g, place), partners: Windows.partners(g, place),
              row: Windows.maskRow(g, place)};
    }),
  };
});
"""


def random_setting(draw):
    return dict(
        height=draw.randint(1, 110),
        width=draw.randint(1, 110),
        stage=draw.randint(1, 4),
        windowHeight=draw.randint(1, 9),
        windowWidth=draw.randint(1, 9),
        shifted=draw.random() < 0.7,
        maskPadding=draw.random() < 0.5,
        smallMap=draw.choice(['pad', 'shrink']),
    )


def run_in_node(tmp_path, check):
    """Run the first script of the page, the arithmetic, without a browser."""
    (arithmetic,) = re.findall(r'<script>(.*?)</script>', explorer_html((224, 224)), re.DOTALL)[:1]
    program = tmp_path / 'explorer.js'
    program.write_text(f'{arithmetic}\n{check}\nconsole.log(JSON.stringify(found));', encoding='utf-8')
    result = subprocess.run([NODE, program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@pytest.mark.skipif(NODE is None, reason='there is no Node.js')
def test_500_settings(tmp_path):
    draw = random.Random(0)
    checked = [
        dict(setting=random_setting(draw), tokens=[[draw.random(), draw.random()] for _ in range(3)])
        for _ in range(SETTINGS)
    ]
    found = run_in_node(tmp_path, CHECK.replace('CHECKED', json.dumps(checked)))
    assert len(found) == SETTINGS
    for one, shown in zip(checked, found):
        setting = one['setting']
        size = map_size((setting['height'], setting['width']), setting['stage'])
        assert tuple(shown['size']) == size
        given = setting['windowHeight'], setting['windowWidth']
        shift = tuple(side // 2 for side in given) if setting['shifted'] else (0, 0)
        window = given
        if setting['smallMap'] == 'shrink':
            window, shift = fit_window(*size, given, shift)
        windows, cpu = Windows(*size, window, shift, setting['maskPadding']), torch.device('cpu')
        token_at = find_indices(windows, cpu)[0].view(-1, window[0] * window[1])
        token_at[token_at == size[0] * size[1]] = -1
        masks = windows.mask(cpu)
        masks = [None] * len(token_at) if masks is None else masks[:, 0]
        expected = dict(zip(map(tuple, token_at.tolist()), masks))
        assert sorted(expected) == sorted(map(tuple, shown['windows']))
        for tokens, regions in zip(shown['windows'], shown['regions']):
            mask = expected[tuple(tokens)]
            together = torch.tensor([[a == b for b in regions] for a in regions])
            assert together.all() if mask is None else torch.equal(together, mask)
        padded = [-(-length // side) * side for length, side in zip(size, window)]
        for token in shown['tokens']:
            (y, x), tokens = token['at'], shown['windows'][token['window']]
            place = tokens.index(y * size[1] + x)
            mask = expected[tuple(tokens)]
            row = [True] * len(tokens) if mask is None else mask[place].tolist()
            assert token['row'] == row
            assert token['partners'] == [t for t, together in zip(tokens, row) if together and t >= 0]
            assert token['place'] == [(at - s) % p for at, s, p in zip((y, x), shift, padded)]


@pytest.mark.skipif(CHROMIUM is None, reason='there is no Chromium to run the page in')
def test_the_page_opens_with_what_it_was_made_for(tmp_path):
    page = tmp_path / 'page.html'
    page.write_text(explorer_html((75, 100), stage=1, window_size=(7, 7)), encoding='utf-8')
    command = [CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={tmp_path / "profile"}']
    result = subprocess.run([*command, '--dump-dom', page.as_uri()], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr[-2000:]
    facts = dict(re.findall(r'<dt>(.*?)</dt><dd>(.*?)</dd>', result.stdout))
    assert facts['map'] == '19 x 25 tokens, padded to 21 x 28'
    assert facts['windows'] == '12 of 7 x 7, shift (3, 3)'
    assert '<div id="error" role="alert"></div>' in result.stdout


def test_the_page_needs_no_network():
    html = explorer_html((224, 224))
    assert '__SETTINGS__' not in html
    assert not re.search(r'https?:|src=|@import|url\(|fetch\(|XMLHttpRequest', html)
