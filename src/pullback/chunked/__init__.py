"""Losses computed with their gradient by chunks of rows, so that large intermediates exist for one chunk at a time."""
