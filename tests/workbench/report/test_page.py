"""The page is one file with valid references, escaped names and no network. It opens in Chromium without an error."""

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import cv2
import numpy as np
import pytest
from markupsafe import escape
from pycocotools.cocoeval import Params
from scenes import as_coco, scene

from swin_backbone.workbench.report.analyse import report_detection
from swin_backbone.workbench.report.confusion import PixelCounts, report_classification
from swin_backbone.workbench.report.detection import evaluate
from swin_backbone.workbench.report.page import find_common_kind, list_main_metrics, render
from swin_backbone.workbench.report.thumbnails import draw_labels

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
ODD = '<b>"c0" & Ü</b>'  # name of a class
LOG = dict(losses={'loss': [[1, 2.5], [2, 1.5]], 'loss_cls': [[1, 1.0]]}, rates={}, metrics={}, by_epoch=True)


def of_boxes(files):
    truth, results = scene(0, crowd=0.1)
    truth.cats[5]['name'] = ODD
    return report_detection([evaluate(truth, results, Params(kind)) for kind in ('bbox', 'segm')], files)


def of_pixels(files):
    counts, label = PixelCounts([ODD, 'road'], 255), np.zeros((20, 30), np.uint8)
    label[:10] = 255
    counts.add(files[1], label, (label == 0).astype(np.uint8))
    picture = draw_labels(files[1], *counts.worst[0][2:], [(255, 0, 0), (0, 255, 0)], 255)
    return counts.summarize(), dict(pictures=[picture])


def of_scores(files):
    return report_classification([files[1]], np.array([0]), np.array([[0.2, 0.8]]), [ODD, 'road']), dict(pictures=[{}])


@pytest.fixture(params=[of_boxes, of_pixels, of_scores])
def page(request, tmp_path):
    """Write a page, and return report and path."""
    files = {number: str(tmp_path / f'{number} #1.jpg') for number in range(1, 120, 3)}
    for file in files.values():
        cv2.imwrite(file, np.full((150, 200, 3), 99, np.uint8))
    report, thumbnails = request.param(files)
    report.update(title='a <model>', checkpoint='1.pth', tested=40, metrics={'coco/bbox_mAP': 0.1}, log=LOG)
    report['compared_kind'] = find_common_kind([report])
    values = {**list_main_metrics(report, report['compared_kind']), ODD: None}
    report['compared'] = [dict(name='before', settings='lr\n  - 1\n  + 2', values=values)]
    path = tmp_path / 'out' / 'index.html'
    path.parent.mkdir()
    path.write_text(render(report, thumbnails, path.parent), encoding='utf-8')
    return report, path


def test_the_page_is_one_valid_file_with_true_links(page):
    report, path = page
    html = path.read_text(encoding='utf-8')
    ids = re.findall(r'\sid="([^"]*)"', html)
    links = [unescape(link) for link in re.findall(r'\s(?:href|src)="([^"]*)"', html)]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link[0] == '#'} <= set(ids)
    pictures = [link for link in links if link.startswith('data:image/webp;base64,')]
    assert bool(pictures) == (report['task'] != 'classification')
    files = [link for link in links if link[0] != '#' and link not in pictures]
    assert files
    assert all((path.parent / unquote(link)).is_file() for link in files)
    assert not re.search(r'https?:|@import|url\(|fetch\(|XMLHttpRequest', html)
    assert 'prefers-color-scheme: dark' in html
    assert escape(ODD) in html
    assert '<b>"c0"' not in html
    assert len(html) < 2**21


def test_the_summary_names_worst_class_threshold_and_error(page):
    report, path = page
    summary = path.read_text(encoding='utf-8').split('class="cards"')[1].split('<section>')[0]
    worst = min(row[report['metric']] for row in report['classes'] if row[report['metric']] is not None)
    facts = [f'{report["metric"]} {worst:.3f}']
    if report['task'] == 'detection':
        facts += [f'<b>{report["best"]["threshold"]:.2f}</b>', f'<b>{report["errors"][0]["kind"]}</b>']
        facts.append(f'<b>{sum(map(len, report["labels"].values()))}</b>')
    assert [fact for fact in facts if fact not in summary] == []


def test_the_summary_names_nothing_without_objects():
    truth = as_coco(range(2), [], 2)
    report, thumbnails = report_detection([evaluate(truth, [], Params('bbox'))], {0: '0.jpg', 1: '1.jpg'})
    report.update(title='', checkpoint='', tested=2, metrics={}, log=None, compared=[], compared_kind=None)
    page = render(report, thumbnails, Path())
    assert [words for words in ('worst class', 'best threshold', 'main kind', '--score-thr') if words in page] == []


@pytest.mark.skipif(CHROMIUM is None, reason='there is no Chromium to open the page')
def test_chromium_shows_the_page_without_an_error(page, tmp_path):
    _, path = page
    click = "document.querySelector('#classes ~ * th:nth-child(2) button').click(); document.title = 'sorted'"
    path.write_text(path.read_text(encoding='utf-8').replace('</body>', f'<script>{click}</script></body>'))
    command = [CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={tmp_path / "profile"}']
    command += ['--enable-logging=stderr', '--dump-dom', path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert 'CONSOLE' not in shown.stderr, shown.stderr
    assert '<title>sorted</title>' in shown.stdout
    rows = re.search(r'<tbody>(.*?)</tbody>', shown.stdout, re.DOTALL)[1].split('</tr>')[:-1]
    counts = [int(re.findall(r'<td>(\d+)</td>', row)[0]) for row in rows]
    assert counts == sorted(counts)
