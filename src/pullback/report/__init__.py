"""Results of an audit, and their presentation."""
