"""Number of planted bugs that `pullback.check` finds, and that PyTorch's own checkers find.

Runs every mutant of `tests/mutants` through

- `pullback.check(function, *inputs)`, as a user would call it;
- `torch.autograd.gradcheck` with its defaults, as nearly everyone calls it;
- `gradcheck` with every flag on: batched gradients, undefined gradients, gradient dtypes, `nondet_tol=0` and,
  where the Function has a jvp, forward mode and batched forward mode;
- `torch.autograd.gradgradcheck` with every flag on, forward over reverse included where there is a jvp, and
  non-contiguous cotangents.

The peers get the same float64 (or complex128) inputs as Pullback, and any exception of theirs is a kill. Each runs in a
process of its own, as Pullback's audits do; if the mutant crashes it, that is a kill, too. With every flag on, the
peers run twice, in slow mode (unit cotangents) and in fast mode (random ones), and either may kill. A flag with which
the *correct* base fails does not distinguish the bug from the base. It is dropped for the mutants of that base, and the
summary names it (on torch 2.13 there is none). Pullback kills a mutant by a finding of severity error, or by a warning
of a rule that the mutant's entry expects; an exception from Pullback is no kill. An error finding on a base is a false
alarm.

Read the totals by family: the mutants of `hidden inputs` are mostly correct at the given inputs, on purpose, and those
of `transforms` are beyond the scope of the peers.

    python benchmarks/check_power.py [--peers-only] [--only TEXT] [--json FILE]
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from torch.autograd import Function, gradcheck, gradgradcheck

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.mutants.catalogue import FAMILIES
from tests.mutants.load import base_names, build, function_of, load_base
from tests.mutants.model import Mutant

FIRST_ORDER = ("check_batched_grad", "check_undefined_grad", "check_grad_dtypes")
FIRST_ORDER_JVP = ("check_forward_ad", "check_batched_forward_grad")
SECOND_ORDER = (*FIRST_ORDER, "gen_non_contig_grad_outputs")
SECOND_ORDER_JVP = ("check_fwd_over_rev",)
PEERS = {"gradcheck": gradcheck, "gradcheck+": gradcheck, "gradgradcheck+": gradgradcheck}
WIDTHS = {"pullback": 34, "gradcheck": 15, "gradcheck+": 15, "gradgradcheck+": 15}

Flags = dict[str, bool]
"""Flags of one peer for one base, without those with which the correct base fails."""


@dataclass
class Outcome:
    """Verdict of one tool on one Function; `by` names the rules, or the exception, that killed it."""

    killed: bool
    by: str
    seconds: float


@dataclass
class Row:
    """One line of the table."""

    mutant: str
    family: str
    base: str
    mode: int
    note: str
    survives: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def killed(self, *tools: str) -> bool:
        """Whether at least one of these tools killed the mutant."""
        return any(self.outcomes[tool].killed for tool in tools)


def run_peer(tool: str, module: ModuleType, flags: Flags) -> Outcome:
    """Run gradcheck or gradgradcheck on a Function; any exception is a kill."""
    start = time.perf_counter()
    reason = ""
    for fast_mode in (False, True) if tool.endswith("+") else (False,):
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                PEERS[tool](function_of(module).apply, module.inputs(), fast_mode=fast_mode, **flags)
        except Exception as error:
            reason = type(error).__name__
            break
    return Outcome(bool(reason), reason, time.perf_counter() - start)


def run_peer_apart(tool: str, module: ModuleType, flags: Flags) -> Outcome:
    """Run a peer on a mutant in a separate process: it may free memory in use, or recurse until the stack overflows."""
    start = time.perf_counter()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(run_peer(tool, module, flags)))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return Outcome(True, f"ended with {process.exitcode}", time.perf_counter() - start)


def peer_flags(base: str) -> dict[str, Flags]:
    """The flags with which the correct base passes, for each peer."""
    has_jvp = function_of(load_base(base)).jvp is not Function.jvp
    return {
        "gradcheck": {},
        "gradcheck+": usable_flags("gradcheck+", base, FIRST_ORDER + FIRST_ORDER_JVP * has_jvp),
        "gradgradcheck+": usable_flags("gradgradcheck+", base, SECOND_ORDER + SECOND_ORDER_JVP * has_jvp),
    }


def usable_flags(tool: str, base: str, wanted: tuple[str, ...]) -> Flags:
    """Switch the flags on one by one; drop those with which the base fails."""
    flags: Flags = {}
    assert not run_peer(tool, load_base(base), flags).killed, f"{tool} refuses the base {base}"
    for name in wanted:
        flags[name] = not run_peer(tool, load_base(base), {**flags, name: True}).killed
    return flags


def audit(module: ModuleType) -> list:
    """Pullback's findings; imported late, so that the peers run without it."""
    import pullback

    return pullback.check(function_of(module), *module.inputs()).findings


def run_pullback(mutant: Mutant, module: ModuleType) -> Outcome:
    """Run Pullback on a mutant."""
    start = time.perf_counter()
    try:
        rules = mutant.caught_by(audit(module))
    except Exception as error:
        return Outcome(False, f"raised {type(error).__name__}", time.perf_counter() - start)
    return Outcome(bool(rules), ",".join(rules), time.perf_counter() - start)


def measure(chosen: list[tuple[str, Mutant]], flags: dict[str, dict[str, Flags]], tools: list[str]) -> list[Row]:
    """All outcomes, each of a fresh import of the mutant."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for family, mutant in chosen:
            row = Row(mutant.id, family, mutant.base, mutant.mode, mutant.note, mutant.survives)
            for tool in tools:
                module = build(mutant, Path(name))
                if tool == "pullback":
                    row.outcomes[tool] = run_pullback(mutant, module)
                else:
                    row.outcomes[tool] = run_peer_apart(tool, module, flags[mutant.base][tool])
            print_row(row)
            rows.append(row)
    return rows


def false_alarms() -> dict[str, list[str]]:
    """The rules that report an error on a correct base."""
    alarms = {}
    for base in base_names():
        try:
            rules = [finding.rule for finding in audit(load_base(base)) if finding.severity == "error"]
        except Exception as error:
            rules = [f"raised {type(error).__name__}"]
        if rules:
            alarms[base] = sorted(set(rules))
    return alarms


def print_row(row: Row) -> None:
    """Print a row as soon as it is measured, since all take minutes."""
    cells = []
    for tool, outcome in row.outcomes.items():
        text = outcome.by if outcome.killed else f"- {outcome.by}"
        if tool == "pullback":
            text = f"{text} {outcome.seconds:.1f}s"
        cells.append(f"{text[: WIDTHS[tool]]:{WIDTHS[tool]}}")
    print(f"{row.mutant:44} {row.mode:>4}  {'  '.join(cells)}".rstrip(), flush=True)


def totals(rows: list[Row], tools: list[str]) -> dict[str, int]:
    """Kills by tool, by the peers together, and by Pullback or the peers alone."""
    counts = {tool: sum(row.killed(tool) for row in rows) for tool in tools}
    counts["all peers together"] = sum(row.killed(*PEERS) for row in rows)
    if "pullback" in tools:
        counts["pullback and no peer"] = sum(row.killed("pullback") and not row.killed(*PEERS) for row in rows)
        counts["a peer and not pullback"] = sum(row.killed(*PEERS) and not row.killed("pullback") for row in rows)
    return {"mutants": len(rows), **counts}


def by_family(rows: list[Row], tools: list[str]) -> dict[str, dict[str, int]]:
    """The totals of each family."""
    return {
        family: totals([row for row in rows if row.family == family], tools)
        for family in dict.fromkeys(row.family for row in rows)
    }


def print_summary(rows: list[Row], tools: list[str], flags: dict[str, dict[str, Flags]]) -> None:
    """Kill rates, dropped flags and survivors."""
    print()
    print(f"kills of {len(rows)} mutants")
    for name, count in list(totals(rows, tools).items())[1:]:
        seconds = sum(row.outcomes[name].seconds for row in rows) if name in tools else 0
        print(f"{name:26} {count:4}  {count / len(rows):6.1%}" + (f"  {seconds:7.1f}s" if seconds else ""))
    print()
    for family, counts in by_family(rows, tools).items():
        print(f"{family:16} " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    for base, peers in flags.items():
        for tool, usable in peers.items():
            dropped = [flag for flag, on in usable.items() if not on]
            if dropped:
                print(f"dropped for {base}, because the right base fails with it: {tool} {', '.join(dropped)}")
    survivors = [row for row in rows if "pullback" in tools and not row.killed("pullback")]
    if survivors:
        print("\nsurvived pullback:")
    for row in survivors:
        print(f"  {row.mutant}: {row.survives or 'not explained yet'} ({row.note})")
    unseen = [row.mutant for row in rows if not row.killed(*PEERS)]
    print(f"\nsurvived every peer ({len(unseen)}): {', '.join(unseen)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-only", action="store_true", help="run the peers without Pullback")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only mutants whose id contains TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcomes to FILE")
    options = parser.parse_args()

    chosen = [(family, m) for family, mutants in FAMILIES.items() for m in mutants if options.only in m.id]
    if not chosen:
        parser.error(f"no mutant's id contains {options.only!r}")
    torch.set_num_threads(1)  # a forked process does not have the threads of this one
    tools = [*PEERS] if options.peers_only else ["pullback", *PEERS]
    flags = {base: peer_flags(base) for base in dict.fromkeys(mutant.base for _, mutant in chosen)}
    print(f"torch {torch.__version__}: {len(chosen)} mutants of {len(flags)} bases")
    print(f"{'mutant':44} mode  {'  '.join(f'{tool:{WIDTHS[tool]}}' for tool in tools)}".rstrip())
    rows = measure(chosen, flags, tools)
    print_summary(rows, tools, flags)
    alarms = {} if options.peers_only else false_alarms()
    if not options.peers_only:
        print(f"\nfalse alarms on {len(base_names())} right bases: {alarms or 'none'}")
    if options.json:
        result = {
            "torch": torch.__version__,
            "totals": totals(rows, tools),
            "families": by_family(rows, tools),
            "peer_flags": flags,
            "false_alarms": alarms,
            "mutants": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
