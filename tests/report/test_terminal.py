import io
from dataclasses import replace

import pytest
from rich.console import Console

from pullback.report.model import Evidence, Finding, Location, SubjectResult
from pullback.report.report import Report
from pullback.report.terminal import render, render_failure, render_text
from pullback.report.text import clean, clean_line

from .findings import of_rule

WRONG = Finding(
    subject="MaskedSum",
    rule="PB101",
    name="wrong-vjp",
    severity="error",
    verdict="wrong",
    message="The gradient of x is not the derivative of the forward: it differs at one element in three.",
    location=Location("examples/tutorial_functions.py", 31),
    evidence=Evidence(1.0005, 1.0, 2.5e-10, (0, 2), "gradient of x", "float64", 5, 8),
    reproduce="import torch\nx = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)  # " + "y" * 60,
    hint="Multiply the cotangent by the mask.",
)
INFO = replace(
    WRONG,
    rule="PB413",
    name="no-vmap",
    severity="info",
    verdict="unsupported",
    message="No\nvmap.",
    context="autocast",
)
CRASH = replace(
    WRONG,
    rule="PB002",
    name="crashes-the-process",
    message="Killed.",
    evidence=Evidence(got="line one\nline two", where="end of what it printed"),
)


def report(*findings, status="wrong", subjects=1, allowed=0):
    result = SubjectResult("MaskedSum", Location("examples/tutorial_functions.py", 31), status, 214, 2.14)
    return Report((result,) * subjects, findings, allowed)


def rendered(what, in_full=False, **console):
    out = io.StringIO()
    render(what, Console(file=out, **console), in_full)
    return out.getvalue()


def test_finding_is_printed_in_full():
    text = render_text(report(WRONG), in_full=True)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "MaskedSum  wrong  examples/tutorial_functions.py:31  214 cases, 2.1 s"
    assert "  error PB101 wrong-vjp  examples/tutorial_functions.py:31" in lines
    numbers = "expected 1.0005 ± 2.5e-10 got 1 at [0, 2] of gradient of x, float64 (5 of 8 fail)"
    assert numbers in " ".join(text.split())
    assert "    help: Multiply the cotangent by the mask." in lines
    assert "        import torch" in lines
    assert lines[-1] == "1 function: 1 error"


def test_code_is_not_wrapped_and_prose_is():
    text = rendered(report(WRONG), in_full=True, width=40, no_color=True)
    assert f"# {'y' * 60}\n" in text
    prose = text[text.index("The gradient of x") : text.index("expected")]
    assert all(len(line) <= 40 for line in prose.splitlines())


def test_several_functions_have_a_table():
    assert render_text(report(WRONG, subjects=2)).splitlines()[:3] == [
        "status  function                        line  err  warn  info  cases  sec",
        "        examples/tutorial_functions.py",
        "wrong     MaskedSum                       31    1                214  2.1",
    ]


def test_narrow_table_keeps_the_main_columns():
    lines = rendered(report(WRONG, subjects=2), width=40, no_color=True).splitlines()
    assert lines[0].split() == ["status", "function", "err", "warn"]
    assert any(line.split() == ["wrong", "MaskedSum", "1"] for line in lines)
    assert all(len(line) <= 40 for line in lines[: lines.index("MaskedSum")])


def test_secondary_finding_is_one_line():
    second = replace(WRONG, rule="PB401", name="wrong-double-backward", message="So is the second derivative.")
    zero = replace(
        WRONG, rule="PB302", name="spurious-zero", severity="warning", verdict="unstable", message="0. " * 60
    )
    lost = replace(zero, rule="PB303", name="lost-accuracy", severity="info", message="Digits are lost. " * 20)
    text = render_text(report(WRONG, second, zero, lost))
    assert "\n    also error PB401: So is the second derivative.\n" in text
    assert text.index("expected 1.0005") < text.index("also error PB401")
    assert "\ninfo PB303 lost-accuracy\n" in text
    assert "Digits" not in text
    assert "Digits are lost." in render_text(report(WRONG, second, zero, lost), in_full=True)


def test_unsupported_finding_alone_is_printed_in_full():
    text = render_text(report(INFO, status="unsupported"))
    assert "  info PB413 no-vmap" in text  # a single finding is printed in full
    intended = render_text(report(replace(INFO, verdict="intended", message="On purpose. " * 20)))
    assert max(map(len, intended.splitlines())) <= 80
    assert " ".join(intended.split()).count("On purpose.") == 20


def test_multiline_values_are_indented_below_their_label():
    text = render_text(report(CRASH))
    assert "    end of what it printed:\n        line one\n        line two\n" in text


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"worst_index": None, "failing": None}, "gradient of x, float64"),
        ({"where": None, "worst_index": None}, "float64 (5 of 8 fail)"),
        ({"where": None, "dtype": None}, "at [0, 2] of the tensor (5 of 8 fail)"),
        ({"where": None, "dtype": None, "worst_index": None, "failing": None}, "± 2.5e-10  got 1\n"),
    ],
)
def test_evidence_with_missing_fields_is_printed(changed, place):
    finding = replace(WRONG, evidence=replace(WRONG.evidence, **changed))
    assert place in render_text(report(finding))


def test_last_line_is_the_summary():
    unaudited = replace(WRONG, severity="warning", verdict="unaudited")
    last = render_text(report(WRONG, WRONG, unaudited, INFO, status="unaudited", subjects=2, allowed=3))
    assert last.splitlines()[-1].startswith("2 functions: 2 errors, 1 warning, 1 info; not audited: 2; allowed: 3 (")
    assert render_text(report(status="ok")).splitlines()[-1] == "1 function: nothing found"
    assert render_text(Report((), ())) == "0 functions: nothing was audited\n"


def test_markup_and_control_characters_are_escaped():
    evil = "[red]\x1b[2J[link=x]\r\x07\u202egnp.exe[/red]"
    finding = replace(
        WRONG,
        subject=evil,
        message=evil,
        location=Location(evil, 1),
        hint=evil,
        reproduce=evil,
        evidence=Evidence(evil, evil, where=evil),
    )
    subject = SubjectResult(evil, Location(evil, 1), "wrong", 1, 0.0)
    for options in ({"no_color": True}, {"force_terminal": True, "color_system": "truecolor"}):
        text = rendered(Report((subject,), (finding, replace(finding, severity="info"))), width=200, **options)
        assert not {"\r", "\x07", "\u202e"} & set(text)
        assert "\x1b[2J" not in text
        assert "[link=x]" in text.replace("\x1b[0m", "")
        assert "\\u202egnp.exe" in text


def test_colour_only_on_a_terminal():
    assert "\x1b[" in rendered(report(WRONG), force_terminal=True, color_system="standard")
    assert "\x1b[" not in rendered(report(WRONG))


def test_notebook_output_is_plain_text(monkeypatch):
    expected = render_text(report(WRONG))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # rich would show each line as an output of its own
    assert render_text(report(WRONG)) == expected


def test_failure_message_leaves_out_infos():
    text = render_failure(report(WRONG, CRASH, INFO))
    assert text.startswith("MaskedSum: PB101 wrong-vjp and 1 more\n\nMaskedSum\n  error PB101")
    assert "PB413" not in text


def test_clean_escapes_control_characters():
    assert clean("a\tb\nc\x00\ud800é∂") == "a   b\nc\\x00\\ud800é∂"
    assert clean_line(" a\n\tb\x85c ") == "a b c"


DROPPED = of_rule(replace(WRONG, severity="warning", message="Dropped."), "PB410")


def test_contexts_in_which_pytorch_drops_the_backward_are_summarised_once():
    also = of_rule(DROPPED, "PB415")
    others = [replace(DROPPED, subject=f"Round{i}") for i in range(5)]
    text = " ".join(render_text(report(WRONG, DROPPED, also, *others)).split())
    assert text.count("PB410") == 1
    assert "drops the backward of MaskedSum, Round0, Round1, Round2 and 2 more" in text
    assert "Dropped." not in text
    assert "1 error, 7 warnings" in text


def test_dropped_backward_alone_is_printed_in_full():
    text = render_text(report(DROPPED))
    assert "Dropped." in text
    assert "PyTorch drops" not in text


def test_scripts_are_printed_in_full_mode():
    second = replace(WRONG, rule="PB201", name="tensor-on-ctx", reproduce="second()")
    text = render_text(report(WRONG, second))
    assert "import torch" not in text
    assert "\n    on x = [1.0, 2.0]\n" in text
    assert text.endswith("\n1 function: 2 errors (-v shows all, with scripts)\n")
    full = render_text(report(WRONG, second), in_full=True)
    assert "        import torch\n" in full
    assert "        second()\n" in full
    assert full.endswith("\n1 function: 2 errors\n")
    assert render_text(report(INFO)).endswith("\n1 function: 1 info\n"), "the info was printed in full"


def test_failure_message_has_one_script():
    second = replace(WRONG, rule="PB201", name="tensor-on-ctx", reproduce="second()")
    text = render_failure(report(WRONG, second))
    assert "import torch" in text
    assert "second()" not in text
    assert "second()" in render_failure(report(replace(WRONG, reproduce=""), second))


def test_infos_are_named_and_warnings_short_beside_an_error():
    kept = replace(WRONG, rule="PB205", name="saved-but-unused", severity="info", message="Nothing depends on it.")
    loud = replace(WRONG, rule="PB411", name="checkpoint-breaks", severity="warning", verdict="unsupported")
    text = render_text(report(WRONG, replace(loud, message="It raises. " * 30), kept, INFO))
    assert text.endswith(
        "\n\ninfo no support for autocast (PB413)\ninfo PB205 saved-but-unused\n\n"
        "1 function: 1 error, 1 warning, 2 infos (-v shows all, with scripts)\n"
    )
    assert "Nothing depends on it." not in text
    assert text.count("expected 1.0005") == 1
    assert text.count("help: Multiply") == 1
    warning = text[text.index("  warning PB411") : text.index("\n\ninfo no support") + 1]
    assert len(warning.splitlines()) == 2
    assert warning.endswith("…\n")


@pytest.mark.parametrize("in_full", [False, True])
def test_functions_of_one_name_in_two_files_have_a_section_each(in_full):
    other = replace(WRONG, message="Another gradient.", location=Location("examples/copy.py", 31))
    text = rendered(report(WRONG, other, subjects=2), in_full=in_full, width=120)
    assert [line for line in text.splitlines() if line == "MaskedSum"] == ["MaskedSum"] * 2
    assert "  error PB101 wrong-vjp  examples/copy.py:31\n    Another gradient.\n" in text


def test_infos_of_one_name_in_two_files_count_as_two_functions():
    other = replace(INFO, location=Location("examples/copy.py", 31))
    assert "autocast (PB413) in 2" in rendered(report(INFO, other, WRONG, subjects=2), width=120)


def test_infos_that_exceed_a_line_are_a_range_of_ids():
    infos = [replace(INFO, rule=f"PB41{i}", message=f"No {i}.", verdict="inconclusive") for i in range(6)]
    assert "\ninfo PB410–PB415\n" in render_text(report(*infos))


def test_unsupported_contexts_are_named():
    infos = [of_rule(replace(INFO, message=rule), rule) for rule in ("PB405", "PB406", "PB408")]
    assert "\ninfo no support for torch.func (PB405, PB408), vmap (PB406)\n" in render_text(report(*infos))


@pytest.mark.parametrize("severity", ["warning", "info"])
def test_single_finding_is_printed_in_full(severity):
    text = render_text(report(replace(WRONG, severity=severity)))
    assert "it differs at one element in three." in " ".join(text.split())
    assert "help: Multiply the cotangent by the mask." in text


def test_infos_of_one_rule_are_printed_in_full_beside_what_did_not_run():
    unreached = of_rule(replace(INFO, message="No call takes line 3."), "PB908")
    not_run = of_rule(replace(INFO, verdict="ok", message="Rules did not run."), "PB006")
    for subjects in (1, 2):
        text = render_text(report(unreached, not_run, subjects=subjects))
        assert "No call takes line 3." in text
        assert "info PB006" in text
        assert "Rules did not run." not in text
    assert "Rules did not run." in render_text(report(not_run))


def test_guessed_inputs_are_marked():
    alone, *_ = report(WRONG).subjects
    guessed = replace(alone, measured=replace(alone.measured, guessed=True))
    *_, told, summary = render_text(Report((guessed,), (WRONG,))).splitlines()
    assert "guessed" in told
    assert summary.startswith("1 function: 1 error")
    right = render_text(Report((guessed,), ()))
    assert "guessed" in right
    assert "--fix" not in right
    assert "guessed" not in render_text(report(WRONG))


def test_fix_is_advised_only_for_functions_that_launch_no_interpreted_kernels():
    (alone,) = report(WRONG).subjects
    for interpreted in (False, True):
        guessed = replace(alone, measured=replace(alone.measured, guessed=True, interpreted=interpreted))
        text = render_text(Report((guessed,), (WRONG,)), advise_fix=True)
        assert ("Try --fix" in text) == (not interpreted)


def test_call_is_printed_with_its_non_tensor_arguments():
    call = replace(WRONG, reproduce="import torch\nx = torch.tensor([1.0])\nout = fn(x, 2, dim=-1)\nprint(out)")
    second = replace(WRONG, rule="PB201", name="tensor-on-ctx")
    assert "\n    on fn(x, 2, dim=-1), x = [1.0]\n" in render_text(report(call, second))


def many(*findings, right=0, intended=0):
    """A report on functions with one finding each, right functions, and intended ones."""
    statuses = ["wrong"] * len(findings) + ["ok"] * right + ["intended"] * intended
    subjects = tuple(
        SubjectResult(f"Function{n}", Location("ops.py", 9 * n), status, 40, 2.0) for n, status in enumerate(statuses)
    )
    told = [replace(f, subject=f"Function{n}", location=Location("ops.py", 9 * n)) for n, f in enumerate(findings)]
    return Report(subjects, tuple(told))


def with_infos(report):
    """The report with the infos that right functions usually have."""
    infos = [
        of_rule(replace(INFO, message="A long one. " * 20, subject=s.name, location=s.location), rule)
        for s in report.subjects
        for rule in ("PB406", "PB407")
        if s.status in ("ok", "intended")
    ]
    meant = [
        replace(WRONG, severity="info", verdict="intended", message="Meant.", subject=s.name, location=s.location)
        for s in report.subjects
        if s.status == "intended"
    ]
    kept = [of_rule(replace(i, verdict="wrong"), "PB205") for i in infos if i.rule == "PB407"]
    return replace(report, findings=(*report.findings, *infos, *meant, *kept))


def test_report_on_two_hundred_functions_fits_a_screen():
    text = render_text(with_infos(many(WRONG, right=180, intended=20)))
    lines = text.splitlines()
    assert len(lines) <= 24 + 8, "a screen, and the findings of one function"
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("180 ok: Function1, Function2, ") for line in lines)
    assert any(line.startswith("20 intended: Function181, ") for line in lines)
    assert " and 16" in text
    assert [line for line in lines if line.startswith("wrong ")] == [
        "wrong     Function0          1                 40  2.0",
    ]
    told = " ".join(text.split())
    assert "info no support for vmap (PB406) in 200, jvp (PB407) in 200 functions info PB205 in 200 functions" in told
    assert "info PB101: not the derivative, apparently on purpose, in 20 functions" in told
    assert "A long one" not in text


def test_report_on_two_hundred_functions_in_full():
    text = render_text(with_infos(many(WRONG, right=180, intended=20)), in_full=True)
    assert text.count("A long one.") > 200
    assert text.count("Meant.") == 20
    assert "import torch" in text
    assert "180 ok" not in text


def test_few_right_functions_have_a_line_each():
    text = render_text(with_infos(many(WRONG, right=3)))
    rows = [line for line in text.splitlines() if line.startswith("ok ")]
    assert [row.split()[1] for row in rows] == ["Function1", "Function2", "Function3"]
    assert not [line for line in text.splitlines() if line.startswith("Function1")]


def test_warning_is_short_among_many_functions():
    loud = replace(WRONG, severity="warning", message="It raises. " * 30)
    text = render_text(many(loud, replace(loud, rule="PB411"), right=1))
    part = text[text.index("\nFunction0\n") + 1 : text.index("\nFunction1\n")].strip()
    assert len(part.splitlines()) == 3
    assert "on x =" not in text


def test_right_function_alone_has_one_line_and_its_unsupported_contexts():
    alone = replace(many(right=1), findings=())
    (result,) = alone.subjects
    infos = [of_rule(replace(INFO, subject=result.name, location=result.location), rule) for rule in ("PB406", "PB407")]
    assert render_text(replace(alone, findings=tuple(infos))).splitlines() == [
        "Function0  ok  ops.py:0  40 cases, 2.0 s",
        "",
        "info no support for vmap (PB406), jvp (PB407)",
        "",
        "1 function: 2 infos (-v shows all)",
    ]
