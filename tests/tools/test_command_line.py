"""Options common to the tools, and the exit of a tool."""

import argparse
import importlib
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from contextvars import copy_context

import mmengine.logging
import pytest
from helpers import ROOT, run_python

from swin_backbone import commands
from swin_backbone.checkpoints import FORMATS, download
from swin_backbone.options import ARGUMENTS
from swin_backbone.workbench.configs.visualizer import VIS_BACKENDS
from swin_backbone.workbench.export.formats import MODEL_FILES, PRECISIONS
from swin_backbone.workbench.export.graph import PARTS

TOOLS = ROOT / 'tools'
COMMANDS = [
    path
    for folder in ('benchmarks', 'tools')
    for path in sorted((ROOT / folder).glob('*.py'))
    if 'def parse_args(' in path.read_text(encoding='utf-8')
]


@pytest.mark.parametrize(
    ('words', 'dtype'),
    [
        ('CONFIG', None),
        ('--amp CONFIG', 'auto'),
        ('CONFIG --amp --debug', 'auto'),
        ('--amp bfloat16 CONFIG', 'bfloat16'),
        ('CONFIG --amp=float16', 'float16'),
        ('CONFIG --amp auto', 'auto'),
        ('CONFIG --amp', 'auto'),
    ],
)
def test_amp_takes_a_dtype_and_no_config(words, dtype):
    parser = commands.Parser()
    parser.add('config amp debug')
    args = parser.parse_args(words.split())
    assert (args.config, args.amp) == ('CONFIG', dtype)


@pytest.mark.parametrize(
    ('words', 'config', 'resume'),
    [
        ('--resume config.py', 'config.py', 'auto'),
        ('--resume mmdet::a/b.py', 'mmdet::a/b.py', 'auto'),
        ('config.py --resume', 'config.py', 'auto'),
        ('--resume x.pth config.py', 'config.py', 'x.pth'),
    ],
)
def test_resume_takes_a_checkpoint_and_no_config(words, config, resume):
    parser = commands.Parser()
    parser.add('config resume')
    args = parser.parse_args(words.split())
    assert (args.config, args.resume) == (config, resume)


@pytest.mark.parametrize(
    ('word', 'hint'),
    [
        ('--batch-size', '--batch in place of --batch-size'),
        ('--checkpoint', '--weights in place of --checkpoint'),
        ('--imgsz=640', '--shape in place of --imgsz'),
        ('--workdir', '--work-dir in place of --workdir'),
        ('--cfg_options', '--cfg-options in place of --cfg_options'),
    ],
)
def test_an_unknown_option_is_answered_with_a_similar_one(word, hint, capsys):
    parser = commands.Parser()
    parser.add('config batch shape weights work_dir cfg_options')
    with pytest.raises(SystemExit, match='2'):
        parser.parse_args(['config.py', word])
    assert f'unrecognized arguments: {word}; did you mean {hint}?' in capsys.readouterr().err


def test_names_of_other_programs_are_not_ours():
    assert not set(commands.OTHER_NAMES) & set(ARGUMENTS)
    assert set(commands.OTHER_NAMES.values()) <= set(ARGUMENTS)


@pytest.mark.parametrize(('name', 'words'), [('checkpoint', ['config.py']), ('weights', ['--weights', 'config.py'])])
def test_swapped_arguments_are_named(name, words):
    parser = commands.Parser()
    parser.add(f'{commands.JOB_OPTIONS} {name}')
    with pytest.raises(ValueError, match=r'got x\.pth config\.py: arguments swapped\?'):
        commands.make_job(parser.parse_args(['x.pth', *words]))


@pytest.mark.parametrize('tool', COMMANDS)
def test_every_tool_runs_by_run(tool):
    assert tool.read_text().endswith("if __name__ == '__main__':\n    run(main)\n")


def heed_ctrl_c():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(*words, stdout=subprocess.PIPE, folder=ROOT):
    """Start Python in a new process, to which Ctrl-C is no signal to ignore, as in a background job of a shell."""
    variables = {**os.environ, 'PYTHONPATH': str(ROOT)}
    command = [sys.executable, *map(str, words)]
    streams = dict(text=True, stdout=stdout, stderr=subprocess.PIPE)
    return subprocess.Popen(command, cwd=folder, env=variables, preexec_fn=heed_ctrl_c, **streams)


PROGRAM = """
import logging, sys
from swin_backbone.commands import run
logger = logging.getLogger()
logger.addHandler(logging.StreamHandler(sys.stdout))
def main():
    for _ in range(1000):
        logger.warning('line' * 100)
    open('end', 'w').close()
    print('line' * 100_000)
run(main)
"""


def test_a_closed_pipe_gives_no_traceback(tmp_path):
    """Logs go on, and a print ends the tool with 141, the exit code after SIGPIPE."""
    program = start('-c', PROGRAM, folder=tmp_path)
    assert program.stdout.readline().startswith('line')
    program.stdout.close()
    assert program.stderr.read() == ''
    assert program.wait(60) == 141
    assert (tmp_path / 'end').exists()


@pytest.mark.slow
def test_a_full_disk_is_a_sentence(record_fault):
    with open('/dev/full', 'w') as full:
        program = start('-m', 'swin_backbone', 'info', stdout=full)
    error = program.stderr.read()
    assert program.wait(60) == 1
    assert error.endswith('cannot write its output (No space left on device)\n')
    assert 'Traceback' not in error
    record_fault('full_disks')


@pytest.mark.parametrize('option', ['--local-rank', '--local_rank'])
@pytest.mark.parametrize(('before', 'after'), [(None, '3'), ('1', '1')])
def test_a_parser_sets_the_rank_unless_a_launcher_has(monkeypatch, option, before, after):
    monkeypatch.setenv('LOCAL_RANK', 'restored after the test')
    monkeypatch.delenv('LOCAL_RANK') if before is None else monkeypatch.setenv('LOCAL_RANK', before)
    parser = commands.Parser()
    parser.add('local_rank')
    parser.parse_args([option, '3'])
    assert os.environ['LOCAL_RANK'] == after


def test_a_parser_sets_the_timeout_of_downloads_if_it_is_given():
    def parse(*words):
        parser = commands.Parser()
        parser.add('timeout')
        parser.parse_args(words)
        return download._timeout.get(None)

    assert copy_context().run(parse) is None
    assert copy_context().run(parse, '--timeout', '7') == 7


WRITER = """
import os, signal, sys, time
from pathlib import Path

from swin_backbone.commands import run
from swin_backbone.workbench.export.export import replace_folder

def main():
    with replace_folder(Path(sys.argv[1]) / 'out') as folder:
        (folder / 'model.onnx').write_text('half')
        if not (worker := os.fork()):
            if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                os._exit(1)
            os.kill(os.getpid(), int(sys.argv[2]))
            os._exit(1)
        died_of = os.WTERMSIG(os.waitpid(worker, 0)[1])
        print(died_of, (folder / 'model.onnx').exists(), flush=True)
        for _ in range(3000):  # a signal just before a sleep is handled after it
            time.sleep(0.1)

signal.signal(int(sys.argv[2]), signal.SIG_DFL)  # a test under nohup inherits an ignored SIGHUP
run(main)
"""


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_leaves_nothing_half_written(tmp_path, record_fault, number):
    """A signal to a worker process ends the worker alone."""
    program = start('-c', WRITER, tmp_path, number.value)
    assert program.stdout.readline() == f'{number.value} True\n'
    program.send_signal(number)
    assert program.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert program.stderr.read() == ('-c: stopped by Ctrl-C\n' if number == signal.SIGINT else '')
    record_fault('ended_tools')


CONVERTS = """
import os, signal
from swin_backbone.commands import run

def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # as an extension that is being imported
        raise ImportError('initialization failed') from error

run(main)
"""


def test_ctrl_c_is_a_line_whatever_a_library_makes_of_it(record_fault):
    program = start('-c', CONVERTS)
    assert program.communicate() == ('', '-c: stopped by Ctrl-C\n')
    assert program.returncode == 128 + signal.SIGINT
    record_fault('ended_tools')


FULL = """
from swin_backbone.commands import run

def main():
    raise OSError(28, 'No space left on device', 'out/a.json')

run(main)
"""


def test_a_full_disk_names_the_file(record_fault):
    program = start('-c', FULL)
    assert program.communicate() == ('', '-c: out/a.json: No space left on device\n')
    assert program.returncode == 1
    record_fault('full_disks')


def test_another_broken_pipe_is_an_error(capfd):
    def main():
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, 'wb', buffering=0) as pipe:
            pipe.write(b'x')

    with pytest.raises(BrokenPipeError):
        commands.run(main)
    assert capfd.readouterr().out == ''


def test_debug_messages_of_toolboxes_are_not_printed(capsys):
    def main():
        commands.import_package()
        mmengine.logging.print_log('missing', level=logging.DEBUG)
        mmengine.logging.print_log('said')

    with pytest.raises(SystemExit) as end:
        commands.run(main)
    assert (end.value.code, capsys.readouterr().out) == (None, 'said\n')


class Stopped(Exception):
    """Exception with the parser of a tool."""


def parsers(tool, monkeypatch):
    """Return the parser of a tool, or the parsers of its commands."""

    def stop(parser, *_):
        raise Stopped(parser)

    monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', stop)
    if tool.is_relative_to(TOOLS):
        parse_args = runpy.run_path(str(tool), run_name='tool')['parse_args']
    else:
        name = '.'.join(tool.relative_to(ROOT).with_suffix('').parts)
        parse_args = importlib.import_module(name).parse_args
    with pytest.raises(Stopped) as stopped:
        parse_args()
    (parser,) = stopped.value.args
    commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return list(commands[0].choices.values()) if commands else [parser]


def options(parser):
    """Return a parser's options with their values, in order; '' for an option without a value."""
    return {
        action.option_strings[0]: value_of(action.nargs, action.metavar, action.choices)
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }


def value_of(nargs, metavar, choices):
    value = 'NAME' if choices else metavar or ''
    return '' if nargs == 0 else ' '.join(value) if isinstance(value, tuple) else value


def test_parsers_have_the_options_of_the_table_in_its_order(monkeypatch):
    shared = {
        name: value_of(0 if 'action' in settings else None, settings.get('metavar'), settings.get('choices'))
        for name, settings in ARGUMENTS.items()
        if name.startswith('--') and settings.get('help') != argparse.SUPPRESS
    }
    shared.update({'--shape': 'H W', '--cfg-options': 'K=V'})
    tools_with = {}
    for tool in COMMANDS:
        for parser in parsers(tool, monkeypatch):
            own = options(parser)
            assert not {'--size', '--img-scale', '--batch-size', '--traceback'} & set(own), tool
            assert {**own, **{name: shared[name] for name in shared if own.get(name)}} == own, tool
            in_table = [name for name in own if own[name] == shared.get(name)]
            assert in_table == [name for name in shared if name in in_table], tool
            if tool.is_relative_to(TOOLS):
                for name in own:
                    tools_with.setdefault(name, set()).add(tool)
    several = {name for name, tools in tools_with.items() if len(tools) > 1} - {'-h'}
    assert several <= set(shared)


HELP_OF_ALL = """
import runpy, sys

for tool in sys.argv[1:]:
    for word in ('--help', '--no-such-option'):
        sys.argv = [tool, word]
        try:
            runpy.run_path(tool, run_name='__main__')
        except SystemExit as end:
            assert end.code == (0 if word == '--help' else 2), (tool, end.code)
heavy = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'matplotlib', 'pycocotools.coco', 'onnxruntime')
print([name for name in heavy if name in sys.modules])
"""


def test_help_and_wrong_arguments_import_no_torch():
    tools = [path for path in COMMANDS if path.is_relative_to(TOOLS)]
    assert run_python('-c', HELP_OF_ALL, *tools).stdout.endswith('\n[]\n')
    for words in ('--help',), ('train', '--help'):
        imported = run_python('-X', 'importtime', '-m', 'swin_backbone', *words).stderr
        assert not re.search(r'(?m)\| +(torch|mmengine)$', imported)


def test_values_that_need_no_import_are_those_of_the_package(monkeypatch):
    (parser,) = parsers(TOOLS / 'convert_checkpoint.py', monkeypatch)
    assert next(action.choices for action in parser._actions if action.dest == 'to') == FORMATS
    (parser,) = parsers(TOOLS / 'train.py', monkeypatch)
    assert next(action.choices for action in parser._actions if action.dest == 'vis') == tuple(VIS_BACKENDS)
    (parser,) = parsers(TOOLS / 'export.py', monkeypatch)
    named = {action.dest: {*re.findall(r'\w+', action.help)} - {'default', 'or'} for action in parser._actions}
    assert (named['format'], named['part']) == ({*MODEL_FILES}, {*PARTS})
    (choices,) = (action.choices for action in parser._actions if action.dest == 'precision')
    assert {*choices} == {precision for several in PRECISIONS.values() for precision in several}
