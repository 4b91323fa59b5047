"""Serialisation of keys and values as Avro or Protobuf, with a schema registry.

On the driver, `binding` derives a schema from the type of an expression or takes a given one, has the registry name its
id, and makes a `Serialiser` of both. Tasks encode Arrow columns with it: they need neither the registry nor a library
of these formats.
"""
