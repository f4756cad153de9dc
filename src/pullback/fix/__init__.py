"""`pullback check --fix`: what is wrong in a Function replaced by what follows from its forward, in the author's file.

A Function that the audit finds at fault is traced again at the audit's own example (`derive`), the new backward is put
into its source (`edit`), and the new source is audited (`proof`) before anything is written (`files`).
"""
