"""What the tools have in common: how they end."""

import logging
import os
import subprocess
import sys

import mmengine.logging
import pytest
from helpers import ROOT
from helpers.in_process import run

from swin_backbone import command_line

TOOLS = ROOT / 'tools'
COMMANDS = sorted(
    {*TOOLS.glob('*.py')} - {TOOLS / 'launch.py'}
    | {ROOT / 'benchmarks' / f'{name}.py' for name in ('backbones', 'operators', 'gpu')}
)
PROGRAM = """
import logging, os, sys
from swin_backbone.command_line import run
logger = logging.getLogger()
logger.addHandler(logging.StreamHandler(sys.stdout))
def main():
    {body}
run(main)
"""
PRINTS = "print('line\\n' * 100_000)"
LOGS = "[logger.warning('line' * 100) for _ in range(1000)]; open('end', 'w').close()"


@pytest.mark.parametrize('tool', COMMANDS)
def test_every_tool_runs_so(tool):
    assert tool.read_text().endswith("if __name__ == '__main__':\n    run(main)\n")


@pytest.mark.parametrize(
    ('body', 'buffered'),
    [
        pytest.param(PRINTS, True, id='prints'),
        pytest.param(LOGS, False, id='logs, unbuffered'),
        pytest.param(PRINTS, False, id='prints, unbuffered', marks=pytest.mark.slow),
        pytest.param(LOGS, True, id='logs', marks=pytest.mark.slow),
    ],
)
def test_whoever_stops_reading_gets_no_traceback(tmp_path, body, buffered):
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONUNBUFFERED': '' if buffered else '1'}
    program = subprocess.Popen(
        [sys.executable, '-c', PROGRAM.format(body=body)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout.readline().startswith('line')
    program.stdout.close()
    stderr = program.stderr.read()
    assert program.wait(60) in ((141,) if body == PRINTS else (0, 141))  # 141: as what SIGPIPE ends
    assert stderr == ''
    assert (tmp_path / 'end').exists() == (body == LOGS)  # what logs goes on


def test_nobody_reads_on_what_info_prints():
    command = [sys.executable, '-m', 'swin_backbone', 'info']
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    program.stdout.close()
    assert (program.stderr.read(), program.wait(60)) == ('', 141)


def test_another_broken_pipe_is_an_error():
    def main():
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, 'wb', buffering=0) as pipe:
            pipe.write(b'x')

    with pytest.raises(BrokenPipeError):
        command_line.run(main)


@pytest.mark.parametrize(
    ('tool', 'options'),
    [
        ('benchmarks.backbones', ['--size', '--batch', '--runs', '--threads']),
        ('benchmarks.gpu', ['--size', '--batch', '--runs']),
    ],
)
def test_what_is_counted_is_at_least_one(tool, options):
    for option in options:
        result = run(tool, option, '0')
        assert result.returncode == 2
        assert f"argument {option}: it takes a whole number of at least 1, got '0'" in result.stderr


def test_what_the_toolboxes_say_for_who_debugs_them_is_not_printed(capsys):
    def main():
        mmengine.logging.print_log('missing', level=logging.DEBUG)
        mmengine.logging.print_log('said')

    with pytest.raises(SystemExit) as end:
        command_line.run(main)
    assert (end.value.code, capsys.readouterr().out) == (None, 'said\n')
