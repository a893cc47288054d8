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
import reprlib
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from itertools import groupby, islice
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Any, Callable, Optional, cast

import cv2
import numpy as np
from numpy.typing import NDArray

MANIFEST = 'deploy.json'
REQUIRED_KEYS = ('format', 'precision', 'task', 'file', 'sha256', 'inputs', 'outputs')  # of every deploy.json
PROVIDERS = {'cpu': 'CPUExecutionProvider', 'cuda': 'CUDAExecutionProvider', 'tensorrt': 'TensorrtExecutionProvider'}
SCORE_THR = 0.3  # lowest score of a printed object, unless deploy.json has another
OPENVINO_LOCK = Lock()
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')  # the first bytes of a file
FLAGS = {
    'color': cv2.IMREAD_COLOR,
    'color_ignore_orientation': cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
    'grayscale': cv2.IMREAD_GRAYSCALE,
    'grayscale_ignore_orientation': cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION,
    'unchanged': cv2.IMREAD_UNCHANGED,
}

Result = dict[str, NDArray[Any]]
Run = Callable[[Sequence[NDArray[Any]], Sequence[str]], list[NDArray[Any]]]


class RuntimeProblem(ValueError):
    """An error for users: of a folder, a missing runtime, a device or a picture."""


class RuntimeModel:
    """An exported model in a runtime.

    Args:
        folder: a folder of `tools/export.py`.
        device: 'cpu'; for onnxruntime also 'cuda' or 'tensorrt', for openvino 'gpu', 'npu' or 'auto'.
        threads: number of CPU threads; None: the runtime's default.

    Attributes:
        manifest: the contents of deploy.json.
        classes: the names of the classes.

    Raises:
        RuntimeProblem: if the folder is no exported model, or the runtime or the device is missing.
    """

    def __init__(self, folder: Any, device: str = 'cpu', threads: Optional[int] = None):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        require_files(self.folder, self.manifest)
        format = self.manifest['format']
        if format not in ('onnx', 'openvino'):
            raise RuntimeProblem(f'{self.folder / MANIFEST}: format takes onnx or openvino, got {format!r}')
        library = _load_library(self.folder / self.manifest['library']) if 'library' in self.manifest else None
        open_model = _open_onnxruntime if format == 'onnx' else _open_openvino
        self._run = open_model(self.folder / self.manifest['file'], self.manifest, device, threads, library)
        self.classes: list[str] = self.manifest.get('classes', [])

    def run(self, inputs: Sequence[NDArray[Any]], outputs: Optional[Sequence[str]] = None) -> list[NDArray[Any]]:
        """Return the outputs for inputs, both described in deploy.json. Several threads may call `run`.

        Args:
            outputs: names of outputs; None: all.

        Raises:
            RuntimeProblem: for an input of a wrong type or shape, without values, or with NaN or infinity.
        """
        ports = self.manifest['inputs']
        if len(inputs) != len(ports):
            raise RuntimeProblem(f'inputs takes {len(ports)} arrays, got {len(inputs)}')
        for array, port in zip(inputs, ports):
            dtype, shape = port['dtype'], port['shape']
            is_array = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == len(shape)
            fits = is_array and all(isinstance(size, str) or size == length for size, length in zip(shape, array.shape))
            _require(port['name'], array, fits, f'{dtype} values ({", ".join(map(str, shape))})')
            _require(port['name'], array, array.size > 0, 'at least one value')
            is_finite = array.dtype.kind != 'f' or bool(np.isfinite(array).all())
            _require(port['name'], float('nan'), is_finite, 'finite values')
        return self._run(inputs, outputs or [port['name'] for port in self.manifest['outputs']])

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
            RuntimeProblem: for an unsuitable picture, see `require_picture`.
        """
        names = [port['name'] for port in self.manifest['outputs'] if logits or port['name'] != 'logits']
        fixed = self.manifest['inputs'][0]['shape'][0]
        batch = fixed if isinstance(fixed, int) else batch
        for _, alike in groupby(pictures, lambda picture: getattr(picture, 'shape', None)):
            while group := list(islice(alike, batch)):
                inputs = np.stack([self.prepare(picture) for picture in group])
                size = np.array(group[0].shape[:2], np.int64)
                outputs = dict(zip(names, self.run([inputs, size], names)))
                if 'masks' in outputs:
                    outputs['masks'] = outputs['masks'].astype(bool)
                for index in range(len(group)):
                    # a detector's outputs are rows of all pictures, and `image` has the index of each row's picture
                    rows = outputs['image'] == index if 'image' in outputs else index
                    yield {name: value[rows] for name, value in outputs.items() if name != 'image'}

    def prepare(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Resize a picture by the rule of the model's config: (H, W, 3) uint8, or (H, W, bands) float32."""
        self.require_picture(picture)
        picture = picture if self.bands == 3 else picture.astype(np.float32)
        return resize(picture, self.manifest['preprocessing']['resize'])

    def require_picture(self, picture: NDArray[Any]) -> None:
        """Check a picture before memory is allocated.

        Raises:
            RuntimeProblem: for anything but a picture, or for too many pixels.
        """
        if self.manifest['task'] == 'maps':
            raise RuntimeProblem(f'{self.folder} holds a part of a model, without results: call run with its input')
        bands = self.bands
        is_array = isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == bands
        fits = (
            is_array and picture.size > 0 and picture.dtype.kind in 'uif' and (picture.dtype == np.uint8 or bands != 3)
        )
        _require('picture', picture, fits, f'{"uint8" if bands == 3 else "numeric"} pixels (h, w, {bands})')
        h, w, _ = picture.shape
        height, width = compute_resized_size((h, w), self.manifest['preprocessing']['resize'])
        limit = self.manifest['limits']['pixels']
        if max(height * width, h * w) > limit:
            raise RuntimeProblem(
                f'a picture of {h}x{w} pixels, {height}x{width} to the model, is more than the {limit} pixels that its '
                f'{MANIFEST} allows'
            )

    @property
    def bands(self) -> int:
        """Return the number of bands of a picture."""
        shape: list[int] = self.manifest['inputs'][0]['shape']
        return shape[3]


load = RuntimeModel


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the contents of deploy.json.

    Raises:
        RuntimeProblem: if deploy.json cannot be read, or lacks one of `REQUIRED_KEYS`.
    """
    path = folder / MANIFEST
    if not path.is_file():  # reading from a pipe might never end
        raise RuntimeProblem(f'{folder} is no exported model: it has no file {MANIFEST}')
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        missing = [key for key in REQUIRED_KEYS if key not in manifest]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RuntimeProblem(f'{path} cannot be read ({error}): export the model again') from error
    if missing:
        raise RuntimeProblem(f'{path} has no {", ".join(missing)}: export the model again')
    return manifest


def _require(name: str, value: Any, is_right: bool, takes: str) -> None:
    if not is_right:
        got = f'{value.dtype} {value.shape}' if isinstance(value, np.ndarray) else reprlib.repr(value)
        raise RuntimeProblem(f'{name} takes {takes}, got {got}')


def require_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check names and SHA-256 of a model's files: a damaged file may crash a runtime, and a library is a program.

    Raises:
        RuntimeProblem: if a file is missing, lies elsewhere, has no SHA-256 or differs.
    """
    sha256 = manifest['sha256'] if isinstance(manifest['sha256'], dict) else {}
    for key in {'file', 'library'} & manifest.keys():
        if not (isinstance(manifest[key], str) and manifest[key] in sha256):
            raise RuntimeProblem(f'{folder / MANIFEST}: {key} takes a name in sha256, got {manifest[key]!r}')
    for name, digest in sha256.items():
        path = folder / name
        if Path(name).name != name or not path.is_file() or (name == manifest.get('library') and path.is_symlink()):
            raise RuntimeProblem(f'{path} is missing, or no file of {folder} itself: the folder is not whole')
        if compute_digest(path) != digest:
            raise RuntimeProblem(f'{path} is not the file that was exported: its SHA-256 is not that in {MANIFEST}')


def compute_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def compute_resized_size(size: tuple[int, int], rule: Optional[dict[str, Any]]) -> tuple[int, int]:
    """Return height and width after `resize`, before its padding.

    Raises:
        RuntimeProblem: if no pixel is left, or the picture has none.
    """
    height, width = new_height, new_width = size
    if rule is not None and height and width:
        box_width, box_height = new_width, new_height = rule['scale']
        if rule.get('pad'):
            # round(height * box_width / width) in integers, so that the graph gets the same number
            new_height = min(box_height, (2 * height * box_width + width) // (2 * width))
            new_width = min(box_width, (2 * width * box_height + height) // (2 * height))
        elif rule['keep_ratio']:
            long, short = max(rule['scale']), min(rule['scale'])
            factor = min(long / max(height, width), short / min(height, width))
            new_width, new_height = int(width * factor + 0.5), int(height * factor + 0.5)
    if not (new_height and new_width):
        raise RuntimeProblem(f'a picture of {height}x{width} pixels would be {new_height}x{new_width} to the model')
    return new_height, new_width


def resize(picture: NDArray[Any], rule: Optional[dict[str, Any]]) -> NDArray[Any]:
    """Resize a picture bilinearly by the rule of a config. None: keep the size.

    `scale` is (width, height). With `keep_ratio`, the resized picture fits into `scale` or into the turned `scale`.
    With `pad` too, the resized picture fits into `scale`, and zeros on the right and at the bottom fill `scale`.

    Raises:
        RuntimeProblem: if no pixel is left, or the picture has none.
    """
    height, width = compute_resized_size((picture.shape[0], picture.shape[1]), rule)
    if rule is None:
        return picture
    resized = cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)
    resized = resized.reshape(height, width, -1)  # OpenCV drops the dimension of one band
    if not rule.get('pad'):
        return resized
    padded = np.zeros((*rule['scale'][::-1], resized.shape[2]), resized.dtype)
    padded[:height, :width] = resized  # the graph gives the padding its values
    return padded


@contextmanager
def _explain_error(action: str) -> Iterator[None]:
    """Turn an error of a runtime, of any class and of several lines, into a sentence."""
    try:
        yield
    except Exception as error:
        problem = ' '.join(str(error).split()) or type(error).__name__
        raise RuntimeProblem(f'{action}: {problem}') from error


def _open_onnxruntime(
    path: Path, manifest: dict[str, Any], device: str, threads: Optional[int], library: Optional[ctypes.CDLL]
) -> Run:
    import onnxruntime

    device_name, _, device_id = device.partition(':')
    provider = PROVIDERS.get(device_name)
    available = onnxruntime.get_available_providers()
    if provider not in available:  # onnxruntime would compute on the CPU
        known = ', '.join(name for name, provider in PROVIDERS.items() if provider in available)
        raise RuntimeProblem(f'onnxruntime has no device {device!r} here; it has {known}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    if library is not None:
        options.register_custom_ops_library(library._name)
    providers = [(provider, {'device_id': device_id} if device_id else {})]
    with _explain_error(f'onnxruntime cannot open {path}'):
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    names = [port['name'] for port in manifest['inputs']]

    def run(inputs: Sequence[NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        with _explain_error(f'onnxruntime cannot run an input of {inputs[0].shape}'):
            results: list[NDArray[Any]] = session.run(outputs, dict(zip(names, inputs)))
        return results

    return run


@cache
def get_openvino_core() -> Any:
    """Return OpenVINO's Core: a single Core until the process ends.

    The plugin for CPUs replaces the signal stack of a thread. The end of a Core restores the previous stack. A
    second Core may restore the freed stack of the first. The next signal then ends the process with a
    segmentation fault, for example Ctrl-C or the end of a DataLoader's worker.
    """
    import openvino

    return openvino.Core()


def _open_openvino(
    path: Path, manifest: dict[str, Any], device: str, threads: Optional[int], library: Optional[ctypes.CDLL]
) -> Run:
    with OPENVINO_LOCK:  # two threads must not make two Cores
        core = get_openvino_core()
    # Without this hint, openvino computes in bf16 on a CPU with matrix units. fp16 is only for storage.
    settings: dict[str, Any] = {'INFERENCE_PRECISION_HINT': 'bf16' if manifest['precision'] == 'bf16' else 'f32'}
    if threads is not None:
        settings['INFERENCE_NUM_THREADS'] = threads
    nodes = None if library is None else OpenvinoNodes(library)
    if nodes is not None:  # the library's threads inherit the CPUs of openvino's thread
        settings['ENABLE_CPU_PINNING'] = False
    with _explain_error(f'openvino cannot open {path} on {device!r}'):
        compiled = core.compile_model(str(path) if nodes is None else nodes.read(path), device.upper(), settings)
        if nodes is not None:
            nodes.threads = compiled.get_property('INFERENCE_NUM_THREADS')

    # A request owns the tensors of a run. `compiled(...)` would share one between all threads.
    idle: LifoQueue[Any] = LifoQueue()
    for _ in range(compiled.get_property('OPTIMAL_NUMBER_OF_INFER_REQUESTS')):
        idle.put(compiled.create_infer_request())

    def run(inputs: Sequence[NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        request = idle.get()  # waits until a request is free
        try:
            with _explain_error(f'openvino cannot run an input of {inputs[0].shape}'):
                results = request.infer(list(inputs), share_inputs=True, share_outputs=False)
            return [results[name] for name in outputs]
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


class OpenvinoNodes:
    """The nodes of domain `swin` in OpenVINO: operators in Python with calls of the compiled library.

    A node keeps packed weights. The graph keeps no second copy. csrc/runtimes/operators.h describes the functions.
    """

    def __init__(self, library: ctypes.CDLL):
        for name in ('kinds', 'attributes', 'weights', 'create', 'shape', 'run'):
            getattr(library, f'swin_operator_{name}').restype = ctypes.c_char_p
        library.swin_operator_free.argtypes = [ctypes.c_void_p]
        self.library, self.threads = library, 1

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
        weights = [
            np.ascontiguousarray(constant.get_node().data, np.int8 if name.endswith('_int8') else np.float32)
            for name, constant in zip(self.library.swin_operator_weights(kind.encode()).decode().split(), constants)
        ]
        operator = ctypes.c_void_p()
        self.call(
            'create',
            kind.encode(),
            (ctypes.c_double * len(names))(*attributes.values()),
            (ctypes.c_void_p * len(weights))(*(weight.ctypes.data for weight in weights)),
            (ctypes.c_int64 * len(weights))(*(weight.size for weight in weights)),
            ctypes.byref(operator),
        )
        weakref.finalize(operator, self.library.swin_operator_free, operator.value)
        channels = attributes.get('outputs', attributes['channels'])
        shape = [-1, channels, -1, -1] if kind == 'OutputNorm' else [-1, -1, -1, channels]
        return _make_node_class()(self, operator, shape, [x]).outputs()

    def call(self, name: str, *arguments: Any) -> None:
        error = getattr(self.library, f'swin_operator_{name}')(*arguments)
        if error:
            raise ValueError(error.decode())


@cache
def _make_node_class() -> Any:
    import openvino

    class Node(openvino.Op):
        class_type_info = openvino.DiscreteTypeInfo('Node', 'swin')

        def __init__(self, nodes: OpenvinoNodes, operator: Any, shape: list[int], inputs: Any):
            super().__init__(self)
            self.nodes, self.operator, self.free_shape = nodes, operator, shape
            self.set_arguments(inputs)
            self.constructor_validate_and_infer_types()

        def validate_and_infer_types(self) -> None:
            shape = self.get_input_partial_shape(0)
            output = (ctypes.c_int64 * 4)(*self.free_shape)
            if shape.is_static:
                self.nodes.call('shape', self.operator, (ctypes.c_int64 * 4)(*shape.to_shape()), output)
            self.set_output_type(0, self.get_input_element_type(0), openvino.PartialShape(list(output)))

        def clone_with_new_inputs(self, inputs: Any) -> Any:
            return Node(self.nodes, self.operator, self.free_shape, inputs)

        def get_type_info(self) -> Any:
            return Node.class_type_info

        def visit_attributes(self, visitor: Any) -> bool:
            visitor.on_attributes({'made': self.operator.value})  # tells nodes of equal input apart
            return True

        def has_evaluate(self) -> bool:
            return True

        def evaluate(self, outputs: Any, inputs: Any) -> bool:
            shape = (ctypes.c_int64 * 4)(*inputs[0].shape)
            x, y = (ctypes.c_void_p(tensor.data.ctypes.data) for tensor in (inputs[0], outputs[0]))
            self.nodes.call('run', self.operator, shape, x, self.nodes.threads, y)
            return True

    return Node


def main(folder: str, *paths: str) -> int:
    """Print the objects of each picture, from the threshold of deploy.json on, or the shares of its classes.

    Returns:
        The exit status: 1 if a picture was skipped.
    """
    model = load(folder)
    status = 0
    stored = model.manifest.get('score_thr')  # a number, or a number for each class
    default = SCORE_THR if stored is None else stored
    thresholds = stored if isinstance(stored, dict) else dict.fromkeys(model.classes, default)
    for path in paths:
        try:
            pixels = read_pixels(path, model.bands, **model.manifest.get('preprocessing', {}).get('load', {}))
            (result,) = model.predict([pixels])
        except RuntimeProblem as error:
            print(f'skipped: {path}: {error}', file=sys.stderr)
            status = 1
            continue
        if 'boxes' in result:
            pairs = ((model.classes[label], score) for label, score in zip(result['labels'], result['scores']))
            shown = [f'{name} {score:.2f}' for name, score in pairs if score >= thresholds[name]]
        else:
            shares = np.bincount(result['labels'].ravel(), minlength=len(model.classes)) / result['labels'].size
            shown = [f'{name} {share:.0%}' for name, share in zip(model.classes, shares) if share >= 0.01]
        print(path, ', '.join(shown) or 'nothing')
    return status


def read_pixels(
    path: str, bands: int = 3, color_type: str = 'color', imdecode_backend: Optional[str] = None
) -> NDArray[Any]:
    """Return the pixels of a picture, (h, w, bands): BGR uint8 of three bands.

    Args:
        color_type, imdecode_backend: `preprocessing.load` of deploy.json, from the config. The backend is 'cv2' or
            'tifffile'; None: by the number of bands.

    Raises:
        RuntimeProblem: if the file cannot be read, or has a different number of bands.
    """
    backend = imdecode_backend or ('cv2' if bands == 3 else 'tifffile')
    try:
        if not Path(path).is_file():
            raise RuntimeProblem('it is no regular file')
        data = np.fromfile(path, np.uint8)  # cv2.imread does not open every path
        if backend == 'tifffile':
            pixels: Any = _read_tiff(data.tobytes())
        elif data[:4].tobytes() in TIFF:
            raise RuntimeProblem('it is a TIFF, which OpenCV may decode wrongly: decode it, and call predict')
        elif backend == 'cv2':
            pixels = cv2.imdecode(data, FLAGS[color_type])
        else:
            raise RuntimeProblem(f'the config decodes pictures by {backend!r}: decode it, and call predict')
    except RuntimeProblem:
        raise
    except (OSError, ValueError) as error:  # a path with NUL
        raise RuntimeProblem(f'it cannot be read ({error})') from error
    except cv2.error:  # an empty file
        pixels = None
    if pixels is None:
        raise RuntimeProblem('it cannot be read as a picture: it is empty, damaged, too large or of another kind')
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] != bands:
        raise RuntimeProblem(f'it has the shape {pixels.shape}, and the model takes (h, w, {bands})')
    result: NDArray[Any] = pixels
    return result


def _read_tiff(data: bytes) -> NDArray[Any]:
    """Return the values of a TIFF."""
    try:
        import tifffile
    except ImportError as error:
        raise RuntimeProblem('it is a TIFF: pip install tifffile imagecodecs') from error
    try:
        pixels: NDArray[Any] = tifffile.imread(BytesIO(data))
    except Exception as error:  # of many kinds
        raise RuntimeProblem(f'it cannot be read ({error})') from error
    return pixels


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(f'{sys.argv[0]} takes DIR PICTURE...: a folder that tools/export.py made, and pictures')
    cast(TextIOWrapper, sys.stdout).reconfigure(errors='backslashreplace')  # names of files may not be UTF-8
    try:
        sys.exit(main(*sys.argv[1:]))
    except RuntimeProblem as error:
        sys.exit(f'{sys.argv[0]}: {error}')
