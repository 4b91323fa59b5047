"""One option: its type, default, unit, bounds and reason, as metadata of a dataclass field; and the checks of a value.

Signatures, `help`, the page of the manual, TOML files, environment variables, the command line and error texts are made
from these fields. A default without a reason cannot be declared.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from pathlib import PurePath
from typing import Any, Final, ParamSpec, TypeVar

from spark_2pc_sink.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

#: The largest 32-bit integer: the type of most of Kafka's and PostgreSQL's integer settings.
INT32_MAX: Final = 2**31 - 1
_KEY: Final = "spark_2pc_sink.setting"


class Theme(Enum):
    """What a reader wants to do. Signatures, help and the page have the options in this order."""

    #: For an option that only one command or class has.
    OWN = ""
    CONNECT = "Name the sink and connect it"
    TO_KAFKA = "Choose what goes to Kafka"
    ENCODE = "Encode with a schema registry"
    TO_POSTGRESQL = "Choose what goes to PostgreSQL"
    KEYED = "Update and delete rows"
    SEVERAL = "Write several topics and tables"
    BAD_ROWS = "Handle bad rows"
    OWN_CODE = "Run your own code with a batch"
    TELL = "Tell other tools"
    CONTINUE = "Continue after a restart that needs a decision"
    STATE = "Keep state and history"
    TUNE = "Tune batches"
    LIMITS = "Set time limits"
    BROKERS = "Connect"
    ENCRYPT = "Encrypt"
    LOG_IN = "Log in"
    SIZES = "Size and compress requests"
    WAITS = "Limit waiting and retries"


@dataclass(frozen=True)
class Setting:
    """Metadata of one option in addition to its type."""

    #: What it does and why the default is what it is, one or two sentences. ``{keys}`` is the user's name of ``keys``.
    why: str
    group: Theme = Theme.OWN
    #: 'ms', 's', 'bytes', or '' for a count or a text.
    unit: str = ""
    #: The smallest and the largest valid number.
    bounds: tuple[int, int] | None = None
    #: For Kafka options, the names under which users know it, the preferred one first.
    properties: tuple[str, ...] = ()
    #: Users know it by the field's name with dots, like the properties of a Kafka broker.
    dotted: bool = False
    #: The type that a user passes, if the field has another one.
    given: str = ""
    #: Makes the field's value from the user's, which is not None, and its name. None: it is the same.
    parse: Callable[[Any, str], Any] | None = None
    #: For an option of an output, its name as a keyword of a sink with one of each; '' for the same, None for none.
    sink: str | None = ""
    #: Whether it affects only how a sink works, so that two sinks that differ in it write the same.
    operational: bool = False
    #: Whether the state store takes it, by the same name.
    store: bool = False
    #: Never shown in a repr or a message.
    secret: bool = False
    #: First version of the package that has it.
    since: str = "1.0.0"


def setting(default: Any = MISSING, why: str = "", **about: Any) -> Any:
    """A dataclass field that carries a :class:`Setting`; without ``default`` it is required."""
    described = Setting(why, **about)
    return field(default=default, repr=not described.secret, metadata={_KEY: described})


def milliseconds(default: int | None, why: str, *, at_least: int = 1, at_most: int = INT32_MAX, **about: Any) -> Any:
    """A :func:`setting` that is a duration; PostgreSQL's and Kafka's own maximum is an int32 of milliseconds."""
    return setting(default, why, unit="ms", bounds=(at_least, at_most), **{"group": Theme.LIMITS, **about})


def setting_of(item: Field[Any]) -> Setting:
    described: Setting = item.metadata[_KEY]
    return described


def is_option(item: Field[Any]) -> bool:
    """Whether a field is an option, and not a value made from others."""
    return _KEY in item.metadata


def renamed(item: Field[Any], name: str, **changes: Any) -> Field[Any]:
    """The same option under another name; ``changes`` are of `Setting`, or ``type`` and ``default``."""
    default, kind = changes.pop("default", item.default), changes.pop("type", item.type)
    made: Field[Any] = field(default=default, metadata={_KEY: replace(setting_of(item), **changes)})
    made.name, made.type = name, kind
    return made


def options_of(options: type[Any]) -> list[Field[Any]]:
    """The options of a class as readers see them: required ones, its own, then by group."""
    declared: Any = getattr(options, "declared", None)
    found = [item for item in (fields(options) if declared is None else declared()) if is_option(item)]
    # Sorting is stable: each group keeps the order of declaration.
    return sorted(found, key=lambda item: -1 if item.default is MISSING else place_of(item))


def place_of(item: Field[Any]) -> int:
    return list(Theme).index(setting_of(item).group)


def kind_of(item: Field[Any]) -> str:
    """The type that a user passes, in Python notation."""
    return setting_of(item).given or str(item.type)


def shown_name(item: Field[Any]) -> str:
    """The user's name for this field; for an output's, that of a sink with one topic and one table."""
    about = setting_of(item)
    if about.properties:
        return about.properties[0]
    return item.name.replace("_", ".") if about.dotted else about.sink or item.name


def parsed(options: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a class's fields, made from a user's; what is None stays None."""
    made = dict(given)
    for item in fields(options):
        parse = setting_of(item).parse if is_option(item) else None
        if parse is not None and made.get(item.name) is not None:
            made[item.name] = parse(made[item.name], shown_name(item))
    return made


def options_text(options: Iterable[Field[Any]]) -> str:
    lines, group = [], Theme.OWN
    # Required ones come with those of their group.
    for item in sorted(options, key=place_of):
        about = setting_of(item)
        if about.group is not group:
            group = about.group
            lines.append(f"**{group.value}**")
        default = "required" if item.default is MISSING else f"default ``{item.default!r}``"
        text = f"- ``{item.name}``, {default}: {about.why}."
        lines.append(textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(lines)


def with_options(options: type[Any]) -> Callable[[type[R]], type[R]]:
    """Add all options, by group, to the docstring of the decorated class; `help` shows them."""

    def documented(kind: type[R]) -> type[R]:
        if kind.__doc__ is not None:  # python -OO removes docstrings
            kind.__doc__ = f"{inspect.cleandoc(kind.__doc__)}\n\n{options_text(options_of(options))}\n"
        return kind

    return documented


#: Replaces values in messages that may be secret.
HIDDEN: Final = "***"
#: Substrings of names whose value is a secret, or may be: even if misspelt.
_SECRET_NAME: Final = re.compile(
    r"pas+w|pa?s+phr|se?cr?e?t|tok(en|n)|jaas|cred|auth|login|private|database|command|(api|access|ssl)[._]?key|user.?info|"
    r"key.?(store|pass)|truststore|oauth|\bpem\b",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(r"@|pas+.?w|secret|token|jaas|-----BEGIN|\S{33,}", re.IGNORECASE)
_SHOWN_MAX: Final = 200
_NO_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
_LITERAL: Final = re.compile(r"Literal(\[.*?\])")


def shown(name: str, value: object) -> object:
    """A value for a message: unchanged, unless its name, perhaps misspelt, or the value itself looks like a secret."""
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: shown(str(key), part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(name, part) for part in value]
    if isinstance(value, (int, float)):
        return value
    harmless = isinstance(value, str) and len(value) <= _SHOWN_MAX and not _SECRET_VALUE.search(value)
    return value if harmless else HIDDEN


def refused(option: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    """The error for an option whose value breaks a rule, or contradicts another option."""
    return ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)


def refusal(item: Field[Any], value: object, rule: str, remedy: str) -> ConfigurationError:
    """The same, about one field; the value of a secret one is not shown."""
    return refused(shown_name(item), HIDDEN if setting_of(item).secret else value, rule, remedy)


def one_of(choices: Sequence[str]) -> str:
    """``'a', 'b' or 'c'``."""
    *others, last = map(repr, choices)
    return f"{', '.join(others)} or {last}" if others else last


def nearest(
    name: str, valid: Iterable[str], *, known_elsewhere: Mapping[str, str] | None = None, otherwise: str = ""
) -> str:
    """A remedy that names the valid word nearest to what the user wrote.

    ``known_elsewhere`` has other libraries' words, lower case without punctuation. If none is near, the remedy is
    ``otherwise``, or the list of all valid words.
    """
    words = {_folded(word): word for word in valid}
    folded = _folded(name)
    if folded not in words and known_elsewhere and folded in known_elsewhere:
        return f"the name here is {known_elsewhere[folded]!r}"
    close = difflib.get_close_matches(folded, words, n=1, cutoff=0.6)
    if close or otherwise:
        return f"did you mean {words[close[0]]!r}?" if close else otherwise
    return f"valid are {', '.join(words.values())}"


def _folded(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def check_texts(option: str, value: object) -> None:
    """Refuse texts that no database, broker or file name can contain: paths, and at any depth of mappings and lists."""
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        if found := _NO_TEXT.search(value):
            rule = f"character {found.start() + 1} is U+{ord(found[0]):04X}, which PostgreSQL and Kafka do not accept"
            raise refused(option, shown(option, value), rule, "remove it, or write it as an escape sequence")
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            check_texts(option, name)
            check_texts(f"{option}[{name!r}]", entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            check_texts(option, entry)


def check_settings(options: Any) -> None:
    """Check every field of a dataclass instance against its own bounds, choices and annotated kind."""
    for item in filter(is_option, fields(options)):
        _check_one(item, getattr(options, item.name))


def choices_of(item: Field[Any]) -> list[str]:
    """The values that the ``Literal`` in a field's annotation allows; empty if it has none."""
    listed = _LITERAL.search(str(item.type))
    return [] if listed is None else ast.literal_eval(listed[1])


def _check_one(item: Field[Any], value: object) -> None:
    kind = str(item.type)
    if value is None and "None" in kind:
        return
    if kind.startswith("int"):
        _check_number(item, value)
    elif kind.startswith("bool") and not isinstance(value, bool):
        raise refusal(item, value, "it must be True or False", "pass one of the two")
    elif choices := choices_of(item):
        if value not in choices:
            remedy = nearest(str(value), choices, otherwise="pass one of them")
            raise refusal(item, value, f"it must be {one_of(choices)}", remedy)
    elif kind.startswith("str") and (not isinstance(value, str) or not value.strip()):
        remedy = "pass a text" if item.default is MISSING else "pass a text, or leave the option out"
        raise refusal(item, value, "it must be a non-empty text", remedy)


def _check_number(item: Field[Any], value: object) -> None:
    about = setting_of(item)
    unit = f" {about.unit}" if about.unit else ""
    # bool is a subclass of int, and 'request.timeout.ms': True is a mistake, not one millisecond.
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal(item, value, "it must be a whole number", f"pass a number{unit}")
    least, most = about.bounds or (value, value)
    if value < least:
        raise refusal(item, value, f"it must be at least {least}{unit}", "raise it")
    if value > most:
        raise refusal(item, value, f"it must be at most {most}{unit}", "lower it")


#: Names used by Spark's JDBC source, PGStyx, Flink, Delta and others, letters and digits only.
KNOWN_ELSEWHERE: Final = {
    name: ours
    for ours, names in {
        "database": "url databaseurl dsn",
        "table": "dbtable tablename",
        "mode": "writemode outputmode",
        "upsert_keys": "mergekeys upsertkeycolumns primarykey",
        "upsert_order_by": "orderby",
        "transactional_id": "transactionalidprefix txnappid",
        "kafka": "bootstrapservers kafkabootstrapservers kafkaoptions",
        "headers": "includeheaders",
        "batch_attempts_max": "maxretries",
        "statement_timeout_ms": "querytimeout",
        "state_table": "commitlogtable",
        "history_batches": "commitlogretentionepochs",
        "create_table": "createtablecolumntypes",
        "partition": "partitionby",
        # An option of the sink, which decides in advance; for `recover` a person decides.
        "decision": "acceptreplay",
    }.items()
    for name in names.split()
}


def check_keywords(given: Mapping[str, object], known: Mapping[str, bool]) -> None:
    """Refuse calls that would be a Python ``TypeError``; ``known`` tells if a keyword is required (None is missing)."""
    for name in given:
        if name not in known:
            remedy = nearest(name, known, known_elsewhere=KNOWN_ELSEWHERE)
            raise refused(name, shown(name, given[name]), "there is no such option", remedy)
    for name, required in known.items():
        if required and given.get(name) is None:
            raise refused(name, None, "it is required", f"pass {name}=")
    for name, value in given.items():
        check_texts(name, value)


def checks_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function's calls fail like `check_keywords`; IDEs, type checkers and ``inspect`` see its own signature."""
    parameters = signature(function).parameters
    known = {name: item.default is Parameter.empty for name, item in parameters.items() if name != "self"}

    @wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        named = {name: value for name, value in zip(parameters, args, strict=False) if name in known}
        check_keywords({**named, **given}, known)
        return function(*args, **given)

    return checked


_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
#: Parts of the types of options with more than a single value.
_STRUCTURED: Final = ("Mapping[", "Sequence[", "list[", "tuple[")


def as_text(name: str, raw: object, *, secret: bool = False) -> str:
    """A text; numbers are not texts, so that a password of digits keeps its leading zeros."""
    if isinstance(raw, str):
        return raw
    raise refused(name, HIDDEN if secret else raw, "it must be a text", "put it in quotation marks")


def as_number(name: str, raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _NUMBER.fullmatch(raw.strip()):
        # int() itself strips fewer kinds of blanks than strip() does.
        return int(raw.strip())
    raise refused(name, raw, "it must be a whole number", "pass a number or its text")


def as_boolean(name: str, raw: object, *, true: tuple[str, ...], false: tuple[str, ...]) -> bool:
    """One of the texts in ``true`` or in ``false``, in any case."""
    text = raw.strip().lower() if isinstance(raw, str) else None
    if text in true or text in false:
        return text in true
    raise refused(name, raw, f"it must be {one_of((*true, *false))}", "pass one of them")


def value_of_text(item: Field[Any], text: str) -> Any:
    """The value of an option from a text: of an environment variable, a command line, or of ``${NAME}`` in a file.

    It is a number, ``true`` or ``false``, comma-separated names, one statement, or JSON for a mapping, tables or
    several statements. Any other is kept.
    """
    kind = kind_of(item)
    if kind.startswith("int"):
        return as_number(item.name, text)
    if kind.startswith("bool"):
        return as_boolean(item.name, text, true=("true",), false=("false",))
    if not any(word in kind for word in _STRUCTURED):
        return text
    mapping = kind.startswith("Mapping")
    if "str]" in kind and not mapping and not text.lstrip().startswith("["):
        # Names are separated by commas; a statement has some of its own.
        return [name.strip() for name in text.split(",")] if kind.startswith("list") else [text]
    try:
        value = json.loads(text)
    except ValueError as error:
        raise refusal(item, shown(item.name, text), f"it must be JSON: {error}", "write JSON") from None
    if isinstance(value, dict if mapping else list):
        return value
    rule, remedy = ("an object", '{"order_id": "id"}') if mapping else ("a list", '["order_id"]')
    raise refusal(item, shown(item.name, text), f"it must be JSON, {rule}", f"write for example {remedy}")
