"""Contracts: what a kernel of a family is given, what it has to return, and which of the family's options it has.

A function registered by `kernel` takes what it names. Its parameters are inputs of the family, settings of the case,
or outputs: buffers to write to, which hold a poison byte until then.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from refmoe.errors import ArgumentError, describe
from refmoe.families.case import FAMILIES, Case
from refmoe.families.suites import LEVELS, SUITES
from refmoe.policies import rule_named
from refmoe.policies.rules import Rule
from refmoe.testing.arrays import ARRAY_KINDS

__all__ = ["CONTRACTS", "FamilyContract", "Kernel", "Unsupported", "kernel"]


class Unsupported(Exception):
    """Raised by a registered kernel for a case that it does not take; the message says why, and the test is skipped."""


@dataclass(frozen=True)
class FamilyContract:
    """The names that a kernel of a family may take and has to return.

    Attributes:
        inputs: arrays that cases give; docs/testing.md has their shapes.
        features: inputs that only some cases have. A kernel that does not take one cannot be given those cases.
        outputs: what the kernel returns, in this order.
        settings: what else a case says, by parameter name: the attribute of the case or of its shape.
        refusal: the output that tells which input is refused, "" if none is; a kernel that does not compute it is not
            given such input.
    """

    inputs: tuple[str, ...]
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Mapping[str, str]
    refusal: str = ""


_ROUTED = {"num_experts": "e", "first_expert": "first_expert"}
_MAPS = ("unpermuted_to_permuted", "permuted_to_unpermuted", "offsets")

#: The contract of each kernel family that has one.
CONTRACTS: Mapping[str, FamilyContract] = MappingProxyType(
    {
        "mxfp8_quantize": FamilyContract(
            ("x",), (), ("codes", "scales"), {"mode": "mode", "edge": "edge", "layout": "layout"}
        ),
        "expand": FamilyContract(
            ("x", "input_sf", "topk_ids", *_MAPS),
            ("input_sf",),
            ("codes", "scales"),
            {
                **_ROUTED,
                "top_k": "t",
                "mode": "mode",
                "edge": "edge",
                "layout": "layout",
                "input_sf_layout": "input_sf",
            },
        ),
        "sm12x_gemm": FamilyContract(
            (
                *("tokens", "token_scales", "token_scale_buffer", "weights", "weight_scales", "weight_scale_buffer"),
                *("offsets", "alpha", "bias"),
            ),
            ("alpha", "bias"),
            ("out",),
            {"num_experts": "e", "out_dtype": "dtype"},
        ),
        "routing": FamilyContract(
            ("logits", "bias", "topk_ids"),
            ("bias",),
            ("topk_ids", "topk_weights", "refused", "offsets", "unpermuted_to_permuted", "permuted_to_unpermuted"),
            {**_ROUTED, "top_k": "t"},
            refusal="refused",
        ),
        "activation": FamilyContract(
            ("gate_up", "offsets", "bias", "alpha", "beta", "limit"),
            ("bias", "alpha", "beta", "limit"),
            ("codes", "scales"),
            {"num_experts": "e", "variant": "variant", "mode": "mode", "edge": "edge", "layout": "layout"},
        ),
        "finalize": FamilyContract(
            ("rows", "unpermuted_to_permuted", "weights", "topk_ids", "bias"),
            ("bias",),
            ("out",),
            {**_ROUTED, "top_k": "t", "out_dtype": "out"},
        ),
        "moe": FamilyContract(
            (
                *("x", "input_sf", "topk_ids", "topk_weights", "gate_up", "gate_up_scales", "down", "down_scales"),
                *("gate_up_bias", "down_bias", "swiglu_alpha", "swiglu_beta", "swiglu_limit"),
            ),
            ("input_sf", "gate_up_bias", "down_bias", "swiglu_alpha", "swiglu_beta", "swiglu_limit"),
            ("finalize.out",),
            {**_ROUTED, "top_k": "t", "variant": "variant", "mode": "mode", "edge": "edge"},
        ),
    }
)

#: Options of a family that a kernel has one value of, unless it takes them as a setting.
_PINNED = ("mode", "edge", "layout", "variant", "out")

#: Options that decide how our own kernels are launched, and nothing of the data.
_LAUNCH = {"tile": "", "stages": 0, "cluster": "1x1x1"}

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, eq=False)
class Kernel:
    """A user's function under a contract; called, it is that function.

    Attributes:
        function: the function.
        family: the kernel family whose contract it is under.
        name: what it is called in ids and reports.
        parameters: the names that it takes.
        required: those of them without a default.
        options: the family's options that it has one value of.
        rule: its whole quantization policy, if that is none of the family's modes and edges.
        outputs: the family's outputs that it computes.
        dtypes: the family's dtypes that it takes.
        arrays: "torch", "numpy" or "jax": what it is given.
        device: "cpu" or "cuda": where those arrays lie.
        missing: says why it cannot run here, or None.
        made_of: what it is made of, for the report, or "".
    """

    function: Callable[..., Any]
    family: str
    name: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    options: Mapping[str, str]
    rule: Rule | None
    outputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    arrays: str
    device: str
    missing: Callable[[], str | None] = field(default=lambda: None)
    made_of: str = ""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function returns."""
        return self.function(*arguments, **named)

    @property
    def contract(self) -> FamilyContract:
        """The family's contract."""
        return CONTRACTS[self.family]

    @property
    def buffers(self) -> tuple[str, ...]:
        """The outputs that it takes as buffers to write to; none if it returns them."""
        return tuple(name for name in self.contract.outputs if name in self._buffer_names)

    @property
    def _buffer_names(self) -> tuple[str, ...]:
        # What is an input of the family is never a buffer: routing's ids are either.
        return tuple(name for name in self.parameters if name in self.outputs and name not in self.contract.inputs)

    @property
    def policy(self) -> str:
        """The contract in words: "rceil/exact, scales 128x4"; "" where the family has no options."""
        words = [self.rule.name] if self.rule else []
        if self.rule is None and "mode" in self.options:
            words.append(f"{self.options['mode']}/{self.options['edge']}")
        if "layout" in self.options:
            words.append(f"scales {self.options['layout']}")
        words += [f"{name} {self.options[name]}" for name in ("variant", "out") if name in self.options]
        return ", ".join(words)

    @property
    def place(self) -> str:
        """Where its cases run, in reports: "host" or "cuda"."""
        return "cuda" if self.device == "cuda" else "host"

    def cases(self, level: str = "quick", dtypes: tuple[str, ...] | None = None) -> list[Case]:
        """The family's cases of a level under this contract, without repetition.

        Args:
            level: "quick", "default" or "full".
            dtypes: of those that the kernel takes; None for all.

        Raises:
            ArgumentError: an unknown level, or a dtype that the kernel does not take.
        """
        if level not in LEVELS:
            raise ArgumentError("level", describe(level), "one of " + ", ".join(LEVELS))
        for dtype in dtypes or ():
            if dtype not in self.dtypes:
                raise ArgumentError("dtypes", describe(dtype), f"some of {', '.join(self.dtypes)}")
        wanted = dtypes or self.dtypes
        return list(
            dict.fromkeys(self._under_contract(case for case in SUITES[self.family](level) if case.dtype in wanted))
        )

    def _under_contract(self, cases: Iterator[Case]) -> Iterator[Case]:
        changes: dict[str, Any] = {**self.options, **_LAUNCH}
        if not self.buffers and self.family != "sm12x_gemm":
            changes["poison"] = 0xFF  # only buffers that are handed over show it, and the padding of a GEMM's scales
        for case in cases:
            try:
                yield dataclasses.replace(case, **changes)
            except ArgumentError:
                continue  # options that exclude each other: no case of this contract

    def refusal(self, case: Case) -> str | None:
        """Why the kernel cannot be given this case, in a sentence; None if it can."""
        if case.family != self.family:
            return f"{self.name} is a kernel of the family {self.family}, the case is of {case.family}"
        if case.dtype not in self.dtypes:
            return f"{self.name} takes {', '.join(self.dtypes)}, the case is of {case.dtype}"
        for option, value in self.options.items():
            if getattr(case, option) != value:
                return f"the contract of {self.name} has {option}={value}, the case {option}={getattr(case, option)}"
        routed = "first_expert" in self.contract.settings and {"topk_ids", "logits"} & set(self.parameters)
        if case.ranks > 1 and routed and "first_expert" not in self.parameters:
            return f"{self.name} takes no first_expert, and the case has experts of other ranks"
        return None

    def settings(self, case: Case) -> dict[str, Any]:
        """The settings that the function takes, with their values for a case."""
        taken = {name: at for name, at in self.contract.settings.items() if name in self.parameters}
        return {name: getattr(case.shape if len(at) == 1 else case, at) for name, at in taken.items()}

    def source(self, root: Path) -> tuple[str, Path | None]:
        """Its name in reports, and the file to hash: FILE::NAME below `root`, or MODULE::NAME of a package."""
        function = inspect.unwrap(self.function)
        try:
            file = Path(inspect.getsourcefile(function) or "").resolve()
        except TypeError:
            file = Path()
        installed = "site-packages" in file.parts or Path(__file__).parent in file.parents
        if not installed and file.is_file() and file.is_relative_to(root.resolve()):
            return f"{file.relative_to(root.resolve()).as_posix()}::{self.name}", file
        return f"{getattr(function, '__module__', None) or 'unknown'}::{self.name}", None


def kernel(
    family: str,
    *,
    mode: str | None = None,
    edge: str | None = None,
    policy: str | None = None,
    layout: str | None = None,
    variant: str | None = None,
    out: str | None = None,
    dtypes: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] | None = None,
    arrays: str = "torch",
    device: str = "cpu",
    name: str | None = None,
    missing: Callable[[], str | None] | None = None,
    made_of: str = "",
) -> Callable[[Callable[..., Any]], Kernel]:
    """Register a function as a kernel of a family: a decorator.

    The function is called by keyword with what its parameters name: inputs of `CONTRACTS[family]`, settings, and, if it
    writes into buffers instead of returning arrays, the outputs. It returns the outputs in the contract's order, or a
    mapping by name; an option of the family that it takes as a setting is not fixed by the contract.

    Args:
        family: "mxfp8_quantize", "expand", "sm12x_gemm", "routing", "activation", "finalize" or "moe".
        mode: scale mode of a quantizing kernel; "rceil" if left out.
        edge: its edge policy; "exact" if left out.
        policy: of mxfp8_quantize, instead of mode and edge: a name that `refmoe policy` knows, such as "ocp" or
            "torchao_floor@0.18".
        layout: of the scales it writes; the family's first if left out.
        variant: of the activation, "gpt_oss" or "silu".
        out: dtype that finalize rounds to, "bf16" or "f32".
        dtypes: of the family's dtypes those that it takes; without, all, but "mxfp8" only if it takes input_sf.
        outputs: of the family's outputs those that it computes; all if left out.
        arrays: what it is given: "torch", "numpy" or "jax".
        device: where its arrays lie, "cpu" or "cuda".
        name: what it is called; its own name if left out.
        missing: says why it cannot run here, or None; its cases are then SKIPPED.
        made_of: what it is made of, for the report.

    Raises:
        ArgumentError: a family, option, dtype or parameter that there is not; the message says what there is.
    """
    if family not in CONTRACTS:
        raise ArgumentError("family", describe(family), "one of " + ", ".join(CONTRACTS))
    for argument, value, allowed in (("arrays", arrays, tuple(ARRAY_KINDS)), ("device", device, _DEVICES)):
        if value not in allowed:
            raise ArgumentError(argument, describe(value), "one of " + ", ".join(allowed))
    if arrays == "numpy" and device == "cuda":
        raise ArgumentError("device", "cuda with arrays='numpy'", "arrays='torch' or 'jax': NumPy's lie on the CPU")
    given = {"mode": mode, "edge": edge, "layout": layout, "variant": variant, "out": out}
    asked = {option: value for option, value in given.items() if value is not None}

    def register(function: Callable[..., Any]) -> Kernel:
        parameters, required = _checked_parameters(function, family)
        computed = _checked_outputs(outputs, family)
        rule, named = _policy(family, policy, asked)
        options = _options(family, named, parameters, rule)
        made = Kernel(
            function,
            family,
            name or str(getattr(function, "__name__", type(function).__name__)),
            parameters,
            required,
            options,
            rule,
            computed,
            _checked_dtypes(dtypes, family, parameters),
            arrays,
            device,
            missing or (lambda: None),
            made_of,
        )
        written = made.buffers
        if written and set(written) != set(computed):
            left = ", ".join(sorted(set(computed) - set(written)))
            raise ArgumentError("kernel", f"buffers for {', '.join(written)} and none for {left}", "all, or none")
        if written and arrays == "jax":
            raise ArgumentError("kernel", "output buffers with arrays='jax'", "outputs returned: JAX never writes")
        return made

    return register


def _checked_parameters(function: object, family: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's parameters, and of those without a default."""
    if not callable(function):
        raise ArgumentError("kernel", describe(function), "a function")
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise ArgumentError("kernel", f"{function!r} without a signature", "a Python function around it") from error
    contract = CONTRACTS[family]
    known = (*contract.inputs, *contract.settings, *contract.outputs)
    for parameter in found:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ArgumentError("kernel", f"the parameter {parameter}", "parameters that can be given by keyword")
        if parameter.name not in known and parameter.default is parameter.empty:
            raise ArgumentError(
                "kernel",
                f"the parameter {parameter.name}",
                f"of {family}: the inputs {', '.join(contract.inputs)}; the settings {', '.join(contract.settings)}; "
                f"or buffers for {', '.join(contract.outputs)}",
            )
    taken = [parameter for parameter in found if parameter.name in known]
    if not any(parameter.name in contract.inputs for parameter in taken):
        raise ArgumentError("kernel", "no parameter that is an input", f"some of {', '.join(contract.inputs)}")
    return (
        tuple(parameter.name for parameter in taken),
        tuple(parameter.name for parameter in taken if parameter.default is parameter.empty),
    )


def _checked_outputs(outputs: Sequence[str] | None, family: str) -> tuple[str, ...]:
    every = CONTRACTS[family].outputs
    if outputs is None:
        return every
    if isinstance(outputs, str) or not outputs or any(each not in every for each in outputs):
        raise ArgumentError("outputs", describe(outputs), f"a tuple of some of {', '.join(every)}")
    return tuple(each for each in every if each in outputs)


def _checked_dtypes(dtypes: Sequence[str] | None, family: str, parameters: tuple[str, ...]) -> tuple[str, ...]:
    every = FAMILIES[family].dtypes
    if dtypes is None:
        return tuple(each for each in every if each != "mxfp8" or "input_sf" in parameters)
    if isinstance(dtypes, str) or not dtypes or any(each not in every for each in dtypes):
        raise ArgumentError("dtypes", describe(dtypes), f"a tuple of some of {', '.join(every)}")
    return tuple(dtypes)


def _policy(family: str, policy: str | None, asked: Mapping[str, str]) -> tuple[Rule | None, Mapping[str, str]]:
    """The rule of a policy that the family's own modes and edges do not name, if it is one; and the options."""
    if policy is not None and family != "mxfp8_quantize":
        raise ArgumentError("policy", f"{policy} for {family}", "mode and edge: whole policies are of mxfp8_quantize")
    if policy is not None and ("mode" in asked or "edge" in asked):
        raise ArgumentError("policy", f"{policy} beside a mode or an edge", "either")
    if family != "mxfp8_quantize" or (policy is None and not {"mode", "edge"} & set(asked)):
        return None, asked
    rule = rule_named(policy or f"{asked.get('mode', 'rceil')}/{asked.get('edge', 'exact')}", "mxfp8")
    mode, _, edge = rule.name.partition("/")
    words = {"mode": mode, "edge": edge}
    try:
        dataclasses.replace(next(SUITES[family]("quick")), **words)  # type: ignore[arg-type]
    except ArgumentError:
        return rule, {option: value for option, value in asked.items() if option not in words}
    return None, {**asked, **words}


def _options(
    family: str, asked: Mapping[str, str], parameters: tuple[str, ...], rule: Rule | None
) -> Mapping[str, str]:
    """The options that the contract fixes: those asked for, and defaults of those that the function does not take."""
    allowed = FAMILIES[family].options
    for option in asked:
        if option not in allowed:
            raise ArgumentError(option, describe(asked[option]), f"nothing: {family} has no {option}")
        if option in parameters:
            raise ArgumentError(option, f"{asked[option]!r} for a function that takes {option}", "one of the two")
    default = next(iter(SUITES[family]("quick")))
    fixed: dict[str, str] = {}
    for option in _PINNED:
        if option not in allowed or option in parameters or (option == "out" and "out_dtype" in parameters):
            continue
        fallback = {"mode": "rceil", "edge": "exact", "layout": FAMILIES[family].layouts[0], "variant": "gpt_oss"}
        fixed[option] = asked.get(option, fallback.get(option, "bf16"))
    if rule is not None:
        fixed["mode"], fixed["edge"] = "rceil", "exact"  # inputs are made without them; the rule is what is expected
    dataclasses.replace(default, **fixed)  # type: ignore[arg-type]  # raises on a value that the family does not have
    return MappingProxyType(fixed)
