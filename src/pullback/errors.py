"""The errors that Pullback raises. Each says what was expected, what was found and what to do."""


class PullbackError(Exception):
    """Base of every error raised on purpose by Pullback."""


class TargetError(PullbackError):
    """What was named for an audit cannot be found, read or understood."""


class OptionError(PullbackError):
    """An option has a value that it cannot take."""


class RunnerError(PullbackError):
    """An audit cannot be run in this process, whatever the target."""
