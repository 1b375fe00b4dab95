"""Reading what ``torch.save`` wrote, without torch and without running anything that the file holds.

Such a file is a zip archive: ``NAME/data.pkl``, a pickle, and ``NAME/data/KEY``, the bytes of each storage. A pickle is
a program for a stack machine that can call any function by its name. The machine here knows the two dozen instructions
that dictionaries, lists, tuples, numbers, texts and tensors need, and the three names that tensors need; it imports
nothing and calls nothing, and refuses the file at the first other instruction or name. Archives with compressed entries
are refused too, since a small one can unpack to any size. Format: torch/serialization.py of PyTorch, protocol 2.
"""

from __future__ import annotations

import pickletools
import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from simulator.documents.problem import escape
from simulator.routing.recording import refuse

MAX_PICKLE_BYTES = 100_000_000
MAX_INSTRUCTIONS = 20_000_000
"""Each makes at most one small object, so this bounds the memory that a hostile pickle takes."""
_STORAGES = {"LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1",
             "BoolStorage": "?", "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2"}  # fmt: skip
_REBUILD = "torch._utils _rebuild_tensor_v2"
_MARK = object()
_PUSHED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS_AND_TEXTS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"})
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where an array lies in the archive."""

    key: str
    dtype: str
    storage_items: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """Something importable that the pickle names; it is never imported."""

    full: str


class TorchFile:
    """An open archive: *content* is what was saved, with a :class:`Tensor` for each tensor."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self._file = file
        try:
            self._archive = zipfile.ZipFile(stream)
            names = self._archive.namelist()
            self._root = next(name for name in names if name.endswith("/data.pkl")).removesuffix("data.pkl")
        except (zipfile.BadZipFile, StopIteration, NotImplementedError, ValueError, OSError):
            raise refuse(file, "is not a zip archive with a data.pkl, as torch.save has written since 1.6") from None
        self._order = self._byte_order()
        self.content = _load(self._entry("data.pkl", MAX_PICKLE_BYTES), file)

    def array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The numbers of *tensor*, read now."""
        dtype = np.dtype(tensor.dtype).newbyteorder(self._order)
        raw = self._entry(f"data/{tensor.key}", tensor.storage_items * dtype.itemsize)
        last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True))
        items = len(raw) // dtype.itemsize
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype=dtype)
        if last >= items or prod(tensor.shape) > items:
            raise refuse(self._file, f"has a tensor of shape {tensor.shape} that its {items} numbers do not fill")
        flat = np.frombuffer(raw, dtype=dtype, count=items)[tensor.offset :]
        return np.lib.stride_tricks.as_strided(flat, tensor.shape, [step * dtype.itemsize for step in tensor.strides])

    def _byte_order(self) -> Literal["<", ">"]:
        if f"{self._root}byteorder" not in self._archive.namelist():
            return "<"
        return ">" if self._entry("byteorder", 16) == b"big" else "<"

    def _entry(self, name: str, most: int) -> bytes:
        try:
            entry = self._archive.getinfo(self._root + name)
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise refuse(self._file, "has compressed or encrypted entries, which torch.save never writes")
            if entry.file_size > most:
                raise refuse(self._file, f"has {entry.file_size} bytes at {name}, expected at most {most}")
            return self._archive.read(entry)
        except KeyError:
            raise refuse(self._file, f"has no {escape(name)}, which its pickle refers to") from None
        except (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeError, OSError) as error:
            raise refuse(self._file, f"is damaged at {escape(name)}: {error}") from None


def _load(program: bytes, file: Path) -> Any:
    try:
        return _Machine().run(program)
    except _Refusal as refusal:
        raise refuse(file, f"is refused: {refusal}") from None
    except (ValueError, IndexError, TypeError, KeyError, AttributeError, UnicodeError) as error:
        raise refuse(file, f"is damaged: its pickle breaks off or makes no sense ({escape(str(error))})") from None


class _Refusal(Exception):  # noqa: N818, not an error of the program but of the file
    """Why the pickle is not one of tensors and plain containers."""


class _Machine:
    """Runs the instructions that are allowed."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(program)):
            if number == MAX_INSTRUCTIONS:
                raise _Refusal(f"its pickle has more than {MAX_INSTRUCTIONS} instructions")
            name = opcode.name
            if name in _NUMBERS_AND_TEXTS:
                self._stack.append(argument)
            elif name in ("BINGET", "LONG_BINGET"):
                self._stack.append(self._memo[int(argument or 0)])
            elif name in ("BINPUT", "LONG_BINPUT"):
                self._memo[int(argument or 0)] = self._stack[-1]
            elif name == "STOP":
                return self._stack.pop()
            else:
                self._other(name, argument)
        raise ValueError("no end")

    def _other(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _PUSHED:
            stack.append(_PUSHED[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            self._close(name)
        elif name == "APPEND":
            item = stack.pop()
            stack[-1].append(item)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], key, value)
        elif name == "GLOBAL":
            stack.append(_allowed(argument))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_rebuilt(function, arguments))
        elif name != "PROTO":
            raise _Refusal(f"its pickle has the instruction {name}, which tensors and plain containers do not need")

    def _close(self, name: str) -> None:
        """End what a mark began."""
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
        items = stack[at + 1 :]
        del stack[at:]
        if name == "TUPLE":
            stack.append(tuple(items))
        elif name == "APPENDS":
            stack[-1].extend(items)
        else:
            for key, value in zip(items[::2], items[1::2], strict=True):
                _set(stack[-1], key, value)


def _set(target: Any, key: Any, value: Any) -> None:
    if type(target) is not dict or not isinstance(key, str | int | float | bool | None):
        raise TypeError("a dictionary's item without a dictionary")
    target[key] = value


def _allowed(argument: str) -> _Name:
    module, _, attribute = argument.partition(" ")
    storage = module == "torch" and attribute in _STORAGES
    if storage or argument in (_REBUILD, "collections OrderedDict"):
        return _Name(argument)
    raise _Refusal(f"its pickle names {escape(argument.replace(' ', '.'))}, which is neither a tensor nor a container")


def _storage(found: Any) -> tuple[str, str, int]:
    """Key, number format and size of the storage that a persistent id means."""
    kind, name, key, _, items = found
    if kind != "storage" or type(name) is not _Name or not isinstance(key, str) or type(items) is not int:
        raise TypeError("a reference that is not to a storage")
    return key, _STORAGES[name.full.removeprefix("torch ")], items


def _rebuilt(function: Any, arguments: Any) -> Any:
    if type(function) is not _Name or type(arguments) is not tuple:
        raise _Refusal("its pickle calls something that is not a function by name")
    if function.full == "collections OrderedDict" and not arguments:
        return {}
    if function.full != _REBUILD:
        raise _Refusal(f"its pickle calls {function.full.replace(' ', '.')} in a way that tensors do not need")
    (key, dtype, items), offset, shape, strides = arguments[:4]
    numbers = (items, offset, *shape, *strides)
    if not all(type(n) is int and 0 <= n < 2**48 for n in numbers) or len(shape) != len(strides) or len(shape) > 8:
        raise _Refusal("it has a tensor with an impossible shape")
    return Tensor(key, dtype, items, offset, tuple(shape), tuple(strides))
