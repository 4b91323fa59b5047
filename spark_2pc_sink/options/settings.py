"""One option: its type, default, unit, bounds and the reason for them, as metadata of the dataclass field.

A default without a reason can't be declared. The documentation's tables are generated from the same fields that the
code reads, and a test compares the public signatures with them.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import text_checks

#: Replaces values in messages that may be secret.
HIDDEN = text_checks.HIDDEN
#: The largest 32-bit integer: the type of most of Kafka's and PostgreSQL's integer settings.
INT32_MAX = 2**31 - 1
_KEY = "spark_2pc_sink.setting"


@dataclass(frozen=True)
class Setting:
    """Metadata of one option in addition to its type.

    Args:
        why: what it does and why the default is what it is, one or two sentences.
        unit: unit of a number: 'ms', 's', 'bytes', or '' for a count or a text.
        at_least: smallest value of a number, inclusive.
        at_most: largest value of a number, inclusive.
        properties: for Kafka options, the names under which users know it, the preferred one first.
        dotted: users know it by the field's name with dots, like the properties of a Kafka broker.
        given: the type that a user passes, if the field has another one.
        secret: never shown in a repr or a message.
        since: first version of the package that has it.
    """

    why: str
    unit: str = ""
    at_least: int | None = None
    at_most: int | None = None
    properties: tuple[str, ...] = ()
    dotted: bool = False
    given: str = ""
    secret: bool = False
    since: str = "1.0.0"


def setting(default: Any = MISSING, **about: Any) -> Any:
    """A dataclass field that carries a :class:`Setting`; without ``default`` it is required."""
    described = Setting(**about)
    return field(default=default, repr=not described.secret, metadata={_KEY: described})


def milliseconds(default: int | None, *, at_most: int = INT32_MAX, at_least: int = 1, **about: Any) -> Any:
    """A :func:`setting` that is a duration; PostgreSQL's and Kafka's own maximum is an int32 of milliseconds."""
    return setting(default, unit="ms", at_least=at_least, at_most=at_most, **about)


def same_setting(options: type[Any], name: str) -> Any:
    """A field like one of another class: an option that two classes share is declared once, there."""
    [item] = (each for each in fields(options) if each.name == name)
    return field(default=item.default, repr=item.repr, metadata=item.metadata)


def setting_of(item: Field[Any]) -> Setting:
    """The :class:`Setting` of a dataclass field made by :func:`setting`."""
    described: Setting = item.metadata[_KEY]
    return described


def options_of(options: type[Any]) -> list[Field[Any]]:
    """The fields of a class in documentation order: required ones, its own, then those of its base."""
    own = options.__annotations__
    # Sorting is stable: each of the three groups keeps the order of declaration.
    return sorted(fields(options), key=lambda item: item.default is not MISSING and 1 + (item.name not in own))


def shown_name(item: Field[Any]) -> str:
    """The user's name for this field."""
    described = setting_of(item)
    if described.dotted:
        return item.name.replace("_", ".")
    return described.properties[0] if described.properties else item.name


def check_settings(options: Any) -> None:
    """Check every field of a dataclass instance against its own bounds, choices and annotated kind.

    Raises:
        ConfigurationError: the first field, in order of declaration, that breaks a rule.
    """
    kind: Any = type(options)
    choices = _choices(kind)
    for item in fields(options):
        _check_one(item, getattr(options, item.name), choices.get(item.name))


@cache
def _choices(options: type[Any]) -> dict[str, tuple[str, ...]]:
    """The values that a ``Literal`` in a field's annotation allows, by the field's name."""
    names = {item.name for item in fields(options)}
    hints: dict[str, Any] = {}
    for base in reversed(options.__mro__):
        # Only those of fields: Python 3.10 cannot resolve the ``_: KW_ONLY`` of a dataclass.
        own = {name: hint for name, hint in vars(base).get("__annotations__", {}).items() if name in names}
        holder: Any = SimpleNamespace(__annotations__=own)
        hints |= get_type_hints(holder, vars(sys.modules[base.__module__]))
    parts = {name: (hint, *get_args(hint)) for name, hint in hints.items()}
    return {name: get_args(part) for name, found in parts.items() for part in found if get_origin(part) is Literal}


def _check_one(item: Field[Any], value: object, choices: tuple[str, ...] | None) -> None:
    described, kind = setting_of(item), str(item.type)
    if value is None and "None" in kind:
        return
    if kind.startswith("int"):
        _check_number(item, described, value)
    elif kind.startswith("bool") and not isinstance(value, bool):
        raise refusal(item, value, "it is True or False", "pass one of the two")
    elif choices is not None or kind.startswith("str"):
        if not isinstance(value, str) or not value.strip():
            raise refusal(item, value, "it is a text that is not empty", "pass a text, or leave the option out")
        if choices is not None and value not in choices:
            raise refusal(item, value, f"it is one of {', '.join(choices)}", nearest(value, choices))


def _check_number(item: Field[Any], described: Setting, value: object) -> None:
    # bool is a subclass of int, and 'request.timeout.ms': True is a mistake, not one millisecond.
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal(item, value, "it is a whole number", f"pass a number{_in_unit(described)}")
    if described.at_least is not None and value < described.at_least:
        raise refusal(item, value, f"it is at least {described.at_least}{_in_unit(described)}", "raise it")
    if described.at_most is not None and value > described.at_most:
        raise refusal(item, value, f"it is at most {described.at_most}{_in_unit(described)}", "lower it")


def _in_unit(described: Setting) -> str:
    return f" {described.unit}" if described.unit else ""


def refusal(item: Field[Any], value: object, rule: str, remedy: str) -> ConfigurationError:
    """A :class:`ConfigurationError` about one field, which never shows the value of a secret one."""
    shown = HIDDEN if setting_of(item).secret else value
    return ConfigurationError(option=shown_name(item), value=shown, rule=rule, remedy=remedy)


def nearest(name: str, valid: Iterable[str], *, known_elsewhere: Mapping[str, str] | None = None) -> str:
    """A remedy sentence that names the valid word nearest to ``name``.

    Args:
        name: what the user wrote.
        valid: the words that exist.
        known_elsewhere: other libraries' words, lower case without punctuation, mapped to ours.
    """
    words = {_folded(word): word for word in valid}
    folded = _folded(name)
    if folded not in words and known_elsewhere and folded in known_elsewhere:
        return f"the name here is {known_elsewhere[folded]!r}"
    close = difflib.get_close_matches(folded, words, n=1, cutoff=0.6)
    return f"did you mean {words[close[0]]!r}?" if close else f"the valid ones are {', '.join(words.values())}"


def _folded(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
