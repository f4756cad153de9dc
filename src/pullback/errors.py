"""The errors that Pullback raises. Each says what was expected, what was found and what to do."""


class PullbackError(Exception):
    """Base of every error raised on purpose by Pullback."""


class TargetError(PullbackError):
    """What was named for an audit cannot be found, read or understood."""


class OptionError(PullbackError):
    """An option has a value that it cannot take."""


class RunnerError(PullbackError):
    """What was asked for cannot run in this process or on this machine, whatever the target."""


class FormulaError(PullbackError):
    """A formula does what has no derivative, or its relaxation is not one."""


class DerivativeError(PullbackError):
    """A derivative that was given cannot hold here: it would be lost, or it is not what it has to be."""
