"""Read untrusted pickles: only plain values and numeric arrays are built, and nothing else is called."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from cnfgnn.data.files.text import shown


def unpickle(data: bytes) -> Any:
    """The content of a pickle of plain values and numeric arrays; nothing that the pickle names is called.

    Even numpy's own functions are replaced by stand-ins, because damaged data could crash the real ones. Any
    other class raises UnpicklingError, and damaged data may raise any exception.
    """
    return _Unpickler(io.BytesIO(data), encoding="latin1").load()


class _Unpickler(pickle._Unpickler):  # the one in C takes gigabytes if a few bytes ask for them
    read: Any
    append: Any

    def find_class(self, module: str, name: str) -> Any:
        try:
            stand_in = _STAND_INS[module.replace("numpy.core", "numpy._core"), name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {shown(f'{module}.{name}')}") from None
        return partial(stand_in)  # a new object each time, because a pickle can set attributes on it

    def _load_byte_array(self) -> None:
        """As pickle's own, which takes the memory for any length before it reads."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: _load_byte_array,
    }


class _Dtype:
    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch(r"[biuf]\d|[US]\d+", code):
            raise pickle.UnpicklingError(f"it holds an array of {shown(code)}")
        self.numpy = np.dtype(code)

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.numpy = self.numpy.newbyteorder(state[1])


class _Array:
    """Replaces numpy's _reconstruct: an array that gets shape, type and content from its state."""

    def __init__(self, *_: object) -> None:
        self._array: npt.NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, by_column, content = state
        self._array = _filled(content, dtype, shape, "F" if by_column else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self._array.astype(dtype or self._array.dtype)


def _filled(content: Any, dtype: _Dtype, shape: Any = -1, order: Literal["C", "F"] = "C") -> npt.NDArray[Any]:
    raw = content.encode("latin1") if isinstance(content, str) else content  # Python 2 wrote bytes as text
    return np.frombuffer(raw, dtype=dtype.numpy).reshape(shape, order=order)


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "scalar"): lambda dtype, raw: _filled(raw, dtype)[0].item(),
    ("numpy._core.numeric", "_frombuffer"): _filled,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}
