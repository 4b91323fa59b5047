"""Serialisation of keys and values as Avro or Protobuf, with a schema registry.

On the driver, `binding` derives a schema from the type of an expression or takes a given one, gets its id from the
registry, and creates a `Serialiser` from both. Tasks encode Arrow columns with it, and need neither the registry nor a
library of these formats.
"""
