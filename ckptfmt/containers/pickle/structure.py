"""Opcodes that build: containers, objects, references, and those that move the stack.

Items go into lists, keys and values into dicts, and all of it onto objects, which only note it. Anything else
as a target is refused, as is a key that cannot be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.machine import U1, U4, U8, decimal, refuse
from ckptfmt.containers.pickle.nodes import Call, Global, LegacyText, PickledDict
from ckptfmt.errors import LimitError, TruncatedError, UnsupportedVersionError
from ckptfmt.tree.aliases import canonical_class

if TYPE_CHECKING:
    from ckptfmt.containers.pickle.machine import Machine, Opcode

__all__ = ["STRUCTURE"]

_NEWEST = 5
_KEY_PARTS = 256
_SET = Global("builtins", "set")
_FROZENSET = Global("builtins", "frozenset")
_NEWOBJ_EX = Global("copyreg", "__newobj_ex__")


def _mark(m: Machine) -> None:
    if len(m.outer) >= m.limits.marks:
        raise LimitError(f"more than {m.limits.marks} containers are open at once")
    m.outer.append(m.stack)
    m.stack = []


def _empty_tuple(m: Machine) -> None:
    m.stack.append(())


def _tuple(m: Machine) -> None:
    m.made()
    items = tuple(m.to_mark())
    m.stack.append(items)


def _tuple1(m: Machine) -> None:
    m.made()
    m.stack[-1] = (m.stack[-1],)


def _tuple2(m: Machine) -> None:
    m.made()
    last = m.stack.pop()
    m.stack[-1] = (m.stack[-1], last)


def _tuple3(m: Machine) -> None:
    m.made()
    last = m.stack.pop()
    middle = m.stack.pop()
    m.stack[-1] = (m.stack[-1], middle, last)


def _empty_list(m: Machine) -> None:
    m.made()
    m.stack.append([])


def _list(m: Machine) -> None:
    m.made()
    items = m.to_mark()
    m.stack.append(items)


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _extend(m.stack[-1], [item])


def _appends(m: Machine) -> None:
    items = m.to_mark()
    _extend(m.stack[-1], items)


def _extend(target: object, items: list[object]) -> None:
    if type(target) is list:
        target.extend(items)
    elif type(target) is Call:
        if target.items is None:
            target.items = []
        target.items += items
    else:
        refuse(f"items are appended to a {type(target).__name__}")


def _empty_dict(m: Machine) -> None:
    m.made()
    m.stack.append(PickledDict())


def _dict(m: Machine) -> None:
    m.made()
    items = m.to_mark()
    made = PickledDict()
    _set_items(made, items)
    m.stack.append(made)


def _setitem(m: Machine) -> None:
    value = m.stack.pop()
    key = m.stack.pop()
    _set_items(m.stack[-1], [key, value])


def _setitems(m: Machine) -> None:
    items = m.to_mark()
    _set_items(m.stack[-1], items)


def _set_items(target: object, items: list[object]) -> None:
    if len(items) % 2:
        refuse("a key without a value")
    keys, values = items[::2], items[1::2]
    if type(target) is PickledDict:
        if any(type(key) is not str for key in keys):
            keys = [_key(key) for key in keys]
        target.update(zip(keys, values, strict=True))
    elif type(target) is Call:
        if target.pairs is None:
            target.pairs = []
        target.pairs += zip(keys, values, strict=True)
    else:
        refuse(f"items are set on a {type(target).__name__}")


def _key(key: object) -> object:
    """Return a key that is safe to hash: text of Python 2 decoded, tuples small."""
    if isinstance(key, LegacyText):
        return key.text()
    if isinstance(key, tuple):
        budget = [_KEY_PARTS]
        return _key_tuple(key, budget)
    if isinstance(key, list | dict):
        refuse(f"a {type(key).__name__} as a key")
    return key


def _key_tuple(key: tuple[object, ...], budget: list[int]) -> tuple[object, ...]:
    budget[0] -= 1 + len(key)
    if budget[0] < 0:
        raise LimitError(f"a tuple of more than {_KEY_PARTS} parts as a key")
    return tuple(_key_tuple(part, budget) if isinstance(part, tuple) else _key(part) for part in key)


def _empty_set(m: Machine) -> None:
    m.made()
    m.stack.append(Call(_SET, ()))


def _additems(m: Machine) -> None:
    items = m.to_mark()
    if type(m.stack[-1]) is not Call:
        refuse(f"items are added to a {type(m.stack[-1]).__name__}")
    _extend(m.stack[-1], items)


def _frozenset(m: Machine) -> None:
    m.made()
    items = m.to_mark()
    m.stack.append(Call(_FROZENSET, (items,)))


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.to_mark()


def _pop_mark(m: Machine) -> None:
    m.to_mark()


def _dup(m: Machine) -> None:
    m.stack.append(m.stack[-1])


def _get(m: Machine) -> None:
    m.stack.append(m.memo[decimal(m.line().strip())])


def _binget(m: Machine) -> None:
    m.stack.append(m.memo[m.data[m.at]])
    m.at += 1


def _long_binget(m: Machine) -> None:
    m.stack.append(m.memo[m.number(U4)])


def _put(m: Machine) -> None:
    m.remember(decimal(m.line().strip()))


def _binput(m: Machine) -> None:
    m.memo[m.data[m.at]] = m.stack[-1]
    m.at += 1


def _long_binput(m: Machine) -> None:
    m.remember(m.number(U4))


def _memoize(m: Machine) -> None:
    m.remember(len(m.memo))


def _global(m: Machine) -> None:
    m.stack.append(_global_lines(m))


def _global_lines(m: Machine) -> Global:
    module, name = m.line(), m.line()
    raw = module + b"\n" + name
    known = m.globals.get(raw)
    if known is None:
        known = m.globals[raw] = Global(*canonical_class(module.decode(), name.decode()))
    return known


def _stack_global(m: Machine) -> None:
    m.made()
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        refuse("a class whose name is not a string")
    m.stack.append(Global(*canonical_class(module, name)))


def _reduce(m: Machine) -> None:
    m.made()
    args = m.stack.pop()
    if not isinstance(args, tuple):
        refuse(f"a call with a {type(args).__name__} for arguments")
    m.stack[-1] = Call(m.stack[-1], args)


def _newobj_ex(m: Machine) -> None:
    m.made()
    keywords = m.stack.pop()
    args = m.stack.pop()
    m.stack[-1] = Call(_NEWOBJ_EX, (m.stack[-1], args, keywords))


def _inst(m: Machine) -> None:
    m.made()
    function = _global_lines(m)
    items = m.to_mark()
    m.stack.append(Call(function, tuple(items)))


def _obj(m: Machine) -> None:
    m.made()
    function, *args = m.to_mark()
    m.stack.append(Call(function, tuple(args)))


def _build(m: Machine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if type(target) is not Call:
        refuse(f"a state is set on a {type(target).__name__}")
    if target.state is not None:
        refuse("a second state is set on an object")
    target.state = state


def _persid(m: Machine) -> None:
    m.made()
    m.stack.append(m.refer(m.line().decode()))


def _binpersid(m: Machine) -> None:
    m.made()
    m.stack[-1] = m.refer(m.stack[-1])


def _proto(m: Machine) -> None:
    version = m.number(U1)
    if version > _NEWEST:
        raise UnsupportedVersionError(f"pickle protocol {version}; 0 to {_NEWEST} are read")


def _frame(m: Machine) -> None:
    length = m.number(U8)
    if length > m.left:
        raise TruncatedError(f"a frame of {length} bytes, {m.left} are left")


def _extension(_: Machine) -> None:
    raise UnsupportedVersionError("a class by its number in a registry that the file does not hold")


def _buffer(_: Machine) -> None:
    raise UnsupportedVersionError("a buffer that lies outside of the pickle")


STRUCTURE: dict[bytes, Opcode] = {
    b"(": _mark,
    b"0": _pop,
    b"1": _pop_mark,
    b"2": _dup,
    b"P": _persid,
    b"Q": _binpersid,
    b"R": _reduce,
    b"a": _append,
    b"b": _build,
    b"c": _global,
    b"d": _dict,
    b"}": _empty_dict,
    b"e": _appends,
    b"g": _get,
    b"h": _binget,
    b"i": _inst,
    b"j": _long_binget,
    b"l": _list,
    b"]": _empty_list,
    b"o": _obj,
    b"p": _put,
    b"q": _binput,
    b"r": _long_binput,
    b"s": _setitem,
    b"t": _tuple,
    b")": _empty_tuple,
    b"u": _setitems,
    b"\x80": _proto,
    b"\x81": _reduce,  # NEWOBJ: which of the two ways makes the object is no data
    b"\x82": _extension,
    b"\x83": _extension,
    b"\x84": _extension,
    b"\x85": _tuple1,
    b"\x86": _tuple2,
    b"\x87": _tuple3,
    b"\x8f": _empty_set,
    b"\x90": _additems,
    b"\x91": _frozenset,
    b"\x92": _newobj_ex,
    b"\x93": _stack_global,
    b"\x94": _memoize,
    b"\x95": _frame,
    b"\x97": _buffer,
    b"\x98": _buffer,
}
"""What each opcode does."""
