"""What an audit returns, and how it is shown."""
