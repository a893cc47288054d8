"""A pickle read as data: nothing is imported, and nothing is called but the stand-ins in rebuild.py.

Python's own unpickler can be told which names to import, but not what is then done with them, nor how much memory that
may take; torch's with `weights_only=True` is like it in both. This one does what a pickle says on values alone: a name
is a `Name`, a call of one is looked up in a table, and every step is charged to a budget.
"""

import pickletools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, cast

from .budget import Budget
from .plain import Built, Forbidden, Name, as_plain, checked_key
from .rebuild import CALLS, NEW

STEP_BYTES = 128  # more than any one opcode makes, beside what is read from the file
INTEGER_BITS = 512
LINE_BYTES = 1024  # a name in a pickle is a line
_DICTS = (dict, OrderedDict, Counter)


class BoundedFile:
    """A file from which no more is read than it has and the budget allows."""

    def __init__(self, file: BinaryIO, budget: Budget):
        self._file, self._budget = file, budget
        position = file.tell()
        self._end = file.seek(0, 2)
        file.seek(position)

    def read(self, number_of_bytes: int) -> bytes:
        if number_of_bytes > LINE_BYTES:
            number_of_bytes = min(number_of_bytes, self._end - self._file.tell())
            self._budget.charge(number_of_bytes)
        return self._file.read(number_of_bytes)

    def readline(self) -> bytes:
        return self._file.readline(LINE_BYTES)


def unpickle(file: BinaryIO, budget: Budget, storage_of: Callable[[Any], Any]) -> Any:
    """The value that the pickle at a file's position holds, for `plain.as_plain` to finish.

    Args:
        file: seekable; afterwards it stands behind the pickle.
        budget: what it may take.
        storage_of: from a persistent id to a tensor's storage.

    Raises:
        CheckpointError: if the pickle wants to call what is in no table, or takes too much memory.
        Exception: of many kinds, if it is damaged.
    """
    machine = _Machine(budget, storage_of)
    try:
        for opcode, argument, _ in pickletools.genops(
            cast(Any, BoundedFile(file, budget))
        ):  # it reads, and no more is asked for
            budget.charge(STEP_BYTES)
            machine.step(opcode.name, argument)
        result = machine.pop()
        if machine.forbidden:
            as_plain(result, budget, lambda tensor: tensor)  # names the rest of what may not be there
            raise Forbidden([])
        return result
    except Exception as error:
        if machine.forbidden:  # which says more than what it may have led to
            raise Forbidden([*machine.forbidden, *getattr(error, 'wanted', [])]) from error
        raise


class _Machine:
    """The stack machine that pickles are programs of: see `pickletools`."""

    def __init__(self, budget: Budget, storage_of: Callable[[Any], Any]):
        self.budget, self.storage_of = budget, storage_of
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []  # the stacks below each mark
        self.memo: dict[int, Any] = {}
        self.forbidden: list[str] = []  # what it wants and may not have

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in _CONSTANTS:
            self.push(_CONSTANTS[opcode])
        elif opcode in _EMPTY:
            self.push(_EMPTY[opcode]())
        elif opcode in _ARGUMENTS:
            self.push_argument(argument)
        elif opcode in _OPCODES:
            _OPCODES[opcode](self, argument)
        elif opcode not in ('PROTO', 'FRAME', 'STOP'):
            raise Forbidden([f'the opcode {opcode}'])

    def push(self, value: Any) -> None:  # not `stack.append`, for reading the value may change what the stack is
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def push_argument(self, argument: Any) -> None:
        if type(argument) is int and argument.bit_length() > INTEGER_BITS:
            raise ValueError(f'an integer of {argument.bit_length()} bits')
        if type(argument) is str:
            self.budget.charge(4 * len(argument))
        self.push(bytes(argument) if type(argument) is bytearray else argument)

    def mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def push_tuple(self, length: int) -> None:
        items = tuple(self.stack[-length:])
        if len(items) != length:
            raise IndexError('the stack is too short')
        self.stack[-length:] = [items]

    def append(self, items: Iterable[Any]) -> None:
        self.expect(list).extend(items)

    def add(self, items: Iterable[Any]) -> None:
        self.expect(set).update(map(checked_key, items))

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not Name:  # what a forbidden call would have given
            target = self.expect(*_DICTS)
            for key, value in zip(items[::2], items[1::2]):
                target[checked_key(key)] = value

    def set_item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def expect(self, *kinds: type) -> Any:
        target = self.stack[-1]
        if type(target) not in kinds:
            raise TypeError(f'a {kinds[0].__name__} was expected, got {type(target).__name__}')
        return target

    def push_name(self, name: str) -> None:
        self.push(Name(name))

    def push_stack_name(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise TypeError('a name that is no string')
        self.push_name(f'{module}.{name}')

    def reduce(self, _: Any) -> None:
        self.call(CALLS)

    def new(self, _: Any) -> None:
        self.call(NEW)

    def call(self, table: dict[str, Callable[..., Any]]) -> None:
        arguments, function = self.pop(), self.pop()
        if type(function) is not Name or type(arguments) is not tuple:
            raise TypeError(f'a call of a {type(function).__name__} with a {type(arguments).__name__}')
        try:
            if function.text not in table:
                raise Forbidden([function.text])
            self.push(table[function.text](self.budget, *arguments))
        except Forbidden as error:
            self.forbidden += error.wanted
            self.push(Name(error.wanted[0]))  # go on, to say what else it wants

    def build(self, _: Any) -> None:
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Built):
            target.build(state)
        elif type(target) is OrderedDict and type(state) is dict:
            if '_metadata' in state:  # the versions of a state_dict's modules
                target._metadata = state['_metadata']  # type: ignore[attr-defined]
        elif type(target) is not Name or target.text not in self.forbidden:
            raise TypeError(f'state for a {type(target).__name__}')

    def load_storage(self, _: Any) -> None:
        self.push(self.storage_of(self.pop()))


_CONSTANTS = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False, 'EMPTY_TUPLE': ()}
_EMPTY = {'EMPTY_LIST': list, 'EMPTY_DICT': dict, 'EMPTY_SET': set}
_ARGUMENTS = {
    'BININT', 'BININT1', 'BININT2', 'LONG1', 'LONG4', 'BINFLOAT', 'SHORT_BINSTRING', 'BINSTRING', 'BINUNICODE',
    'SHORT_BINUNICODE', 'BINUNICODE8', 'SHORT_BINBYTES', 'BINBYTES', 'BINBYTES8',
    'BYTEARRAY8',
}  # fmt: skip
_OPCODES: dict[str, Callable[[_Machine, Any], Any]] = {
    'MARK': _Machine.mark,
    'POP': lambda m, _: m.pop(),
    'POP_MARK': lambda m, _: m.pop_to_mark(),
    'DUP': lambda m, _: m.push(m.stack[-1]),
    'TUPLE': lambda m, _: m.push(tuple(m.pop_to_mark())),
    'TUPLE1': lambda m, _: m.push_tuple(1),
    'TUPLE2': lambda m, _: m.push_tuple(2),
    'TUPLE3': lambda m, _: m.push_tuple(3),
    'APPEND': lambda m, _: m.append([m.pop()]),
    'APPENDS': lambda m, _: m.append(m.pop_to_mark()),
    'ADDITEMS': lambda m, _: m.add(m.pop_to_mark()),
    'FROZENSET': lambda m, _: m.push(frozenset(map(checked_key, m.pop_to_mark()))),
    'SETITEM': _Machine.set_item,
    'SETITEMS': lambda m, _: m.set_items(m.pop_to_mark()),
    'BINPUT': _Machine.put,
    'LONG_BINPUT': _Machine.put,
    'MEMOIZE': lambda m, _: m.put(len(m.memo)),
    'BINGET': lambda m, index: m.push(m.memo[index]),
    'LONG_BINGET': lambda m, index: m.push(m.memo[index]),
    'GLOBAL': lambda m, names: m.push_name(names.replace(' ', '.')),
    'STACK_GLOBAL': _Machine.push_stack_name,
    'REDUCE': _Machine.reduce,
    'NEWOBJ': _Machine.new,
    'BUILD': _Machine.build,
    'BINPERSID': _Machine.load_storage,
}
