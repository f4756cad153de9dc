"""`pullback check --fix`: replaces faulty parts of a Function by code derived from its forward, in the author's file.

A Function with a finding is traced at the audit's own example (`derive`), and the new backward is inserted into its
source (`edit`); an old-style Function is split into `forward` and `setup_context` (`restyle`). The new source is
audited, and a new style compared bit for bit (`prove`), before anything is written (`files`).
"""
