"""The ways in which custom functions were seen to fail, in published packages and in reports, and what finds each.

`python docs/generate_coverage.py` makes a page of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """One way to fail.

    Attributes:
        what: goes wrong.
        rules: that find it, the one that names it first; none if nothing here can.
        remark: what the rules see of it, or why none can.
    """

    what: str
    rules: str = ""
    remark: str = ""


MODES = (
    Mode("the formula of the backward is wrong", "PB101 PB102"),
    Mode("the backward ignores its cotangent", "PB111 PB109 PB101"),
    Mode("one of several cotangents is ignored", "PB111 PB101"),
    Mode("a cotangent that varies is taken for a uniform one", "PB101"),
    Mode("a gradient is returned in another input's place", "PB106 PB108"),
    Mode("too few gradients are returned", "PB103"),
    Mode("an input that is trained gets None", "PB107"),
    Mode("a gradient keeps the broadcast shape", "PB115 PB104"),
    Mode("a gradient has a shape that does not fit", "PB104"),
    Mode("`squeeze` takes away a batch of one, too", "PB504 PB104 PB101"),
    Mode("a scatter at repeated indices does not accumulate", "PB101"),
    Mode("constants of forward and backward differ", "PB101 PB305"),
    Mode("the backward takes a zero for a masked element", "PB101"),
    Mode("a cotangent of other strides is misread", "PB502"),
    Mode("`view` of a cotangent", "PB502"),
    Mode("inputs of other strides are misread", "PB501"),
    Mode("the backward changes its cotangent", "PB203"),
    Mode("the backward changes what was saved", "PB203"),
    Mode("the backward changes a buffer of ctx", "PB206"),
    Mode("gradients add up in a saved leaf", "PB206"),
    Mode("the forward changes an input and does not say so", "PB202"),
    Mode("`mark_dirty` is misused", "PB119", "PyTorch raises, which is found; what it accepts was not seen to do harm"),
    Mode("an input, or a view of one, is returned", "PB207"),
    Mode("an output without a derivative is not marked", "PB208"),
    Mode("None cotangents are not handled", "PB112 PB114"),
    Mode("saved intermediates make second derivatives wrong", "PB404 PB401"),
    Mode("the backward leaves the graph", "PB401 PB604 PB416"),
    Mode("an output marked non-differentiable is used by the backward", "PB107 PB401"),
    Mode("`once_differentiable` is missing", "PB401 PB404", "reported if a second derivative is wrong without it"),
    Mode("`once_differentiable` is bypassed", "PB402"),
    Mode("NaN in the second derivative", "PB401"),
    Mode("double backward fails obscurely", "PB403"),
    Mode("a tensor on ctx closes a cycle", "PB204 PB201"),
    Mode("a tensor on ctx outlives the backward", "PB204 PB201"),
    Mode("a change of a tensor on ctx goes unnoticed", "PB209 PB201"),
    Mode("hooks for saved tensors do not see it", "PB412 PB411 PB201"),
    Mode("`ctx.saved_tensors` is read twice", "PB411"),
    Mode("TorchScript inside, under a checkpoint", "PB411", "seen as a checkpoint that raises"),
    Mode("the backward uses up what it needs for another one", "PB206"),
    Mode("the backward differentiates its own output for ever", "PB003 PB002"),
    Mode("a nested backward keeps its graph", "PB815 PB204"),
    Mode("the backward writes `.grad`", "PB210"),
    Mode("the forward frees the memory of its inputs", "PB002 PB202"),
    Mode("a captured parameter gets no gradient", "PB118"),
    Mode("gradients are computed that are not needed", "PB704"),
    Mode("`needs_input_grad` is read at the wrong place", "PB107 PB113"),
    Mode("freezing some inputs makes the backward raise", "PB113"),
    Mode("the forward depends on what requires a gradient", "PB117"),
    Mode("a dtype is fixed in the code", "PB105 PB303 PB101"),
    Mode("autocast is not handled", "PB413"),
    Mode("overflow, underflow, 0·∞", "PB301 PB302 PB303 PB304"),
    Mode("empty inputs", "PB503 PB119 PB002"),
    Mode("complex gradients", "PB116 PB101"),
    Mode("the backward is random", "PB601 PB602"),
    Mode("randomness is drawn again in a recomputation", "PB602"),
    Mode("device, stream, default device", "PB813", "from the source; streams need a GPU and are not audited"),
    Mode("global or class state", "PB507 PB603 PB120"),
    Mode("no support for torch.func", "PB405", "an info: it is clearly refused"),
    Mode("`generate_vmap_rule` promises too much", "PB406 PB408"),
    Mode("forward mode is missing or wrong", "PB102 PB407 PB110"),
    Mode("nested forward mode is wrong", "PB417", "in PyTorch itself: an info"),
    Mode("compiling a transform drops the backward", "PB415"),
    Mode(
        "compiling a call with the same tensor twice", remark="in PyTorch's compiler; eager calls are tried so: PB101"
    ),
    Mode("compiling loses in-place changes and methods of ctx", "PB409"),
    Mode("graph breaks", "PB409"),
    Mode("`forward` is a classmethod", "PB801 PB409"),
    Mode("exporting drops the backward", "PB410"),
    Mode("distributed training", remark="takes several processes"),
    Mode("leaks of PyTorch itself", remark="in PyTorch itself"),
    Mode("removed and old interfaces", "PB802 PB803 PB801"),
    Mode(
        "a surrogate differs from what it is documented to be",
        remark="documents are not read; a relaxation that is given, `derivative_of`, is held against the rule: PB101",
    ),
    Mode("a correct function is reported, for the noise of float32", "PB101", "by error bars that measure the noise"),
    Mode("a Triton kernel leaves the bounds of its tensors", "PB901"),
    Mode("programs of a Triton kernel overwrite each other's results", "PB902"),
    Mode("a Triton kernel reads a buffer that nobody filled", "PB903 PB101"),
    Mode("lanes that a Triton kernel masks off reach the result", "PB904"),
    Mode("a Triton kernel is right in some of its configurations", "PB905"),
    Mode("offsets of 32 bits in a Triton kernel overflow in huge tensors", "PB906"),
    Mode("a Triton kernel accumulates in too few bits", "PB907"),
    Mode("a Triton kernel is right interpreted and wrong compiled", "PB909"),
    Mode("forward and backward are wrong alike", "PB121", "with a reference alone"),
    Mode("a Triton kernel runs interpreted and does not compile", "PB910"),
)
