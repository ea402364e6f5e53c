"""What a kernel family is: one value that holds all that the harness knows of it; and its cases.

A family is a problem with a definition: inputs, what the reference makes of them, and the contract that any kernel for
it is under. `refmoe.families` lists them; each has a module of its operation's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.errors import RefmoeError
from refmoe.families.case import Fields, Option, Shape, Value, byte, one_of, refused
from refmoe.families.stages import Stage
from refmoe.families.vacuity import Limits
from refmoe.formats import MX_BLOCK

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

__all__ = [
    "DEVICES",
    "LEVELS",
    "POISON",
    "Assumption",
    "Case",
    "Contract",
    "Expectation",
    "Family",
    "Fill",
    "Inputs",
    "LaunchFailed",
    "Outputs",
]

Inputs = Mapping[str, Any]  # NumPy arrays by name, None for what the case has not
Outputs = Mapping[str, NDArray[Any]]

LEVELS = ("quick", "default", "full")
DEVICES = ("ptx", "cuda")

#: What fills output buffers before the launch, and the padding rows of a GEMM's scales.
POISON = byte("poison", 0xFF)

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Case:
    """One comparison of a kernel with its reference; `str(case)` is the repro string. Made by `Family.case`.

    The value of an option is an attribute: `case.poison`, `case.mode`.

    Attributes:
        family: whose case it is.
        dtype: of the input, of a GEMM the output's; "mxfp8" for input that is quantized already.
        shape: sizes.
        fill: name of the input data.
        seed: of the input data and the routing.
        device: "ptx" or "cuda".
        arch: what the kernel is compiled for; "" is the default, sm_120a on ptx and the GPU's own on cuda.
        options: (name, value) of every option of the family, in its order.
        refusal: what the case list says that the kernel answers instead of running, a part of its sentence; "" if it
            has to run.

    Raises:
        ArgumentError: a field that the family does not define, named "case <field>".
    """

    family: Family
    dtype: str
    shape: Shape
    fill: str
    seed: int = 0
    device: str = "ptx"
    arch: str = ""
    options: tuple[tuple[str, Value], ...] = ()
    refusal: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.device == "ptx" and not self.arch:
            object.__setattr__(self, "arch", DEFAULT_ARCH)
        object.__setattr__(self, "_values", dict(self.options))
        self.family.check_case(self)

    def __getattr__(self, name: str) -> Any:
        # Only what is no field comes here. `_values` itself does while a copy is being made.
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"a case of {self.__dict__.get('family', 'no family')} has no {name}")
        return values[name]

    def __str__(self) -> str:
        written = [
            f"{o.name}={o.write(value)}" for o in self.family.options if (value := self.get(o.name)) != o.default
        ]
        fields = [self.family.name, self.dtype, str(self.shape), self.fill, *written, f"seed{self.seed}"]
        default_arch = DEFAULT_ARCH if self.device == "ptx" else ""
        return ":".join(fields) + f"@{self.device}" + (f".{self.arch}" if self.arch != default_arch else "")

    def get(self, option: str, otherwise: Value = "") -> Value:
        """The value of an option, `otherwise` if the family does not have it."""
        value: Value = self.__dict__["_values"].get(option, otherwise)
        return value

    def on(self, device: str, arch: str = "") -> Case:
        """The same case on another device."""
        return dataclasses.replace(self, device=device, arch=arch)

    def having(self, **changes: Any) -> Case:
        """The same case with other fields or options.

        Raises:
            ArgumentError: no case of the family.
        """
        names = {f.name for f in dataclasses.fields(self)}
        options = {**dict(self.options), **{name: value for name, value in changes.items() if name not in names}}
        fields = {name: value for name, value in changes.items() if name in names}
        return dataclasses.replace(self, **fields, options=self.family.chosen(options))

    @property
    def data(self) -> Case:
        """The case without device and launch: what decides inputs and expectation."""
        launch = {option.name: option.default for option in self.family.options if option.launch}
        return dataclasses.replace(self.having(**launch), device="ptx", arch="")


@dataclass(frozen=True)
class Fill:
    """Input data as a named, seeded generator, chosen so that a certain kind of wrong kernel must fail on it.

    Attributes:
        name: as in a repro string.
        catches: which wrong kernels fail on it.
        make: makes the data; its arguments are the family's own.
        limits: what the data must look like for equality to mean anything.
        needs: what a case must have for the fill to do what its name says, where it has not; None if it has.
    """

    name: str
    catches: str
    make: Callable[..., Any]
    limits: Limits = field(default_factory=Limits)
    needs: Callable[[Case], str | None] = lambda case: None


@dataclass(frozen=True)
class Assumption:
    """What a verdict takes for granted of the chip's tensor cores.

    Attributes:
        model: name of the accumulation model, a key of `refmoe.reference.mma.MODELS`.
        evidence: what the model rests on: "hardware-checked", "published" or "extrapolated".
        text: both in sentences, for the reader of a report.
    """

    model: str
    evidence: str
    text: str


class LaunchFailed(RefmoeError):
    """One of several launches of a case did not end; raised from the error that says why.

    Attributes:
        stage: what the launch computes.
        outputs: by stage name the buffers of the launches before it. A fault in one of those may be what stopped it.
    """

    def __init__(self, stage: str, outputs: Outputs, cause: RefmoeError) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.stage = stage
        self.outputs = outputs


def _within(outputs: Outputs) -> str | None:
    return None


@dataclass(frozen=True)
class Expectation:
    """What the reference says a case must give.

    Attributes:
        outputs: the expected buffers by stage name, poison included, in the order in which stages are computed:
            unsigned integers, bytes or the bit patterns of elements.
        stages: how to compare and describe each.
        doubt: why this data could not have failed, in a sentence, or None.
        assumption: what `outputs` rest on, or None where no tensor core takes part.
        outside: says of a kernel's outputs which lie outside their error bound, None if none does.
        answers: the output that a stage is held against, for second answers to one: {"out-as-int64": "out"}.
    """

    outputs: Outputs
    stages: tuple[Stage, ...]
    doubt: str | None
    assumption: Assumption | None = None
    outside: Callable[[Outputs], str | None] = _within
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contract:
    """The names that a kernel of a family may take and has to return.

    Attributes:
        inputs: arrays that cases give; the family's page has their shapes.
        features: inputs that only some cases have. A kernel that does not take one cannot be given those cases.
        outputs: what the kernel returns, in this order, and the type of its elements: a NumPy or ml_dtypes name, that
            of an option or field of the case as "case.out", or "" for integers.
        settings: what else a case says, by parameter name: the attribute of the case or of its shape.
        refusal: the output that tells which input is refused, "" if none is; a kernel that does not compute it is not
            given such input.
        padded_inputs: whether inputs hold the poison too, in padding that no kernel may read.
    """

    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    settings: Mapping[str, str]
    features: tuple[str, ...] = ()
    refusal: str = ""
    padded_inputs: bool = False

    def element(self, output: str, case: Case) -> str:
        """The NumPy or ml_dtypes name of an output's elements in a case, "" for integers."""
        named = self.outputs[output]
        return {"bf16": "bfloat16", "f32": "float32"}[getattr(case, named[5:])] if named.startswith("case.") else named


def _nothing(case: Case) -> None:
    return None


@dataclass(frozen=True, eq=False)
class Family:
    """A kernel family.

    Attributes:
        name: as in repro strings.
        about: what its kernels compute, in a sentence.
        dtypes: element types of the input; of a GEMM, whose inputs are MXFP8 and MXFP4, of the output.
        sizes: letters of the shape, in the order of the string; see `Shape`.
        fills: the input data, by name.
        options: in the order of the string.
        inputs: the input arrays of a case.
        expect: what the reference makes of them.
        run: what refmoe's own kernel makes of them on a device: buffers by name.
        cases: what each level adds to the one below, and why each case is there.
        contract: what a kernel of anybody's takes and returns.
        sources: stems of the CUDA sources that `run` launches, its own first.
        host: modules of the host code that makes the launches.
        check: refuses fields of a case that exclude each other.
        block: what k is a multiple of.
        group: a name for several families, to ask for them together; "" for none.
        leading_arch: the arch that takes a whole level on ptx; the others take the level below.
        archs: those that there is a kernel for.
        software: the cases for the executor on an arch where the kernel carries a tensor-core instruction in software,
            by arch.
        base: the family that this one restates for another kernel; "" for none.
    """

    name: str
    about: str
    dtypes: tuple[str, ...]
    sizes: str
    fills: Mapping[str, Fill]
    options: tuple[Option, ...]
    inputs: Callable[[Case], Inputs]
    expect: Callable[[Case, Inputs], Expectation]
    run: Callable[[Case, Inputs, Device], Outputs]
    cases: Mapping[str, Callable[[], Iterable[Case]]]
    contract: Contract
    sources: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    check: Callable[[Case], None] = _nothing
    block: int = MX_BLOCK
    group: str = ""
    leading_arch: str = DEFAULT_ARCH
    archs: tuple[str, ...] = KERNEL_ARCHS
    software: Mapping[str, Callable[[], Iterable[Case]]] = field(default_factory=dict)
    base: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.about}", f"  dtypes   {', '.join(self.dtypes)}", f"  sizes    {self.sizes}"]
        for option in self.options:
            values = " | ".join(option.words) or option.needed or "text"
            lines.append(f"  option   {option.name}={option.write(option.default)}   ({values})")
        lines += [f"  fill     {fill.name:<20} catches {fill.catches}" for fill in self.fills.values()]
        lines += [f"  takes    {', '.join(self.contract.inputs)}", f"  returns  {', '.join(self.contract.outputs)}"]
        return "\n".join(lines)

    __repr__ = __str__

    def option(self, name: str) -> Option:
        """The option of that name.

        Raises:
            ArgumentError: the family has no such option.
        """
        for option in self.options:
            if option.name == name:
                return option
        raise refused("option", name, f"name=value with a name of {one_of(o.name for o in self.options)}")

    def chosen(self, options: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
        """The value of every option, in order; defaults for those that are not in `options`.

        Raises:
            ArgumentError: an option that the family does not have, or a value that it cannot have.
        """
        for name in options:
            self.option(name)
        return tuple((o.name, o.checked(options.get(o.name, o.default))) for o in self.options)

    def case(
        self, fill: str, shape: Shape, dtype: str = "", seed: int = 7, *, device: str = "ptx", arch: str = "",
        refusal: str = "", **options: Any,
    ) -> Case:  # fmt: skip
        """A case; see `Case`. `dtype` is the first one if left out.

        Raises:
            ArgumentError: no case of the family.
        """
        chosen = self.chosen(options)
        return Case(self, dtype or self.dtypes[0], shape, fill, seed, device, arch, chosen, refusal)

    def read(self, fields: Fields) -> Case:
        """The case of a repro string's fields.

        Raises:
            ArgumentError: a field that the family does not define.
        """
        options: dict[str, Any] = {name: self.option(name).read(value) for name, value in fields.options}
        shape = Shape.read(self.sizes, fields.shape)
        place: dict[str, Any] = {"device": fields.device, "arch": fields.arch}
        return self.case(fields.fill, shape, fields.dtype, fields.seed, **place, **options)

    def level(self, level: str) -> Iterator[Case]:
        """The cases of a level: those of the levels below it come first."""
        for name in LEVELS[: LEVELS.index(level) + 1]:
            yield from self.cases.get(name, tuple)()

    @cached_property
    def refusals(self) -> Mapping[Case, str]:
        """What the case lists say that the kernel refuses, and the part of its sentence that says why."""
        return {case.on("ptx"): case.refusal for case in self.level(LEVELS[-1]) if case.refusal}

    def check_case(self, case: Case) -> None:
        """Refuse a case whose fields this family does not define.

        Raises:
            ArgumentError: the field, what was found, what is needed.
        """
        for name, found, words in (
            ("dtype", case.dtype, self.dtypes),
            ("device", case.device, DEVICES),
            ("arch", case.arch or DEFAULT_ARCH, KERNEL_ARCHS),
        ):
            if found not in words:
                raise refused(name, found, one_of(words))
        if case.seed < 0:
            raise refused("seed", str(case.seed), "an integer that is not negative")
        self._check_shape(case.shape)
        if case.fill not in self.fills:
            raise refused("fill", case.fill, one_of(self.fills))
        self.check(case)
        if (needed := self.fills[case.fill].needs(case)) is not None:
            raise refused("shape", str(case.shape), needed)

    def _check_shape(self, shape: Shape) -> None:
        wide = "k" in self.sizes
        if min(shape.m, shape.k, shape.e, shape.t, shape.n) < 0 or shape.k % self.block or (shape.k > 0) != wide:
            raise refused(
                "shape", str(shape), f"sizes that are not negative and a k that is a multiple of {self.block}"
            )
        for letter in "net":
            if (letter in self.sizes) != bool(getattr(shape, letter)):
                needed = f"{letter} of at least 1" if letter in self.sizes else f"no {letter}"
                raise refused("shape", str(shape), f"{needed} for {self.name}")
        if shape.rows * shape.k > INT32_MAX:
            raise refused("shape", str(shape), f"at most {INT32_MAX} elements")
