"""The options of a file and of the environment, each with its source, which errors name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from spark_2pc_sink.errors import ConfigurationError


@dataclass
class SourcedOptions:
    """Options read from files and variables so far.

    Attributes:
        options: by keyword, without Kafka's properties. Values may be secret.
        kafka: Kafka's properties by name.
        sources: the file or variable of each option and property.
        shown: options and properties that messages do not show by value: they show the original text in the file, with
            ``${NAME}``.
    """

    options: dict[str, Any] = field(default_factory=dict, repr=False)
    kafka: dict[str, Any] = field(default_factory=dict, repr=False)
    sources: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    @property
    def keywords(self) -> dict[str, Any]:
        """The options of `DualWriteSink`."""
        return {**self.options, "kafka": self.kafka} if self.kafka else dict(self.options)

    def add(self, options: Mapping[str, Any], *, source: str) -> None:
        """Add options of a source; ``kafka`` is a mapping of properties.

        Raises:
            ConfigurationError: another source has a different value.
        """
        plain = {name: value for name, value in options.items() if name != "kafka"}
        for said, more in ((self.options, plain), (self.kafka, options.get("kafka", {}))):
            add_once(said, more.items(), source=source)
            for name in more:
                self.sources.setdefault(name, source)

    @contextmanager
    def named_in_errors(self, *, but: Iterable[str] = ()) -> Iterator[None]:
        """Check options in the block: an error about one of these names its source, and shows no variable's text.

        Args:
            but: options that have other values in the block.
        """
        try:
            yield
        except ConfigurationError as error:
            if error.source or error.option in but or error.option not in self.sources:
                raise
            value = self.shown.get(error.option, error.value)
            raise replace(error, value=value, source=self.sources[error.option]) from None


def add_once(said: dict[str, Any], more: Iterable[tuple[str, Any]], *, source: str) -> None:
    """Add the values of one source to those of others.

    Args:
        said: names and values so far; extended in place.
        more: values of this source.
        source: the flag, file or variable, for the error.

    Raises:
        ConfigurationError: another source has a different value. No value is shown.
    """
    for name, value in more:
        if said.setdefault(name, value) != value:
            raise ConfigurationError(
                option=source,
                value=name,
                rule="a property has one value, and this one was given before with another",
                remedy="give it once",
            )
