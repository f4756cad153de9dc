"""Processes: every subject is audited in one of its own, with limits, several at a time."""
