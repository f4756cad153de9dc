"""What a backward keeps and computes: bytes and operations."""
