"""One way to refuse bad input: name the field, the value and the allowed range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from operator import index

MAX_BITS = 256
"""Of any int that is handed in. What is larger is a slip; Python cannot even print it if it has thousands of
digits.
"""


def require_int(field: str, value: object, low: int, high: int | None = None) -> int:
    """Return `value` if it is an int in `[low, high]`, else raise `ValueError`. Without `high` it may have
    `MAX_BITS` bits.

    `bool`, floats (integral ones too) and every other type are refused: `True` seats or `2.0` blocks
    are always a mistake further up.
    """
    allowed = f"an int >= {low}" if high is None else f"an int in [{low}, {high}]"
    if type(value) is not int:
        raise ValueError(f"{field} must be {allowed}, got {shown(value)} of type {type(value).__name__}")
    if value < low or (value.bit_length() > MAX_BITS if high is None else value > high):
        raise ValueError(f"{field} must be {allowed}, got {shown(value)}")
    return value


def shown(value: object) -> str:
    """The value as text, for a message: whatever it is, the message must not fail."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return f"an int beyond {MAX_BITS} bits"
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - of a list of large ints, of nested lists, of a caller's own class
        return f"a value that cannot be printed ({type(value).__name__})"


def require_optional_int(field: str, value: object, low: int) -> None:
    """As `require_int`, but None is allowed."""
    if value is not None:
        require_int(f"{field} (if not None)", value, low)


def require_bool(field: str, value: object) -> None:
    """Raise `ValueError` unless `value` is True or False."""
    if type(value) is not bool:
        raise ValueError(f"{field} must be True or False, got {shown(value)} of type {type(value).__name__}")


def require_number(field: str, value: object, low: float, high: float) -> None:
    """Raise `ValueError` unless `value` is an int or a float in `[low, high]`; bools are refused."""
    allowed = f"a number in [{low}, {high}]"
    if type(value) not in (int, float):
        raise ValueError(f"{field} must be {allowed}, got {shown(value)} of type {type(value).__name__}")
    assert isinstance(value, (int, float))
    # `not` also refuses NaN.
    if not (low <= value <= high):
        raise ValueError(f"{field} must be {allowed}, got {shown(value)}")


def require_str(field: str, value: object) -> str:
    """Return `value` if it is a non-empty string, else raise `ValueError`."""
    if type(value) is not str or not value:
        raise ValueError(f"{field} must be a non-empty string, got {shown(value)}")
    return value


def token_tuple(field: str, values: object, max_token_id: int = 2**31 - 1) -> tuple[int, ...]:
    """Return `values` as a tuple of plain ints in `[0, max_token_id]`, else raise `ValueError`.

    NumPy integers are taken (tokenizers hand them out); bools, floats and strings are not.
    """
    try:
        # A tensor or an array without dimensions has `__iter__`, and refuses only when it is called.
        unordered = isinstance(values, (str, bytes, Set, Mapping))
        tokens = None if unordered else iter(values)  # type: ignore[call-overload]
    except TypeError:
        tokens = None
    if tokens is None:
        raise ValueError(f"{field} must be a sequence of token ids, got {shown(values)}")
    out: list[int] = []
    for position, token in enumerate(tokens):
        try:
            if isinstance(token, bool):
                raise TypeError
            value = index(token)
        except TypeError:
            raise ValueError(
                f"{field}[{position}] must be an int in [0, {max_token_id}], "
                f"got {shown(token)} of type {type(token).__name__}"
            ) from None
        if not 0 <= value <= max_token_id:
            raise ValueError(f"{field}[{position}] must be an int in [0, {max_token_id}], got {shown(value)}")
        out.append(value)
    return tuple(out)


def require_unique(field: str, names: Sequence[str]) -> None:
    """Raise `ValueError` if a name stands twice in `names`."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{field} must be unique, got {shown(name)} twice")
        seen.add(name)
