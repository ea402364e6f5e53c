"""What pages say of the chips that answered: sentences and tables, made from the evidence and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refmoe.chips import TARGETS, Mma
from refmoe.evidence import REASONS, Evidence, target_word
from refmoe.probe.claims import word_of
from refmoe.probe.instructions import INSTRUCTIONS
from refmoe.reference.mma import MODELS

SM12X = tuple(name for name, target in TARGETS.items() if Mma.SYNC_MX in target.sums)
"""The targets that the production kernels' block-scaled products are of."""


def _short(target: str) -> str:
    return target.rstrip("a").replace("sm_", "SM")


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _word_sentence(what: str, mma: Mma, formats: tuple[str, str], evidence: Mapping[str, Any]) -> str:
    by_word: dict[Evidence, list[str]] = {}
    for target in SM12X:
        assumed = MODELS[TARGETS[target].sums[mma].model].pair(*formats).assumed
        by_word.setdefault(target_word(target, mma, formats, assumed, evidence=evidence), []).append(_short(target))
    return " ".join(
        f"The model of {what} on the tensor cores of {_listed(targets)} is **{word.value}**: {REASONS[word]}."
        for word, targets in by_word.items()
    )


def mxfp8_sentence(evidence: Mapping[str, Any]) -> str:
    """What the products of E4M3 tokens and E2M1 weights rest on, for each SM12x target."""
    return _word_sentence("E4M3 x E2M1", Mma.SYNC_MX, ("e2m1", "e4m3"), evidence)


def nvfp4_sentence(evidence: Mapping[str, Any]) -> str:
    """What the products of NVFP4 rest on, for each SM12x target."""
    return _word_sentence("NVFP4 x NVFP4", Mma.SYNC_NVF4, ("e2m1", "e2m1"), evidence)


def answered_sentence(evidence: Mapping[str, Any]) -> str:
    """Which SM12x chips have answered `refmoe probe`."""
    names = sorted({chip["gpu"] for chip in evidence["chips"] if chip["arch"] in SM12X})
    if not names:
        return "**No SM12x chip has answered yet.**"
    return f"**Of the SM12x chips, {len(names)} {'has' if len(names) == 1 else 'have'} answered: {_listed(names)}.**"


def ran_sentence(evidence: Mapping[str, Any], ran: Sequence[str]) -> str:
    """What has run on a real SM12x chip.

    Args:
        evidence: the chips that answered.
        ran: the GPUs of SM12x on which a committed report says that kernels ran.
    """
    answered = sorted({chip["gpu"] for chip in evidence["chips"] if chip["arch"] in SM12X})
    chips = " or ".join(_short(target) for target in SM12X)
    if ran:
        return f"**Kernels have run on {_listed(sorted(set(ran)))}.**"
    if answered:
        return (
            f"**No kernel of refmoe has run on a real {chips} yet.** Tensor cores of one have answered "
            f"[`refmoe probe`](docs/guides/probe.md): {_listed(answered)}."
        )
    return f"**Nothing has run on a real {chips} yet.**"


def chips_sentence(evidence: Mapping[str, Any]) -> str:
    """How many chips have answered, and which, in a sentence of README.md. One that answered twice is one chip."""
    chips = evidence["chips"]
    if not chips:
        return "No chip has answered `refmoe probe` yet."
    names = sorted({chip["gpu"] for chip in chips})
    verdicts: dict[tuple[str, str], set[str]] = {}
    for chip in chips:
        for name, row in chip["instructions"].items():
            verdicts.setdefault((chip["gpu"], name), set()).add(row["verdict"])
    have = "chip has" if len(names) == 1 else "chips have"
    holds = sum(found == {"HOLDS"} for found in verdicts.values())
    differs = sum("DIFFERS" in found for found in verdicts.values())
    each = "" if len(names) == 1 else ", each chip's counted for itself,"
    return (
        f"{len(names)} {have} answered `refmoe probe` ({', '.join(names)}): of {len(verdicts)} instructions{each} "
        f"refmoe's model holds for {holds}, and differs for {differs}."
    )


def table(evidence: Mapping[str, Any]) -> str:
    """The tables of docs/guides/probe.md in Markdown: what each chip answered, and the word for each instruction."""
    lines = ["| chip | driver | instructions | the model holds | it does not |", "| --- | --- | ---: | ---: | ---: |"]
    for chip in evidence["chips"]:
        verdicts = [row["verdict"] for row in chip["instructions"].values()]
        holds, differs = verdicts.count("HOLDS"), verdicts.count("DIFFERS")
        lines.append(f"| {chip['gpu']} ({chip['arch']}) | {chip['driver']} | {len(verdicts)} | {holds} | {differs} |")
    if not evidence["chips"]:
        lines.append("| none yet | | | | |")
    lines += ["", f"| instruction | {' | '.join(map(_short, TARGETS))} |", f"| --- |{' --- |' * len(TARGETS)}"]
    for instruction in INSTRUCTIONS:
        cells = []
        for target in TARGETS:
            there = target in instruction.targets
            cells.append((word_of(instruction, target, evidence) or "no model") if there else "")
        lines.append(f"| `{instruction.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
