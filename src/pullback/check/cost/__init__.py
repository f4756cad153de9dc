"""Cost of a backward: bytes of its residuals, and its operations."""
