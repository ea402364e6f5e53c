"""A family is one value, and a case is one comparison under it.

A family is a problem with a definition: inputs, what the reference makes of them, and the contract that every kernel
for it is under. `refmoe.families.FAMILIES` lists the families; each has a module of its operation's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from refmoe.chips import CHIPS, DEFAULT_ARCH, KERNEL_ARCHS, Mma
from refmoe.errors import RefmoeError
from refmoe.families.case import Fields, Option, Shape, Value, byte, one_of, refused, written_options
from refmoe.families.stages import Stage
from refmoe.families.vacuity import Limits
from refmoe.families.wrong import Change, check_wrong
from refmoe.formats import MX_BLOCK

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

Inputs = Mapping[str, Any]  # NumPy arrays by name, None for what the case has not
Outputs = Mapping[str, NDArray[Any]]
Extents = Mapping[str, int]

LEVELS = ("quick", "default", "full")
#: Cases of models' true sizes that have their outputs compared in part, enough of each class of sizes to say something
#: about it. They belong to the level "full", and are a list that can be run by itself: minutes, where that is an hour.
SAMPLES = "samples"
DEVICES = ("ptx", "cuda")

#: What fills output buffers before the launch, and the padding rows of a GEMM's scales.
POISON = byte("poison", 0xFF)

INT32_MAX = 2**31 - 1


def in_software(mma: Mma, cases: Callable[[], Iterable[Case]]) -> Mapping[str, Callable[[], Iterable[Case]]]:
    """`Family.software` of a kernel that carries an instruction in software: `cases` for every chip that lacks it."""
    return {arch: cases for arch in KERNEL_ARCHS if mma not in CHIPS[arch].sums}


@dataclass(frozen=True)
class Case:
    """One comparison of a kernel with its reference; `str(case)` is the repro string. Made by `Family.case`.

    The value of an option is an attribute: `case.poison`, `case.mode`.

    Attributes:
        family: the family that the case belongs to.
        dtype: of the input, of a GEMM the output's; "mxfp8" for input that is quantized already.
        shape: sizes.
        fill: name of the input data.
        seed: of the input data and the routing.
        device: "ptx" or "cuda".
        arch: what the kernel is compiled for; "" is the default, sm_120a on ptx and the GPU's own on cuda.
        options: (name, value) of every option of the family, in its order.
        refusal: a part of the sentence with which the kernel has to refuse the case; "" if the kernel has to run it.

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
        arch = "" if self.device == "ptx" and self.arch == DEFAULT_ARCH else self.arch
        options = written_options(self.family.options, dict(self.options))
        fields = (self.family.name, self.dtype, str(self.shape), self.fill, options, self.seed, self.device, arch)
        return str(Fields(*fields))

    __repr__ = __str__

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
        """The case without device, arch and launch options. It alone decides inputs and expectation."""
        launch = {option.name: option.default for option in self.family.options if option.launch}
        return dataclasses.replace(self.having(**launch), device="ptx", arch="")


@dataclass(frozen=True)
class Lack:
    """What a case lacks for its fill that is not about its shape.

    Attributes:
        field: "dtype" or the name of an option.
        needed: what it has to be, for example "alpha=none".
    """

    field: str
    needed: str


def needs_k(least: int) -> Callable[[Case], str | None]:
    """The `lack` of a fill that needs a k of at least `least`."""

    def lack(case: Case) -> str | None:
        return None if case.shape.k >= least else f"a k of at least {least} for the fill {case.fill}"

    return lack


@dataclass(frozen=True)
class Fill:
    """A named, seeded generator of input data, chosen so that a certain kind of wrong kernel must fail on it.

    Attributes:
        name: as in a repro string.
        catches: which wrong kernels fail on it.
        make: makes the data; each family has its own arguments for it.
        limits: what the data must look like for equality to mean anything.
        lack: says what a case lacks for this fill: a text is said of its shape, for example "at least 65536 blocks";
            None if it lacks nothing.
    """

    name: str
    catches: str
    make: Callable[..., Any]
    limits: Limits = field(default_factory=Limits)
    lack: Callable[[Case], Lack | str | None] = lambda case: None

    @staticmethod
    def by_name(*fills: Fill) -> Mapping[str, Fill]:
        """Fills by their names, in this order."""
        return MappingProxyType({fill.name: fill for fill in fills})


@dataclass(frozen=True)
class Assumption:
    """What a verdict assumes of the chip's tensor cores.

    Attributes:
        model: name of the accumulation model, a key of `refmoe.reference.mma.MODELS`.
        evidence: what the model rests on: "hardware-checked", "published" or "extrapolated".
        text: the model and its evidence in sentences, for the reader of a report.
    """

    model: str
    evidence: str
    text: str


class LaunchFailed(RefmoeError):
    """One of several launches of a case failed. It is raised from the error of that launch.

    Attributes:
        stage: what the launch computes.
        outputs: the buffers of the launches before it, by stage name. The cause may be a wrong byte in one of them.
        cause: why it did not end.
    """

    def __init__(self, stage: str, outputs: Outputs, cause: RefmoeError) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.stage = stage
        self.outputs = outputs
        self.cause = cause


#: The NumPy or ml_dtypes names of the types of repro strings.
_ELEMENTS = {"bf16": "bfloat16", "fp16": "float16", "f32": "float32", "mxfp8": "float8_e4m3fn"}


@dataclass(frozen=True)
class Expectation:
    """What a kernel must give for a case, according to the reference.

    Attributes:
        outputs: the expected buffers by stage name, in the order in which stages are computed. They are unsigned
            integers: bytes, or the bit patterns of elements. Bytes that must not be written hold the poison.
        stages: the words for each buffer's elements.
        doubt: why this data could not have failed, in a sentence, or None.
        assumption: what `outputs` assume of tensor cores, None where no tensor core takes part.
        outside: says which of a kernel's outputs lie outside their error bound, None if none does.
        answers: for each second answer (a witness) the output that it is an answer to: {"out-as-int64": "out"}.
    """

    outputs: Outputs
    stages: tuple[Stage, ...]
    doubt: str | None
    assumption: Assumption | None = None
    outside: Callable[[Outputs], str | None] = lambda outputs: None
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contract:
    """The names that a kernel of a family may take and has to return.

    Attributes:
        inputs: names of arrays; the family's page in docs/families has their shapes.
        features: inputs that only some cases have. A kernel that does not take one is not given those cases.
        outputs: what the kernel returns, in this order, with the type of its elements: a NumPy or ml_dtypes name,
            "case.out" for the type that this option or field of the case names, or "" for integers.
        settings: by parameter name the attribute of the case, or of its shape, that the parameter gets.
        refusal: the output that tells which input is refused, "" if there is none. A kernel that does not compute it
            is not given such input.
        padded_inputs: whether inputs have padding that holds the poison and that no kernel may read.
        elements: by value of the option `output`, outputs whose elements have another type than in `outputs`.
    """

    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    settings: Mapping[str, str]
    features: tuple[str, ...] = ()
    refusal: str = ""
    padded_inputs: bool = False
    elements: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def element(self, output: str, case: Case) -> str:
        """The NumPy or ml_dtypes name of an output's elements in a case, "" for integers."""
        named = self.elements.get(str(case.get("output")), {}).get(output, self.outputs[output])
        return _ELEMENTS[getattr(case, named[5:])] if named.startswith("case.") else named


@dataclass(frozen=True, eq=False)
class Family:
    """A kernel family.

    Attributes:
        name: as in repro strings.
        about: what its kernels compute, in a sentence.
        dtypes: element types of the input. A GEMM has MXFP8 and MXFP4 inputs, so there it is the output's type.
        sizes: letters of the shape, in the order of the string; see `Shape`.
        fills: the input data, by name.
        options: in the order of the string.
        inputs: makes the input arrays of a case.
        expect: asks the reference for what must come of them.
        run: runs refmoe's own kernel on them on a device; gives buffers by name.
        extents: the bytes that a case compares, for each of its stages; the gate holds reports against it.
        cases: for each level the cases that it adds to the level below; and under "samples" those of true sizes.
        contract: what every kernel of the family takes and returns.
        sources: stems of the CUDA sources that `run` launches.
        host: modules of the host code that makes the launches.
        check: refuses fields of a case that exclude each other.
        lacks: says why the chip of an arch cannot run a case, which is then SKIPPED there; None if it can.
        block: k is a multiple of it.
        group: a name for several families together, such as "moe"; "" for none.
        invariance: what tells whether a token's bytes depend on its batch: "" for subjects of the family's own in
            `refmoe.batching`, the name of another family within which it is tried, or a sentence why nothing does.
        leading_arch: the arch that takes a whole level on ptx; the others take the level below.
        archs: the archs that there is a kernel for.
        software: by arch, the few cases for the executor where a tensor-core instruction runs in software, see
            `in_software`.
        base: the family that this one restates for another kernel, such as "sm12x_gemm"; "" for none.
        refuses: the calls that refmoe's own host code has to refuse, see `refmoe.families.wrong`.
        changes: by `argument-damage` the damages of calls that no word of `refmoe.families.wrong.DAMAGES` is for.
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
    extents: Callable[[Case], Extents]
    cases: Mapping[str, Callable[[], Iterable[Case]]]
    contract: Contract
    sources: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    check: Callable[[Case], None] = lambda case: None
    lacks: Callable[[Case, str], str | None] = lambda case, arch: None
    block: int = MX_BLOCK
    group: str = ""
    invariance: str = ""
    leading_arch: str = DEFAULT_ARCH
    archs: tuple[str, ...] = KERNEL_ARCHS
    software: Mapping[str, Callable[[], Iterable[Case]]] = field(default_factory=dict)
    base: str = ""
    refuses: Callable[[], Iterable[Case]] = tuple
    changes: Mapping[str, Change] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.about}",
            f"  dtypes   {', '.join(self.dtypes)}",
            f"  sizes    {' '.join(self.sizes)}",
        ]
        for option in self.options:
            values = " | ".join(option.words) or option.needed or "text"
            lines.append(f"  option   {option.name}={option.write(option.default)}   ({values})")
        lines += [f"  fill     {fill.name:<20} catches {fill.catches}" for fill in self.fills.values()]
        lines += [f"  takes    {', '.join(self.contract.inputs)}", f"  returns  {', '.join(self.contract.outputs)}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<family {self.name}>"

    def option(self, name: str, written: str | None = None) -> Option:
        """The option of that name; `written` is the value that a string gives it, for the message.

        Raises:
            ArgumentError: the family has no such option.
        """
        for option in self.options:
            if option.name == name:
                return option
        found = name if written is None else f"{name}={written}"
        raise refused("option", found, f"name=value with a name of {one_of(o.name for o in self.options)}")

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
        options: dict[str, Any] = {name: self.option(name, value).read(value) for name, value in fields.options}
        shape = Shape.read(self.sizes, fields.shape)
        place: dict[str, Any] = {"device": fields.device, "arch": fields.arch}
        return self.case(fields.fill, shape, fields.dtype, fields.seed, **place, **options)

    def level(self, level: str) -> Iterator[Case]:
        """The cases of a level: those of the levels below it come first. "samples" alone has none below it."""
        below = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else ()
        for name in (*below, SAMPLES) if level in (LEVELS[-1], SAMPLES) else below:
            yield from self.cases.get(name, tuple)()

    def wrong_calls(self) -> Iterable[Case]:
        """The calls that refmoe's own host code has to refuse; none of a family that restates another."""
        return () if self.base else self.refuses()

    @cached_property
    def refusals(self) -> Mapping[Case, str]:
        """The cases that the kernel has to refuse, each with a part of the sentence that it answers."""
        listed = [case for case in self.level(LEVELS[-1]) if case.refusal]
        return {case.on("ptx"): case.refusal for case in (*listed, *self.wrong_calls())}

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
        check_wrong(case)
        self.check(case)
        if (lack := self.fills[case.fill].lack(case)) is not None:
            lack = Lack("shape", lack) if isinstance(lack, str) else lack
            raise refused(lack.field, str(getattr(case, lack.field)), lack.needed)

    def _check_shape(self, shape: Shape) -> None:
        wide = "k" in self.sizes
        if min(shape.m, shape.k, shape.e, shape.t, shape.n) < 0 or shape.k % self.block or (shape.k > 0) != wide:
            needed = f"sizes that are not negative and a k that is a multiple of {self.block}"
            raise refused("shape", str(shape), needed)
        for letter in "net":
            if (letter in self.sizes) != bool(getattr(shape, letter)):
                needed = f"{letter} of at least 1" if letter in self.sizes else f"no {letter}"
                raise refused("shape", str(shape), f"{needed} for {self.name}")
        if shape.rows * shape.k > INT32_MAX:
            raise refused("shape", str(shape), f"at most {INT32_MAX} elements")
