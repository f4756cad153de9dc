"""Examples of a call: found, varied, shrunk and written down."""
