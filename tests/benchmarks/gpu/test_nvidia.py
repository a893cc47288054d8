"""NVIDIA's tools, in whose place scripts print what those print: none of them has run on a GPU."""

import sys

import pytest

from benchmarks.gpu import nvidia

COMMAND = [sys.executable, '-c', 'print("launched")']
NCU = '''"ID","Process ID","Kernel Name","Context","Metric Name","Metric Unit","Metric Value"
"0","7","attend","1","gpu__time_duration.sum","nsecond","12,345"
"0","7","attend","1","launch__registers_per_thread","register/thread","127"
"0","7","attend","1","smsp__inst_executed_op_local_ld.sum","inst","n/a"
"1","7","attend_backward","1","gpu__time_duration.sum","usecond","45.5"
"1","7","attend_backward","1","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","61.2"'''


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Make a program that keeps its arguments and one variable, prints something, and ends with a status."""

    def make(name, output, status=0):
        (tmp_path / 'output').write_text(output)
        kept = f'echo "$@" >> {tmp_path}/called; echo "$PYTORCH_NO_CUDA_MEMORY_CACHING" >> {tmp_path}/caching'
        (tmp_path / name).write_text(f'#!/bin/sh\n{kept}\n/bin/cat {tmp_path}/output\nexit {status}\n')
        (tmp_path / name).chmod(0o755)
        return tmp_path

    monkeypatch.setenv('PATH', str(tmp_path))
    return make


@pytest.mark.parametrize('run', [nvidia.nsight_compute, nvidia.compute_sanitizer])
def test_a_tool_that_is_not_there_is_a_sentence(tool, run):
    (row,) = run(COMMAND)
    assert row.values == {'left out:': 'it is not there; it comes with the CUDA toolkit'}


def test_each_launch_has_a_row(tool):
    folder = tool('ncu', f'==PROF== Connected to process 7\nlaunched\n==PROF== Disconnected\n{NCU}\n')
    rows = list(nvidia.nsight_compute(COMMAND))
    assert [row.what for row in rows] == ['ncu, attend, launch 0', 'ncu, attend_backward, launch 1']
    assert rows[0].values == {'us': pytest.approx(12.345), 'registers': 127.0, 'spilled loads': 'n/a'}
    assert rows[1].values == {'us': 45.5, '% of DRAM': 61.2}
    (called,) = (folder / 'called').read_text().splitlines()
    assert 'regex:attend' in called
    assert all(metric in called for metric in nvidia.METRICS.values())
    assert called.endswith(' '.join(COMMAND))


def test_what_ncu_may_not_do_is_said(tool):
    tool('ncu', '==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission to access counters\nbye\n', 1)
    with pytest.raises(RuntimeError, match='measured no kernel: ==ERROR== ERR_NVGPUCTRPERM'):
        list(nvidia.nsight_compute(COMMAND))


@pytest.mark.parametrize('summary', ['ERROR SUMMARY: {} errors', 'RACECHECK SUMMARY: {} hazards displayed'])
@pytest.mark.parametrize('errors', [0, 3])
def test_errors_are_counted(tool, summary, errors):
    folder = tool('compute-sanitizer', f'launched\n========= {summary.format(errors)}\n', status=min(errors, 1))
    rows = list(nvidia.compute_sanitizer(COMMAND))
    assert [row.what for row in rows] == ['compute-sanitizer memcheck', 'compute-sanitizer racecheck']
    assert all(row.values == {'good': errors == 0, 'errors': errors} for row in rows)
    assert (folder / 'caching').read_text() == '1\n1\n', 'each tensor has memory of its own'


def test_a_sanitizer_that_stops_is_said(tool):
    tool('compute-sanitizer', '========= Error: No attachable process found\n', 1)
    with pytest.raises(RuntimeError, match='has no summary: ========= Error: No attachable process'):
        list(nvidia.compute_sanitizer(COMMAND))
