"""Side effects of a call, and operations that leave the graph."""
