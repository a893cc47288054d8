"""The explorer computes the windows, regions and masks of `lay_out`, in Node.js; the page opens in Chromium."""

import json
import random
import re
import shutil
import subprocess

import pytest

from swin_backbone.workbench.pictures.explorer import explorer_html
from swin_backbone.workbench.pictures.layout import lay_out, map_size

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
    results = run_in_node(tmp_path, CHECK.replace('CHECKED', json.dumps(checked)))
    assert len(results) == SETTINGS
    for setting, shown in zip((one['setting'] for one in checked), results):
        size = map_size((setting['height'], setting['width']), setting['stage'])
        assert tuple(shown['size']) == size
        window = setting['windowHeight'], setting['windowWidth']
        layout = lay_out(size, window, setting['shifted'], setting['maskPadding'], setting['smallMap'])
        masks = [layout.kinds[kind].mask_NN for kind in layout.kind_RC.ravel()]
        for number, (tokens, regions) in enumerate(zip(shown['windows'], shown['regions'])):
            assert tokens == layout.token_HW[layout.window_HW == number].tolist()
            together = [[a == b for b in regions] for a in regions]
            assert together == masks[number].tolist()
        assert len(shown['windows']) == len(masks)
        for token in shown['tokens']:
            (y, x), tokens = token['at'], shown['windows'][token['window']]
            row = masks[token['window']][tokens.index(y * size[1] + x)].tolist()
            assert token['row'] == row
            assert token['partners'] == [t for t, together in zip(tokens, row) if together and t >= 0]
            assert layout.token_HW[tuple(token['place'])] == y * size[1] + x


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
