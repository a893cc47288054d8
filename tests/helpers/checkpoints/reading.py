"""Reads checkpoints in a process of its own, where a crash, a file, a socket and a peak of memory are seen.

python -m helpers.checkpoints.reading FILE...    prints a line of JSON for each, before it is read and after
"""

import faulthandler
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import peak_rss
from helpers import PYTHONPATH
from swin_backbone.checkpoints import CheckpointError, read_checkpoint

ADDRESSES_MIB = 512  # more than this beside what is there is refused by the system: MemoryError, which no test takes
# What reading may not do, as `sys.addaudithook` calls it; `open` where it is to write.
FORBIDDEN = (
    'socket.', 'subprocess.', 'os.system', 'os.exec', 'os.fork', 'os.posix_spawn', 'os.mkdir', 'os.remove', 'os.rename',
    'os.link', 'os.symlink', 'os.truncate', 'os.chmod', 'os.putenv', 'shutil.', 'ctypes.', 'pickle.find_class', 'exec',
    'compile', 'tempfile.',
)  # fmt: skip


def read_in_process(paths):
    """What came of each file: a dict with outcome, sentence, done and peak_mib; a crash is an outcome."""
    results, left = {}, [str(path) for path in paths]
    environment = {**os.environ, 'PYTHONPATH': PYTHONPATH}
    command = [sys.executable, '-m', 'helpers.checkpoints.reading']
    while left:
        process = subprocess.run([*command, *left], capture_output=True, text=True, env=environment, timeout=600)
        for line in process.stdout.splitlines():
            result = json.loads(line)
            results[result.pop('path')] = result
        if process.returncode == 0:
            break
        crashed = next((path for path in left if results.get(path, {}).get('outcome') == 'begun'), None)
        assert crashed, process.stderr[-3000:]
        results[crashed] = dict(outcome='crash', sentence=process.stderr[-500:], done=[], peak_mib=0)
        left = left[left.index(crashed) + 1 :]
    return results


class Watch:
    """Notes what a process does that reading a checkpoint has no reason for."""

    def __init__(self):
        self.on = False
        self.seen = []
        sys.addaudithook(self._note)

    def _note(self, event, arguments):
        if not self.on:
            return
        writes = event == 'open' and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event.startswith(FORBIDDEN):
            self.seen.append(f'{event}{arguments!r}'[:200])


def try_reading(path, watch):
    """('loads', '') or ('CheckpointError', its sentence), or another error; what was done on the way; what was read."""
    read = None
    watch.seen, watch.on = [], True
    try:
        read = read_checkpoint(path)
        outcome = 'loads', ''
    except CheckpointError as error:
        outcome = 'CheckpointError', str(error)
    except BaseException as error:  # all others are faults, and a test says which
        outcome = type(error).__name__, str(error)
    finally:
        watch.on = False
    return *outcome, watch.seen, read


def limit_addresses():
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    limit = pages * os.sysconf('SC_PAGE_SIZE') + (ADDRESSES_MIB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main():
    faulthandler.enable()
    for codec in ('cp437', 'raw_unicode_escape'):  # zipfile and pickletools import them
        ''.encode(codec)
    watch = Watch()
    limit_addresses()
    for path in sys.argv[1:]:
        before = peak_rss()
        print(json.dumps(dict(path=path, outcome='begun')), flush=True)
        outcome, sentence, done, _ = try_reading(path, watch)
        grown = (peak_rss() - before) / 2**20
        print(json.dumps(dict(path=path, outcome=outcome, sentence=sentence, done=done, peak_mib=grown)), flush=True)


if __name__ == '__main__':
    main()
