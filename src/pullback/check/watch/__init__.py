"""Custom functions that a program calls are audited on the inputs that it gives them."""
