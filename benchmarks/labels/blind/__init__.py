"""The fourth part of the labels: packages that nobody had looked at when the audit was worked on by the other three."""
