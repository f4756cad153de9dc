"""Processes: every subject is audited in a separate one, with limits, several at a time."""
