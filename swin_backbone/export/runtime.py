"""Run an exported model with numpy, OpenCV, and onnxruntime or openvino, without torch or the rest of the package.

    from runtime import load
    model = load('DIR')
    for result in model.predict([cv2.imread('picture.jpg')]):
        ...

An exported folder needs only a copy of `runtime.py`. `python runtime.py DIR PICTURE...` prints results. An unsuitable
picture is named and skipped; the exit status is then 1.

Layout: B batch, H W height and width of the model's input, h w height and width of the original picture, n objects.
"""

import ctypes
import hashlib
import json
import re
import reprlib
import stat
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Any, Callable, Optional, cast

import cv2
import numpy as np
from numpy.typing import NDArray

MANIFEST = 'deploy.json'
MISSING = object()
DEVICES = {'cpu': 'CPUExecutionProvider', 'cuda': 'CUDAExecutionProvider', 'tensorrt': 'TensorrtExecutionProvider'}
OPENVINO_TYPES = dict(fp32='f32', fp16='f32', bf16='bf16', int8='f32')  # types of computation; fp16 is only for storage

# task: further outputs after the results
NEEDED: dict[str, set[str]] = dict(
    maps=set(),
    segmentation={'labels'},
    boxes={'image', 'boxes', 'scores', 'labels'},
    instances={'image', 'boxes', 'scores', 'labels', 'masks'},
)
FORMATS = ('onnx', 'openvino', 'torch', 'aoti')
MOST_BYTES = 1 << 24  # of deploy.json
MOST_THREADS = 1024
CORE_LOCK = Lock()

Result = dict[str, NDArray[Any]]
Port = tuple[set[str], Sequence[Any]]  # names and shape of an input or output
Run = Callable[..., list[NDArray[Any]]]


class RuntimeProblem(ValueError):
    """An error for users: of a folder, a missing runtime, a device or a picture."""


class Model:
    """An exported model in a runtime.

    Args:
        folder: from `tools/export.py`.
        device: 'cpu'; for onnxruntime also 'cuda' or 'tensorrt', for openvino 'gpu', 'npu' or 'auto'.
        threads: number of CPU threads; None: the runtime's default.

    Attributes:
        info: the contents of deploy.json.
        classes: the names of the classes.

    Raises:
        RuntimeProblem: if the folder is no exported model, or the runtime or the device is missing.
    """

    def __init__(self, folder: Any, device: str = 'cpu', threads: Optional[int] = None):
        self.folder = Path(folder)
        self.info = read_manifest(self.folder)
        path = self.folder / self.info['file']
        check_files(self.folder, self.info['sha256'])
        _require_count('threads', 1 if threads is None else threads, MOST_THREADS)
        if not isinstance(device, str):
            raise RuntimeProblem(f"device takes a name, as 'cpu', got {device!r}")
        runtimes = {'onnx': _open_onnxruntime, 'openvino': _open_openvino}
        if self.info['format'] not in runtimes:
            raise RuntimeProblem(f'{self.folder} holds format {self.info["format"]!r}, which torch itself runs')
        library = self.folder / self.info['library'] if 'library' in self.info else None
        self._run = runtimes[self.info['format']](path, self.info, device, threads, library)
        self.classes: list[str] = self.info.get('classes', [])

    def run(self, inputs: Sequence[NDArray[Any]], outputs: Optional[Sequence[str]] = None) -> list[NDArray[Any]]:
        """Return the outputs for inputs, both described in deploy.json. Several threads may call `run`.

        Args:
            outputs: names of outputs; None: all.

        Raises:
            RuntimeProblem: for an input of a wrong type or shape, without values, or with NaN or infinity.
        """
        ports = self.info['inputs']
        is_list = isinstance(inputs, (list, tuple)) and len(inputs) == len(ports)
        _require('inputs', inputs, is_list, f'a list of {len(ports)} arrays')
        for array, port in zip(inputs, ports):
            dtype, shape = port.get('dtype', getattr(array, 'dtype', None)), port['shape']
            is_array = isinstance(array, np.ndarray) and str(array.dtype) == str(dtype) and array.ndim == len(shape)
            fits = is_array and all(isinstance(one, str) or one == length for one, length in zip(shape, array.shape))
            _require(port['name'], array, fits, f'{dtype} values ({", ".join(map(str, shape))})')
            _require(port['name'], array, array.size > 0, 'at least one value')
            is_finite = array.dtype.kind != 'f' or bool(np.isfinite(array).all())
            _require(port['name'], float('nan'), is_finite, 'finite values')
        return self._run(inputs, outputs)

    def predict(self, pictures: Iterable[NDArray[Any]], batch: int = 1, logits: bool = False) -> Iterator[Result]:
        """Yield the results of pictures.

        Args:
            pictures: BGR pixels (h, w, 3) uint8, for example from `cv2.imread`. For a model without three bands,
                pixels (h, w, bands) of any numeric type, with the values of the file.
            batch: pictures per run, for pictures of equal size and models with batches.
            logits: whether results of a segmentor contain logits.

        Yields:
            For a segmentor `labels` (h, w), the class indices, and with `logits` also `logits` (K, h, w) float32. For a
            detector `boxes` (n, 4) as x1 y1 x2 y2 in pixels, `scores` (n,), `labels` (n,) and, for models with masks,
            `masks` (n, h, w) bool, all sorted best first.

        Raises:
            RuntimeProblem: for an unsuitable picture, see `check`.
        """
        if self.info['task'] == 'maps':
            raise RuntimeProblem('this is a part of a model, without results: call run with its input')
        _require_count('batch', batch)
        is_list = isinstance(pictures, Iterable) and not isinstance(pictures, str)
        _require('pictures', pictures, is_list, 'a list of pictures')
        names = [port['name'] for port in self.info['outputs'] if logits or port['name'] != 'logits']
        for group in self._groups(pictures, batch):
            inputs = np.stack([self.prepare(picture) for picture in group])
            size = np.array(group[0].shape[:2], np.int64)
            outputs = dict(zip(names, self.run([inputs, size], names)))
            for index in range(len(group)):
                yield self._result(outputs, index)

    def prepare(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Resize a picture by the rule of the model's config: (H, W, 3) uint8, or (H, W, bands) float32."""
        self.check(picture)
        picture = picture if self.bands == 3 else picture.astype(np.float32)
        return resize(picture, self.info['preprocessing']['resize'])

    def check(self, picture: NDArray[Any]) -> None:
        """Check a picture before memory is allocated.

        Raises:
            RuntimeProblem: for anything but a picture, for too many pixels, or for a size unlike the model's size.
        """
        bands = self.bands
        is_array = isinstance(picture, np.ndarray) and (picture.dtype == np.uint8 or bands != 3)
        is_array = is_array and picture.dtype.kind in 'uif' and picture.ndim == 3
        is_picture = is_array and picture.shape[2] == bands and picture.size > 0
        _require('picture', picture, is_picture, f'{"uint8" if bands == 3 else "numeric"} pixels (h, w, {bands})')
        height, width = resized_size((picture.shape[0], picture.shape[1]), self.info['preprocessing']['resize'])
        limit = self.info['limits']['pixels']
        if height * width > limit or picture.shape[0] * picture.shape[1] > limit:
            raise RuntimeProblem(
                f'a picture of {picture.shape[0]}x{picture.shape[1]} pixels, {height}x{width} to the model, is more '
                f'than the {limit} pixels that its {MANIFEST} allows'
            )
        size = self.info['inputs'][0]['shape'][1:3]
        if any(isinstance(own, int) and own != length for own, length in zip(size, (height, width))):
            shape = 'x'.join(map(str, size))
            raise RuntimeProblem(f'this model takes pictures of {shape} pixels, and one became {height}x{width}')

    @property
    def bands(self) -> int:
        """Return the number of bands of a picture."""
        shape: list[int] = self.info['inputs'][0]['shape']
        return shape[3]

    def _groups(self, pictures: Iterable[NDArray[Any]], batch: int) -> Iterator[list[NDArray[Any]]]:
        """Yield batches: consecutive pictures of equal size."""
        fixed = self.info['inputs'][0]['shape'][0]
        most = fixed if isinstance(fixed, int) else batch
        group: list[NDArray[Any]] = []
        for picture in pictures:
            if group and (len(group) == most or getattr(picture, 'shape', None) != group[0].shape):
                yield group
                group = []
            group.append(picture)
        if group:
            yield group

    def _result(self, outputs: dict[str, NDArray[Any]], index: int) -> Result:
        """Return the result of a picture of a batch."""
        if self.info['task'] == 'segmentation':
            result = {name: value[index] for name, value in outputs.items()}
        else:
            of_picture = outputs['image'] == index
            result = {name: value[of_picture] for name, value in outputs.items() if name != 'image'}
        if 'masks' in result:
            result['masks'] = result['masks'].astype(bool)
        if result['labels'].size and result['labels'].max() >= len(self.classes):
            raise RuntimeProblem(
                f'the model found class {result["labels"].max()}, and {self.folder / MANIFEST} has {len(self.classes)}'
            )
        return result


load = Model


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the contents of deploy.json.

    Raises:
        RuntimeProblem: if deploy.json cannot be read, or has wrong entries.
    """
    path = folder / MANIFEST
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading from a pipe might never end
            raise ValueError('it is no regular file')
        with open(path, 'rb') as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f'it has more than {MOST_BYTES:,} bytes')
        info: dict[str, Any] = json.loads(text)
        json.dumps(info, ensure_ascii=False).encode()  # JSON may hold halves of characters; printing fails
    except (OSError, ValueError, RecursionError) as error:
        raise RuntimeProblem(f'{folder} is no exported model: its {MANIFEST} cannot be read ({error})') from error
    try:
        _check_manifest(info)
    except RuntimeProblem as error:
        raise RuntimeProblem(f'{path}: {error}; if nobody changed it, export the model again') from error
    return info


def _check_manifest(info: Any) -> None:
    """Check the entries of deploy.json that the runtime reads; an error names the first wrong entry."""
    _require('it', info, isinstance(info, dict), 'an object')
    for name, allowed in dict(format=FORMATS, precision=OPENVINO_TYPES, task=NEEDED).items():
        value = info.get(name)
        _require(name, value, isinstance(value, str) and value in allowed, f'one of {", ".join(allowed)}')
    sha256, file = info.get('sha256'), info.get('file')
    is_named = isinstance(sha256, dict) and all(name == Path(name).name and '\0' not in name for name in sha256)
    is_whole = is_named and all(isinstance(digest, str) for digest in sha256.values())
    _require('sha256', sha256, is_whole, 'names of files in this folder, each with its SHA-256')
    for name, value in dict(file=file, library=info.get('library', file)).items():
        _require(name, value, isinstance(value, str) and value in sha256, 'a name that sha256 has')
    for side in ('inputs', 'outputs'):
        ports = info.get(side)
        is_right = isinstance(ports, list) and all(map(_is_port, ports))
        _require(side, ports, is_right, 'a list of objects with a name and a shape')
    names, needed = {port['name'] for port in info['outputs']}, NEEDED[info['task']]
    takes = f'the names {", ".join(sorted(needed))} for task {info["task"]!r}'
    _require('outputs', sorted(names), needed <= names, takes)
    if info['task'] == 'maps':
        return
    rule = _entry(info, 'preprocessing', 'resize')
    keeps, scale = _entry(rule, 'keep_ratio'), _entry(rule, 'scale')
    is_scale = isinstance(scale, list) and len(scale) == 2 and all(_is_whole(side, 1, 65535) for side in scale)
    takes = 'null, or a scale of two whole numbers from 1 to 65535 with keep_ratio true or false'
    _require('preprocessing.resize', rule, rule is None or (is_scale and isinstance(keeps, bool)), takes)
    _require_count('limits.pixels', _entry(info, 'limits', 'pixels'), (1 << 30) - 1)
    classes, palette = info.get('classes'), info.get('palette')
    is_texts = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    _require('classes', classes, is_texts, 'a list of texts')
    is_list = isinstance(palette, list) and len(palette) in (0, len(classes))
    is_coloured = is_list and all(isinstance(one, list) and len(one) == 3 for one in palette)
    is_bytes = is_coloured and all(_is_whole(value, 0, 255) for one in palette for value in one)
    _require('palette', palette, is_bytes, f'three numbers from 0 to 255 for each of {len(classes)} classes, or none')


def _require(name: str, value: Any, is_right: bool, takes: str) -> None:
    if not is_right:
        is_array = isinstance(value, np.ndarray)
        got = 'nothing' if value is MISSING else f'{value.dtype} {value.shape}' if is_array else reprlib.repr(value)
        raise RuntimeProblem(f'{name} takes {takes}, got {got}')


def _entry(value: Any, *keys: str) -> Any:
    """Return an entry of nested objects, or MISSING."""
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
    return value


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most  # True is no number


def _is_port(port: Any) -> bool:
    name, shape = _entry(port, 'name'), _entry(port, 'shape')
    is_shape = isinstance(shape, list) and all(isinstance(one, str) or _is_whole(one, 1, 1 << 20) for one in shape)
    return isinstance(name, str) and is_shape


def check_files(folder: Path, sha256: Mapping[str, str]) -> None:
    """Check the SHA-256 of a model's files: a damaged file may crash a runtime.

    Raises:
        RuntimeProblem: if a file is missing or differs.
    """
    for name, digest in sha256.items():
        path = folder / name
        if not path.is_file():
            raise RuntimeProblem(f'{path} is missing: the folder is not whole')
        if file_digest(path) != digest:
            raise RuntimeProblem(f'{path} is not the file that was exported: its SHA-256 is not that in {MANIFEST}')


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def resized_size(size: tuple[int, int], rule: Optional[dict[str, Any]]) -> tuple[int, int]:
    """Return height and width after `resize`.

    Raises:
        RuntimeProblem: if no pixel is left, or the picture has none.
    """
    height, width = new_height, new_width = size
    if rule is not None and height and width:
        new_width, new_height = rule['scale']
        if rule['keep_ratio']:
            long, short = max(rule['scale']), min(rule['scale'])
            factor = min(long / max(height, width), short / min(height, width))
            new_width, new_height = int(width * factor + 0.5), int(height * factor + 0.5)
    if not (new_height and new_width):
        raise RuntimeProblem(f'a picture of {height}x{width} pixels would be {new_height}x{new_width} to the model')
    return new_height, new_width


def resize(picture: NDArray[Any], rule: Optional[dict[str, Any]]) -> NDArray[Any]:
    """Resize a picture bilinearly by the rule of a config. None: keep the size.

    `scale` is (width, height). With `keep_ratio`, the resized picture fits into `scale`.

    Raises:
        RuntimeProblem: if no pixel is left, or the picture has none.
    """
    height, width = resized_size((picture.shape[0], picture.shape[1]), rule)
    if rule is None:
        return picture
    resized = cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)
    return resized.reshape(height, width, -1)  # OpenCV drops the dimension of one band


def _compare_ports(path: Path, info: dict[str, Any], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Check that deploy.json describes the inputs and outputs of the model in a file.

    Raises:
        RuntimeProblem: if names, numbers or the shape of an input differ.
    """
    for side, ports in (('inputs', inputs), ('outputs', outputs)):
        described = [(port['name'], _lengths(port['shape'])) for port in info[side]]
        is_same = len(described) == len(ports) and all(
            name in names and (side == 'outputs' or lengths == _lengths(shape))  # a runtime may know more of outputs
            for (name, lengths), (names, shape) in zip(described, ports)
        )
        if not is_same:
            actual = [(min(names, default=''), _lengths(shape)) for names, shape in ports]
            raise RuntimeProblem(f'{path} has the {side} {actual}, and its {MANIFEST} says {described}')


def _lengths(shape: Sequence[Any]) -> list[Optional[int]]:
    """Return the lengths of dimensions. None: any length."""
    return [length if isinstance(length, int) else None for length in shape]


def _require_count(name: str, value: Any, most: int = 1 << 30) -> None:
    _require(name, value, _is_whole(value, 1, most), f'a whole number from 1 to {most}')


def _first_line(error: Exception) -> str:
    return str(error).strip().partition('\n')[0] or type(error).__name__


def _open_onnxruntime(
    path: Path, info: dict[str, Any], device: str, threads: Optional[int], library: Optional[Path]
) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeProblem(f'{path} needs onnxruntime, which is not installed: pip install onnxruntime') from error
    kind, _, number = device.partition(':')
    provider = DEVICES.get(kind)
    if provider not in onnxruntime.get_available_providers() or (number and not number.isdecimal()):
        known = ', '.join(name for name, own in DEVICES.items() if own in onnxruntime.get_available_providers())
        raise RuntimeProblem(f'onnxruntime has no device {device!r} here; it has {known}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    settings = {'device_id': number} if number else {}
    try:
        if library is not None:
            _load_library(library)
            options.register_custom_ops_library(str(library.resolve()))
        session = onnxruntime.InferenceSession(str(path), options, providers=[(provider, settings)])
    except RuntimeProblem:
        raise
    except Exception as error:  # the runtime has various error classes
        raise _cannot_open('onnxruntime', path, error) from error
    ports = [[({port.name}, port.shape) for port in side] for side in (session.get_inputs(), session.get_outputs())]
    _compare_ports(path, info, *ports)
    names = [port['name'] for port in info['inputs']]

    def run(inputs: Sequence[NDArray[Any]], outputs: Optional[Sequence[str]] = None) -> list[NDArray[Any]]:
        try:
            results: list[NDArray[Any]] = session.run(outputs, dict(zip(names, inputs)))
            return results
        except Exception as error:
            raise _cannot_run('onnxruntime', inputs, error) from error

    return run


@cache
def _core() -> Any:
    """Return OpenVINO's Core: a single Core until the process ends.

    The plugin for CPUs replaces the signal stack of a thread. The end of a Core restores the previous stack. A
    second Core may restore the freed stack of the first. The next signal then ends the process with a
    segmentation fault, for example Ctrl-C or the end of a DataLoader's worker.
    """
    import openvino

    return openvino.Core()


def _open_openvino(
    path: Path, info: dict[str, Any], device: str, threads: Optional[int], library: Optional[Path]
) -> Run:
    try:
        with CORE_LOCK:  # two threads must not make two Cores
            core = _core()
    except ImportError as error:
        raise RuntimeProblem(f'{path} needs openvino, which is not installed: pip install openvino') from error
    if device.upper() != 'AUTO' and device.upper() not in core.available_devices:
        known = ', '.join(name.lower() for name in core.available_devices)
        raise RuntimeProblem(f'openvino has no device {device!r} here; it has {known}')
    # Without this hint, openvino computes in bf16 on a CPU with matrix units.
    settings: dict[str, Any] = {'INFERENCE_PRECISION_HINT': OPENVINO_TYPES[info['precision']]}
    if threads is not None:
        settings['INFERENCE_NUM_THREADS'] = threads
    nodes = None if library is None else Nodes(_load_library(library))
    if nodes is not None and device.upper() != 'CPU':
        raise RuntimeProblem(f'the operators of {path} run on cpu alone, got {device!r}')
    try:
        model = str(path) if nodes is None else nodes.read(path)
        compiled = core.compile_model(model, device.upper(), settings)
    except Exception as error:
        raise _cannot_open('openvino', path, error) from error
    if nodes is not None:
        nodes.threads = compiled.get_property('INFERENCE_NUM_THREADS')
    ports = [
        [
            (port.get_names(), [d.get_length() if d.is_static else None for d in port.get_partial_shape()])
            for port in side
        ]
        for side in (compiled.inputs, compiled.outputs)
    ]
    _compare_ports(path, info, *ports)
    everything = [port['name'] for port in info['outputs']]

    # A request owns the tensors of a run. `compiled(...)` shares a request between all threads.
    idle: LifoQueue[Any] = LifoQueue()
    for _ in range(compiled.get_property('OPTIMAL_NUMBER_OF_INFER_REQUESTS')):
        idle.put(compiled.create_infer_request())

    def run(inputs: Sequence[NDArray[Any]], outputs: Optional[Sequence[str]] = None) -> list[NDArray[Any]]:
        request = idle.get()  # waits until a request is free
        try:
            results = request.infer(list(inputs), share_inputs=True, share_outputs=False)
            return [results[name] for name in (outputs or everything)]
        except Exception as error:
            raise _cannot_run('openvino', inputs, error) from error
        finally:
            idle.put(request)

    return run


def _load_library(path: Path) -> ctypes.CDLL:
    """Load the compiled library for nodes of domain `swin`.

    Raises:
        RuntimeProblem: if the library is for another system or processor.
    """
    try:
        library = ctypes.CDLL(str(path.resolve()))
        library.swin_why_not.restype = ctypes.c_char_p
        reason = library.swin_why_not(0)
    except (OSError, AttributeError) as error:
        reason = str(error).encode()
    if reason:
        raise RuntimeProblem(
            f'{path} is for another system or processor ({reason.decode()}): export the model again on this machine, '
            'or without --operators'
        )
    return library


class Nodes:
    """The nodes of domain `swin` in OpenVINO: operators in Python with calls of the compiled library.

    A node keeps packed weights. The graph keeps no second copy. csrc/runtimes/operators.h describes the functions.
    """

    threads = 1

    def __init__(self, library: ctypes.CDLL):
        for name in ('kinds', 'attributes', 'weights', 'create', 'shape', 'run'):
            getattr(library, f'swin_operator_{name}').restype = ctypes.c_char_p
        library.swin_operator_free.argtypes = [ctypes.c_void_p]
        self.library = library

    def read(self, path: Path) -> Any:
        """Return the model in an ONNX file."""
        from openvino.frontend import FrontEndManager
        from openvino.frontend.onnx import ConversionExtension

        frontend = FrontEndManager().load_by_framework('onnx')
        for kind in self.library.swin_operator_kinds().decode().split():
            frontend.add_extension(ConversionExtension(kind, 'swin', partial(self._convert, kind)))
        return frontend.convert(frontend.load(str(path)))

    def _convert(self, kind: str, context: Any) -> Any:
        x, *constants = (context.get_input(i) for i in range(context.get_input_size()))
        names = self.library.swin_operator_attributes(kind.encode()).decode().split()
        attributes = {name: context.get_attribute(name) for name in names}
        weights = [constant.get_node().data for constant in constants]
        made = ctypes.c_void_p()
        self.call(
            'create',
            kind.encode(),
            (ctypes.c_double * len(names))(*attributes.values()),
            (ctypes.c_void_p * len(weights))(*(weight.ctypes.data for weight in weights)),
            (ctypes.c_int64 * len(weights))(*(weight.size for weight in weights)),
            ctypes.byref(made),
        )
        weakref.finalize(made, self.library.swin_operator_free, made.value)
        channels = attributes.get('outputs', attributes['channels'])
        shape = [-1, channels, -1, -1] if kind == 'OutputNorm' else [-1, -1, -1, channels]
        return _node_class()(self, made, shape, [x]).outputs()

    def call(self, name: str, *arguments: Any) -> None:
        error = getattr(self.library, f'swin_operator_{name}')(*arguments)
        if error:
            raise ValueError(error.decode())

    def output_shape(self, made: Any, shape: Sequence[int]) -> list[int]:
        """Return the shape of a node's output."""
        output = (ctypes.c_int64 * 4)()
        self.call('shape', made, (ctypes.c_int64 * 4)(*shape), output)
        return list(output)


@cache
def _node_class() -> Any:
    import openvino

    class Node(openvino.Op):
        class_type_info = openvino.DiscreteTypeInfo('Node', 'swin')

        def __init__(self, nodes: Nodes, made: Any, shape: list[int], inputs: Any):
            super().__init__(self)
            self.nodes, self.made, self.free_shape = nodes, made, shape
            self.set_arguments(inputs)
            self.constructor_validate_and_infer_types()

        def validate_and_infer_types(self) -> None:
            shape, free = self.get_input_partial_shape(0), self.free_shape
            known = self.nodes.output_shape(self.made, list(shape.to_shape())) if shape.is_static else free
            self.set_output_type(0, self.get_input_element_type(0), openvino.PartialShape(known))

        def clone_with_new_inputs(self, inputs: Any) -> Any:
            return Node(self.nodes, self.made, self.free_shape, inputs)

        def get_type_info(self) -> Any:
            return Node.class_type_info

        def visit_attributes(self, visitor: Any) -> bool:
            visitor.on_attributes({'made': self.made.value})  # tells nodes of equal input apart
            return True

        def has_evaluate(self) -> bool:
            return True

        def evaluate(self, outputs: Any, inputs: Any) -> bool:
            x, y = inputs[0], outputs[0]
            y.shape = self.nodes.output_shape(self.made, x.shape)
            shape = (ctypes.c_int64 * 4)(*x.shape)
            pointers = [ctypes.c_void_p(tensor.data.ctypes.data) for tensor in (x, y)]
            self.nodes.call('run', self.made, shape, pointers[0], self.nodes.threads, pointers[1])
            return True

    return Node


def _cannot_open(runtime: str, path: Path, error: Exception) -> RuntimeProblem:
    needs_library = re.search(r'swin(:Embed|.Embed, )', str(error))  # of the messages for unknown operators
    reason = f'its nodes are of domain swin, and {MANIFEST} names no library' if needs_library else _first_line(error)
    return RuntimeProblem(f'{runtime} cannot open {path}: {reason}')


def _cannot_run(runtime: str, inputs: Sequence[NDArray[Any]], error: Exception) -> RuntimeProblem:
    shape = 'x'.join(map(str, np.shape(inputs[0]))) if inputs else 'nothing'
    return RuntimeProblem(f'{runtime} cannot run the model on an input of {shape}: {_first_line(error)}')


def main(folder: str, *paths: str) -> int:
    """Print objects by picture, or the classes and shares of the pixels.

    Returns:
        The exit status: 1 if a picture was skipped.
    """
    model = load(folder)
    status = 0
    for path in paths:
        try:
            (result,) = model.predict([read_picture(path, model.bands)])
        except RuntimeProblem as error:
            print(f'skipped: {path}: {error}', file=sys.stderr)
            status = 1
        else:
            print(path, _summary(result, model.classes))
    print('torch was imported' if 'torch' in sys.modules else 'without torch')
    return status


def _summary(result: Result, classes: Sequence[str]) -> str:
    if 'boxes' in result:
        clear = [(classes[i], float(score)) for i, score in zip(result['labels'], result['scores']) if score > 0.3]
        return ', '.join(f'{name} {score:.2f}' for name, score in clear) or 'nothing'
    shares = np.bincount(result['labels'].ravel(), minlength=len(classes)) / result['labels'].size
    return ', '.join(f'{name} {share:.0%}' for name, share in zip(classes, shares) if share >= 0.01)


def read_picture(path: str, bands: int = 3) -> NDArray[Any]:
    """Return the pixels of a picture: BGR, (h, w, 3) uint8. Without three bands: (h, w, bands) from tifffile.

    Raises:
        RuntimeProblem: if the file cannot be read, or has a different number of bands.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise RuntimeProblem('it is no regular file')
        data = np.fromfile(path, np.uint8)
        if not len(data):
            raise RuntimeProblem('it is an empty file')
        if bands != 3:
            return _read_bands(data, bands)
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR)  # cv2.imread does not open every path
    except (OSError, ValueError) as error:  # a path with NUL
        raise RuntimeProblem(f'it cannot be read as a picture ({_first_line(error)})') from error
    except cv2.error:
        pixels = None
    if pixels is None:
        raise RuntimeProblem('it cannot be read as a picture: it is damaged, too large or of another kind')
    return pixels


def _read_bands(data: NDArray[Any], bands: int) -> NDArray[Any]:
    try:
        import tifffile
    except ImportError as error:
        raise RuntimeProblem(f'a TIFF of {bands} bands needs tifffile, which is not installed') from error
    pixels: NDArray[Any] = tifffile.imread(BytesIO(data.tobytes()))
    if pixels.ndim != 3 or pixels.shape[2] != bands:
        raise RuntimeProblem(f'it has the shape {pixels.shape}, and the model takes (h, w, {bands})')
    return pixels


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(f'{sys.argv[0]} takes DIR PICTURE...: a folder that tools/export.py made, and pictures')
    cast(TextIOWrapper, sys.stdout).reconfigure(errors='backslashreplace')  # names of files may not be UTF-8
    try:
        sys.exit(main(*sys.argv[1:]))
    except RuntimeProblem as error:
        sys.exit(f'{sys.argv[0]}: {error}')
