"""The subscriber: a pure core (`node`) under a thin shell that owns the sockets."""
