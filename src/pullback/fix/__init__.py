"""`pullback check --fix`: replaces faulty parts of a Function by code derived from its forward, in the author's file.

Reading path, from a finding to a proven patch:

1. `run`: audits the targets, collects patches and writes the files.
2. `choose`: decides which findings call for a new backward or the new style, and whether a fix resolved them.
3. `backward`: derives the new backward from the forward, traced at the audit's example.
4. `edit`: inserts it into the class, with its residuals; `setup_context` does the same for the new style.
5. `prove`: audits the new source in an overlay, compares results bit for bit, and drops patches that fail.

`patch` holds the data that these pass on, `search` and `worker` run the author's code in another process.
"""
