"""Ops whose derivative is given as a rule: in eager mode, under transforms, and under Dynamo."""
