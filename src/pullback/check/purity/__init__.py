"""What a call leaves behind, and where it leaves the graph."""
