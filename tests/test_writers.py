"""Sixteen processes that write the same thing at one moment: each succeeds, or says who works there."""

import json
import multiprocessing
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from helpers.at_once import NUMBER, at_once

from swin_backbone import SwinBackbone, convert_checkpoint
from swin_backbone.checkpoints import read_checkpoint
from swin_backbone.openmmlab.errors import TrainingStopped
from swin_backbone.outputs import FolderInUse, lock_folder
from swin_backbone.whole_files import PARTIAL, remove_leftovers, write_whole


def leftovers(folder):
    return [path.name for path in folder.rglob(f'{PARTIAL}*')]


def write_often(index, path):
    content = bytes([index]) * 100_000
    for _ in range(5):
        write_whole(path, content)
        found = path.read_bytes()
        assert (len(found), len(set(found))) == (100_000, 1)
    return 'whole'


def test_of_many_writers_the_last_ones_file_stays_whole(tmp_path):
    """A third of all writes failed, or left mixed bytes: all had one temporary file."""
    assert at_once(write_often, tmp_path / 'a.bin') == ['whole'] * NUMBER
    assert os.listdir(tmp_path) == ['a.bin']


def test_many_threads_write_one_file(tmp_path):
    with ThreadPoolExecutor(NUMBER) as pool:
        assert list(pool.map(write_often, range(NUMBER), [tmp_path / 'a.bin'] * NUMBER)) == ['whole'] * NUMBER


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path):
    remove_leftovers.cache_clear()
    old, new = tmp_path / f'{PARTIAL}{"0" * 16}-a.png', tmp_path / f'{PARTIAL}{"1" * 16}-a.png'
    folder, mine = tmp_path / f'{PARTIAL}{"2" * 16}-b', tmp_path / f'{PARTIAL}of-me.png'
    folder.mkdir()
    (folder / 'half').touch()
    for path in (old, new, mine):
        path.touch()
    for path in (old, folder, mine):
        os.utime(path, (0, 0))
    write_whole(tmp_path / 'a.png', b'')
    assert sorted(os.listdir(tmp_path)) == sorted([new.name, mine.name, 'a.png'])


class Others:
    """Counts the processes that were refused."""

    def __init__(self, context):
        self.count = context.Value('i', 0)

    def wait(self, number):
        deadline = time.monotonic() + 60
        while self.count.value < number and time.monotonic() < deadline:
            time.sleep(0.01)

    def add(self):
        with self.count.get_lock():
            self.count.value += 1


def train_or_report(index, folder, others):
    report = partial(lock_folder, folder, 'reports in')
    try:
        with lock_folder(folder, 'trains in', 'training'), report(), report():
            others.wait(NUMBER - 1)
            return 'done'
    except (TrainingStopped, FolderInUse) as error:
        others.add()
        return str(error)


def test_one_works_in_a_folder_and_the_others_say_who(tmp_path):
    said = at_once(train_or_report, tmp_path, Others(multiprocessing.get_context('fork')))
    assert said.count('done') == 1
    who = re.compile(rf'process \d+ on \S+, since \S+, trains in {re.escape(str(tmp_path))}: |another process trains')
    assert all(who.match(line) for line in said if line != 'done')
    with lock_folder(tmp_path, 'reports in'):  # it is free again
        pass


def test_a_second_thread_is_refused(tmp_path):
    def work():
        with pytest.raises(FolderInUse, match='reports in'), lock_folder(tmp_path, 'reports in'):
            pass

    with lock_folder(tmp_path, 'reports in'), ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()


LABELS = dict(
    images=[dict(id=1, file_name='a.png', height=64, width=64)],
    annotations=[dict(id=1, image_id=1, category_id=1, bbox=[4, 4, 20, 20], area=400, iscrowd=0)],
    categories=[dict(id=1, name='nut')],
)
RESULTS = [dict(image_id=1, category_id=1, bbox=[4, 4, 20, 20], score=0.75)]


def report(index, folder):
    from swin_backbone.workbench.report.write import write_report

    return write_report(folder / 'out', folder / 'labels.json', folder / 'results.json')['task']


def test_reports_in_one_folder(tmp_path):
    (tmp_path / 'labels.json').write_text(json.dumps(LABELS))
    (tmp_path / 'results.json').write_text(json.dumps(RESULTS))
    said = at_once(report, tmp_path)
    assert said.count('detection') == 1
    allowed = r'FolderInUse: .*reports in|FileExistsError: .*report.json is there already'
    assert all(re.match(allowed, line) for line in said if line != 'detection')
    assert json.loads((tmp_path / 'out' / 'report.json').read_bytes())['best']['F1'] == 1
    assert leftovers(tmp_path) == []


def export_to(index, out, overwrite):
    from swin_backbone.workbench.export.export import replace_folder

    with replace_folder(out, overwrite) as folder:
        (folder / 'model.onnx').write_bytes(bytes([index]) * 1000)
        time.sleep(0.05)
        (folder / 'deploy.json').write_text(str(index))
    return 'exported'


@pytest.mark.parametrize('overwrite', [False, True])
def test_exports_to_one_folder(tmp_path, overwrite):
    out = tmp_path / 'out'
    if overwrite:
        assert export_to(99, out, False) == 'exported'
    said = at_once(export_to, out, overwrite)
    allowed = r'FolderInUse: .*exports .*out, by a lock in|ExportError: --out-dir takes a new folder'
    assert said.count('exported') >= 1
    assert all(re.match(allowed, line) for line in said if line != 'exported')
    writer = int((out / 'deploy.json').read_text())
    assert (out / 'model.onnx').read_bytes() == bytes([writer]) * 1000
    assert leftovers(tmp_path) == []


def test_the_former_export_stays_until_the_new_one_is_in_place(tmp_path, monkeypatch):
    out = tmp_path / 'out'
    export_to(1, out, False)
    replace = type(out).replace

    def refuse(name, path, target):
        if path.name == name:
            raise PermissionError(13, 'a loaded library', str(path))
        return replace(path, target)

    for failing in ('out', 'new'):  # Windows moves no folder of a loaded library
        monkeypatch.setattr(type(out), 'replace', lambda path, target, name=failing: refuse(name, path, target))
        with pytest.raises(PermissionError):
            export_to(2, out, True)
        assert (out / 'deploy.json').read_text() == '1'
        assert leftovers(tmp_path) == []


def shard(index, folder):
    from swin_backbone.workbench.tiles.finished import FinishedTiles

    finished = FinishedTiles(folder, dict(tile=512))
    with finished.lock(index, NUMBER):
        finished.begin(range(index, 10 * NUMBER, NUMBER), False, False)
        for tile in range(index, 10 * NUMBER, NUMBER):
            write_whole(finished.make_path(tile), b'tile')
    return 'done'


def test_shards_of_a_picture_start_together(tmp_path):
    pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')
    assert at_once(shard, tmp_path / 'tiles') == ['done'] * NUMBER
    assert len([*(tmp_path / 'tiles').glob('*.tile')]) == 10 * NUMBER
    assert leftovers(tmp_path) == []


def convert(index, source, target):
    convert_checkpoint(source, target, 'official', overwrite=True)
    return 'converted'


def test_conversions_to_one_file(tmp_path):
    torch.save(dict(state_dict=SwinBackbone(arch='nano').state_dict()), tmp_path / 'a.pth')
    assert at_once(convert, tmp_path / 'a.pth', tmp_path / 'b.pth') == ['converted'] * NUMBER
    assert 'model' in read_checkpoint(tmp_path / 'b.pth')
    assert sorted(os.listdir(tmp_path)) == ['a.pth', 'b.pth']
