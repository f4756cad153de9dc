"""Value and gradient are right; a second or third derivative is wrong in some nesting of modes, or at some inputs."""

from ..model import Mutant


def _quartic(name: str, old: str, new: str, note: str, also: tuple[tuple[str, str], ...] = ()) -> Mutant:
    expects = ("PB401", "PB416")
    return Mutant(f"quartic/{name}", "quartic", old, new, mode=27, expects=expects, note=note, also=also)


def _product(name: str, new: str, note: str) -> Mutant:
    old = "        return torch.stack([g * b * c, g * a * c, g * a * b], -1)\n"
    return Mutant(f"row-product/{name}", "row_product", old, new, mode=27, expects=("PB401", "PB416"), note=note)


def _ratio(name: str, old: str, new: str, note: str) -> Mutant:
    return Mutant(
        f"expm1-ratio/{name}", "expm1_ratio", old, new, mode=27, expects=("PB101", "PB401", "PB416"), note=note
    )


def _wave(name: str, old: str, new: str, note: str) -> Mutant:
    expects = ("PB401", "PB407", "PB416")
    return Mutant(f"wave/{name}", "wave", old, new, mode=27, expects=expects, note=note)


MUTANTS = (
    _quartic("third-factor", "return 24 * x * gc", "return 12 * x * gc", "Only the third derivative is wrong."),
    _quartic("third-sign", "return 24 * x * gc", "return -24 * x * gc", "Only the third derivative is wrong."),
    _quartic("third-power", "return 24 * x * gc", "return 24 * x * x * gc", "Only the third derivative is wrong."),
    _quartic("third-modulus", "return 24 * x * gc", "return 24 * x.abs() * gc", "Wrong at negative x alone."),
    _quartic("third-zero", "return 24 * x * gc", "return 0 * gc", "The third derivative is missing."),
    _quartic(
        "curvature-detached", "return _Curvature.apply(x) * gs", "return _Curvature.apply(x).detach() * gs",
        "The third derivative through the curvature is lost.",
    ),
    _quartic(
        "curvature-of-data", "return _Curvature.apply(x) * gs", "return _Curvature.apply(x.data) * gs",
        "The third derivative through the curvature is lost.",
    ),
    _quartic(
        "curvature-under-no-grad", "        return _Curvature.apply(x) * gs\n",
        "        with torch.no_grad():\n            curvature = _Curvature.apply(x)\n        return curvature * gs\n",
        "The third derivative through the curvature is lost.",
    ),
    _quartic(
        "cotangent-detached", "return _Curvature.apply(x) * gs", "return _Curvature.apply(x) * gs.detach()",
        "The third derivative through the cotangent is lost.",
    ),
    _quartic(
        "one-at-zero", "return 24 * x * gc", "return torch.where(x == 0, 1.0, 24 * x) * gc",
        "The third derivative is wrong where x is 0.",
    ),
    _quartic(
        "curvature-one-at-zero", "return _Curvature.apply(x) * gs",
        "return torch.where(x == 0, 1.0, _Curvature.apply(x)) * gs",
        "The second derivative is wrong where x is 0.",
    ),
    _product(
        "by-division",
        "        out, others = a * b * c, torch.stack([b * c, a * c, a * b], -1)\n"
        "        safe = torch.where(x == 0, 1.0, x)\n"
        "        return g[..., None] * torch.where(x == 0, others.detach(), out[..., None] / safe)\n",
        "At a zero, its factor is taken for a constant: the second derivative is wrong there.",
    ),
    _product(
        "nothing-at-two-zeros",
        "        few = (x == 0).sum(-1, keepdim=True) < 2\n"
        "        return torch.where(few, torch.stack([g * b * c, g * a * c, g * a * b], -1), 0.0)\n",
        "At two zeros of a row all gradients are 0, and so are, by mistake, all second derivatives.",
    ),
    _product(
        "nothing-at-three-zeros",
        "        few = (x == 0).sum(-1, keepdim=True) < 3\n"
        "        return torch.where(few, torch.stack([g * b * c, g * a * c, g * a * b], -1), 0.0)\n",
        "At three zeros of a row only the third derivative is not 0: it is lost.",
    ),
    _product(
        "detached-at-ties",
        "        tied = torch.where(a == b, a.detach(), a)\n"
        "        return torch.stack([g * b * c, g * tied * c, g * tied * b], -1)\n",
        "Where the first two elements of a row are equal, the second derivative is wrong.",
    ),
    _product(
        "detached-in-constant-rows",
        "        constant = (x == x[..., :1]).all(-1)\n"
        "        c = torch.where(constant, c.detach(), c)\n"
        "        return torch.stack([g * b * c, g * a * c, g * a * b], -1)\n",
        "In constant rows the second derivative is wrong.",
    ),
    _ratio(
        "hole-filled-with-a-constant", "return g * torch.where(near, slope_series(torch.where(near, x, 0.0)), slope)",
        "return g * torch.where(x == 0, 0.5, "
        "torch.where(near, slope_series(torch.where(near & (x != 0), x, 0.0)), slope))",
        "At 0 the gradient is right, and its derivative is 0 in place of 1/3.",
    ),
    _ratio(
        "hole-filled-with-a-line", "return g * torch.where(near, slope_series(torch.where(near, x, 0.0)), slope)",
        "return g * torch.where(x == 0, 0.5 + x / 3, "
        "torch.where(near, slope_series(torch.where(near & (x != 0), x, 0.0)), slope))",
        "At 0 the third derivative is 0 in place of 1/4.",
    ),
    _ratio(
        "hole-filled-with-a-steep-line", "return g * torch.where(near, slope_series(torch.where(near, x, 0.0)), slope)",
        "return g * torch.where(x == 0, 0.5 + x / 2, "
        "torch.where(near, slope_series(torch.where(near & (x != 0), x, 0.0)), slope))",
        "At 0 the second derivative is 1/2 in place of 1/3.",
    ),
    _wave("slope-jvp-sign", "return -ts * x.sin()", "return ts * x.sin()", "Forward over reverse is wrong."),
    _wave("slope-jvp-zero", "return -ts * x.sin()", "return 0 * ts", "Forward over reverse is wrong."),
    _wave("slope-jvp-factor", "return -ts * x.sin()", "return -2 * ts * x.sin()", "Forward over reverse is wrong."),
    _wave(
        "slope-jvp-detached", "return -ts * x.sin()", "return -ts * x.sin().detach()",
        "Reverse over forward over reverse loses the derivative of the slope's jvp.",
    ),
    _wave(
        "slope-backward-detached", "return -gs * x.sin()", "return -gs * x.sin().detach()",
        "Third derivatives by reverse mode are wrong.",
    ),
    _wave(
        "slope-of-data-in-jvp", "return tx * _Slope.apply(x)", "return tx * _Slope.apply(x.detach())",
        "Reverse over forward is wrong.",
    ),
    _wave(
        "tangent-detached", "return -ts * x.sin()", "return -ts.detach() * x.sin()",
        "Reverse over forward through the slope's tangent is wrong.",
    ),
)  # fmt: skip
