"""`pullback check --fix`: what is wrong in a Function replaced by what follows from its forward, in the author's file.

A Function that the audit finds at fault is traced again at the audit's own example (`derive`), the new backward is put
into its source (`edit`); one of the old style is split into `forward` and `setup_context` (`restyle`). The new source
is audited, and a new style compared bit for bit (`prove`), before anything is written (`files`).
"""
