"""NVIDIA's tools on the attention kernels: what Nsight Compute measures, and what compute-sanitizer finds.

Both run a command that launches the kernels, and their output becomes rows of the table of `kernels.py`.
"""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from .kernels import Row

SECONDS = 600  # that a tool may take
METRICS = {  # of Nsight Compute, by their name in the table
    'us': 'gpu__time_duration.sum',
    '% of DRAM': 'dram__throughput.avg.pct_of_peak_sustained_elapsed',
    '% of the multiprocessors': 'sm__throughput.avg.pct_of_peak_sustained_elapsed',
    '% of L1': 'l1tex__throughput.avg.pct_of_peak_sustained_active',
    '% of warps active': 'sm__warps_active.avg.pct_of_peak_sustained_active',
    'registers': 'launch__registers_per_thread',
    'spilled loads': 'smsp__inst_executed_op_local_ld.sum',
}
TO_MICROSECONDS = {'nsecond': 1e-3, 'ns': 1e-3, 'usecond': 1.0, 'us': 1.0, 'msecond': 1e3, 'ms': 1e3}
CHECKS = 'memcheck', 'racecheck'  # of compute-sanitizer: memory that is not there, races in shared memory
MISSING = 'it is not there; it comes with the CUDA toolkit'


def nsight_compute(command: Sequence[str]) -> Iterator[Row]:
    """A row for each launch of an attention kernel by a command: its time, and what it uses of the GPU."""
    if shutil.which('ncu') is None:
        yield Row('ncu', {'left out:': MISSING})
        return
    options = [
        '--csv',
        '--clock-control',
        'none',
        '--kernel-name',
        'regex:attend',
        '--metrics',
        ','.join(METRICS.values()),
    ]
    output = _output(['ncu', *options, *command])
    lines = [line for line in output.splitlines() if line.startswith('"')]  # the command and ncu say other things too
    launches: dict[str, Row] = {}
    for line in csv.DictReader(lines):
        row = launches.setdefault(line['ID'], Row(f'ncu, {line["Kernel Name"].split("(")[0]}, launch {line["ID"]}', {}))
        name = next((name for name, metric in METRICS.items() if metric == line['Metric Name']), None)
        if name is not None:
            row.values[name] = _value(line['Metric Value'], TO_MICROSECONDS.get(line['Metric Unit'], 1.0))
    if not launches:
        raise RuntimeError(f'ncu measured no kernel: {_error_of(output)}')
    yield from launches.values()


def compute_sanitizer(command: Sequence[str]) -> Iterator[Row]:
    """A row for each check: how many errors there are in the kernels that a command launches."""
    if shutil.which('compute-sanitizer') is None:
        yield Row('compute-sanitizer', {'left out:': MISSING})
        return
    for check in CHECKS:
        output = _output(['compute-sanitizer', '--tool', check, *command], PYTORCH_NO_CUDA_MEMORY_CACHING='1')
        found = re.search(r'SUMMARY: (\d+) (?:error|hazard)', output)
        if found is None:
            raise RuntimeError(f'compute-sanitizer {check} has no summary: {_error_of(output)}')
        errors = int(found[1])
        yield Row(f'compute-sanitizer {check}', {'good': errors == 0, 'errors': errors})


def _output(command: Sequence[str], **environment: str) -> str:
    """All that a command prints; a tool ends with an error where it has found something."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **environment},
    ).stdout


def _value(text: str, factor: float) -> Any:
    try:
        return float(text.replace(',', '')) * factor
    except ValueError:  # as "n/a", of a metric that this GPU has not
        return text


def _error_of(output: str) -> str:
    """The line that says what is wrong, or the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if 'ERROR' in line.upper()), lines[-1] if lines else 'it printed nothing')
