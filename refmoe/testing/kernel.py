"""A user's function as a kernel, registered under the contract of a family.

The function is called by the names of its parameters. A parameter is an input of the family, a setting of the case, or
an output. An output parameter is a buffer to write to, which holds a poison byte until then.
"""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.families import family_called
from refmoe.families.case import one_of
from refmoe.families.family import LEVELS, Case, Expectation, Family, Inputs, Outputs
from refmoe.policies import PolicyRule, rule_named
from refmoe.testing.arrays import ARRAY_KINDS, arrays_missing, from_numpy, to_numpy
from refmoe.testing.elements import as_patterns
from refmoe.testing.rule import declared_difference, explain_difference, ruled_problem, undefined
from refmoe.verify.kernel import Kernel, Malformed, Masks, Place, Refusal
from refmoe.verify.source import functions_of, imported_modules, sha256_of, source_files, statement_name

if TYPE_CHECKING:
    from refmoe.cuda.device import LaunchRecord

_DEVICES = ("cpu", "cuda")

#: What `kernel` takes arrays and device to be if nothing is said.
_USUAL = {"arrays": "torch", "device": "cpu"}


class Unsupported(Exception):
    """Raised by a registered function for a case that it does not take; the message says why.

    The case is then UNSUPPORTED. That fails unless refmoe's own kernel has to refuse the case in the same words. For
    the cases that `refuses` names, the function is not called.
    """


@dataclass
class _Here:
    """Where a user's function runs: this machine's processor, or its GPU."""

    name: str
    arch: str
    launches: list[LaunchRecord] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class UserKernel(Kernel):
    """A user's function under a contract. It can be called like the function.

    Attributes:
        function: the function.
        label: what it is called in ids and reports.
        parameters: the names that it takes.
        required: those of them without a default.
        fixed: the values of the family's options that its contract fixes, such as {"layout": "linear"}.
        rule: its quantization policy, if the family's modes and edges do not name it.
        outputs: the family's outputs that it computes.
        dtypes: the family's dtypes that it takes.
        arrays: "torch", "numpy" or "jax": the arrays that it is given.
        device: "cpu" or "cuda": where those arrays lie.
        absent: says why it cannot run on this machine, or None.
        refused: says why it refuses a case, or None.
        made_from: what it is made of, for the report, such as "torchao 0.18"; or "".
        files: further files that decide its result.
        root: the folder that files are named from.
        node: the pytest id of the test that runs it, "" outside of pytest.
        changes: the inputs that it may write to; a change of any other fails.
        given: the arguments that it was registered with and that a call of `refmoe.check` needs to run it again.
    """

    function: Callable[..., Any]
    label: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    fixed: Mapping[str, Any]
    rule: PolicyRule | None
    outputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    arrays: str
    device: str
    absent: Callable[[], str | None]
    refused: Callable[[Case], str | None]
    made_from: str = ""
    files: tuple[str, ...] = ()
    root: Path = field(default_factory=Path.cwd)
    node: str = ""
    changes: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function returns."""
        return self.function(*arguments, **named)

    # --- the contract -----------------------------------------------------------------------------------------------

    @property
    def buffers(self) -> tuple[str, ...]:
        """The outputs that it takes as buffers to write to; none if it returns them."""
        # What is an input of the family is never a buffer: routing's ids are either.
        contract = self.family.contract
        named = [name for name in self.parameters if name in self.outputs and name not in contract.inputs]
        return tuple(name for name in contract.outputs if name in named)

    @property
    def policy(self) -> str:
        """The contract in words: "rceil/exact, scales 128x4"; "" where the family has no options."""
        words = [self.rule.name] if self.rule else []
        if self.rule is None and "mode" in self.fixed:
            words.append(f"{self.fixed['mode']}/{self.fixed['edge']}")
        if "layout" in self.fixed:
            words.append(f"scales {self.fixed['layout']}")
        words += [f"{name} {value}" for name, value in self.fixed.items() if name not in ("mode", "edge", "layout")]
        return ", ".join(words)

    def cases(self, level: str = "quick", dtypes: tuple[str, ...] | None = None) -> list[Case]:
        """The family's cases of a level under this contract, without repetition.

        Args:
            level: "quick", "default" or "full".
            dtypes: of those that the kernel takes; None for all.

        Raises:
            ArgumentError: an unknown level, or a dtype that the kernel does not take.
        """
        if level not in LEVELS:
            raise ArgumentError("level", describe(level), one_of(LEVELS))
        if isinstance(dtypes, str):
            raise ArgumentError("dtypes", describe(dtypes), f"a tuple of some of {', '.join(self.dtypes)}")
        for dtype in dtypes or ():
            if dtype not in self.dtypes:
                raise ArgumentError("dtypes", describe(dtype), f"some of {', '.join(self.dtypes)}")
        wanted = dtypes or self.dtypes
        return list(dict.fromkeys(self._own(case for case in self.family.level(level) if case.dtype in wanted)))

    def _own(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases under this contract, without the options that only decide how our own kernel is launched."""
        for case in cases:
            try:
                yield case.having(**self._contracted, refusal="")
            except ArgumentError:
                continue  # options that exclude each other: no case of this contract

    @property
    def _contracted(self) -> dict[str, Any]:
        """What the contract makes of options: values that it fixes, and defaults of those that only launch ours."""
        changes: dict[str, Any] = {option.name: option.default for option in self.family.options if option.launch}
        if not self.buffers and not self.family.contract.padded_inputs:
            changes["poison"] = 0xFF  # only buffers that are handed over show it
        return changes | dict(self.fixed)

    def _ours_refuses(self, case: Case) -> str | None:
        """The words with which refmoe's own kernel has to refuse the case; None if it does not, or for its launch."""
        for listed, words in self.family.refusals.items():
            # What our launch refuses, another kernel does not know; a shape that ours refuses, another may refuse too.
            if listed.data == listed and listed.shape == case.shape and [*self._own([listed])] == [case.data]:
                return words
        return None

    # --- the protocol -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """FILE::NAME below `root`, or MODULE::NAME of a package."""
        function = inspect.unwrap(self.function)
        return f"{self._file(function) or getattr(function, '__module__', None) or 'unknown'}::{self.label}"

    def identify(self, case: Case) -> str:
        """The repro string with the kernel's name before it, and "host" or "cuda" for the device."""
        return f"{self.name}/{self.case_text(case)}"

    def case_text(self, case: Case) -> str:
        """The repro string of a case with the place where the kernel runs, "host" or "cuda", for its device."""
        return f"{str(case).rpartition('@')[0]}@{self._place_name}"

    @property
    def _place_name(self) -> str:
        return "cuda" if self.device == "cuda" else "host"

    def repro(self, case: Case) -> str:
        """The pytest command that runs the test again; outside of pytest the call of `refmoe.check` that does.

        A lambda has no name to call it by; a word in capitals stands for it, and a comment says what it is.
        """
        if self.node:
            return f"pytest '{self.node}'"
        asked = {"kernel": self.function, **self.given}
        words = {name: _expression(value, name) for name, value in asked.items()}
        options = [f"{name}={word}" for name, word in words.items() if name != "kernel"]
        call = ", ".join([words["kernel"], repr(self.family.name), *options, f"cases=[{self.case_text(case)!r}]"])
        unnamed = [f"{word} is {_described(asked[name])}" for name, word in words.items() if word == _placeholder(name)]
        return f"refmoe.check({call})" + (f"  # {', '.join(unnamed)}" if unnamed else "")

    def place(self, case: Case) -> Place:
        """This machine's processor, or its GPU."""
        return _Here(self._place_name, platform.machine() if self.device == "cpu" else _capability())

    def missing(self, case: Case, place: Place) -> str | None:
        """Why the kernel cannot run on this machine: what `missing` says, or no framework or GPU for its arrays."""
        return self.absent() or arrays_missing(self.arrays, self.device)

    def problem(self, case: Case) -> tuple[Inputs, Expectation]:
        """Inputs and expectation of the family, or those of a policy that the family's options cannot name."""
        return super().problem(case) if self.rule is None else ruled_problem(self.rule, case.data)

    def due_refusal(self, case: Case, place: Place) -> None:
        """None: what it is registered to refuse, its function is not called for; and it may run what ours refuses."""

    def _declared_refusal(self, case: Case, inputs: Inputs, expected: Expectation) -> str | None:
        """Why it refuses a case: by its contract, its parameters, `refuses`, or since no byte of it could be seen."""
        if why := self._outside_contract(case) or self.refused(case) or self._lacking(inputs, expected):
            return why
        masks = self.ignored(case, inputs, expected)
        unseen = [name in masks and masks[name].all() for name in self.outputs if name in expected.outputs]
        about = f"the case is about bytes that must not be written, and {self.label} takes no buffers"
        return about if unseen and all(unseen) else None

    def _outside_contract(self, case: Case) -> str | None:
        if case.family is not self.family:
            return f"{self.label} is a kernel of the family {self.family.name}, the case is of {case.family.name}"
        if case.dtype not in self.dtypes:
            return f"{self.label} takes {', '.join(self.dtypes)}, the case is of {case.dtype}"
        for option, value in self.fixed.items():
            if case.get(option) != value:
                return f"the contract of {self.label} has {option}={value}, the case {option}={case.get(option)}"
        routed = "first_expert" in self.family.contract.settings and {"topk_ids", "logits"} & set(self.parameters)
        if case.get("ranks", 1) != 1 and routed and "first_expert" not in self.parameters:
            return f"{self.label} takes no first_expert, and the case has experts of other ranks"
        return None

    def _lacking(self, inputs: Inputs, expected: Expectation) -> str | None:
        """Why a kernel with these parameters cannot be given these inputs."""
        contract = self.family.contract
        for name in contract.features:
            if name not in self.parameters and inputs.get(name) is not None:
                return f"{self.label} takes no {name}, which the case has"
        if inputs.get("input_sf", "absent") is None and inputs["x"].dtype == np.uint8:
            return None if "input_sf" in self.parameters else f"{self.label} takes no input_sf: this one is None"
        refusal = contract.refusal
        if refusal and refusal not in self.outputs and expected.outputs.get(refusal, np.zeros(1)).any():
            return f"the case holds input to be refused, and {self.label} does not compute {refusal}"
        for name in self.required:
            if name in contract.inputs and name not in inputs:
                return f"{self.label} needs {name}, which the case does not give"
        return None

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """Call the function; give what it returned or wrote as bit patterns.

        Raises:
            Refusal: it does not take the case.
            Malformed: an output of another shape or element type, or an input that it changed.
        """
        if (why := self._declared_refusal(case, inputs, expected)) is not None:
            raise Refusal(why, declared=True)
        try:
            found = self._called(case, inputs, expected)
        except Unsupported as error:
            answer = str(error) or f"{self.label} raised {type(error).__name__}"
            ours = self._ours_refuses(case)
            raise Refusal(answer, declared=ours is not None and ours in answer) from error
        return {name: self._patterns(name, value, case, expected) for name, value in found.items()}

    def _called(self, case: Case, inputs: Inputs, expected: Expectation) -> dict[str, Any]:
        settings = self.family.contract.settings
        arguments: dict[str, Any] = {
            name: getattr(case.shape if len(at) == 1 else case, at)
            for name, at in settings.items()
            if name in self.parameters
        }
        for name in self.parameters:
            if name in inputs:
                value = inputs[name]
                arguments[name] = None if value is None else from_numpy(value, self.arrays, self.device)
        buffers = [name for name in self.buffers if name in expected.outputs]
        arguments |= dict.fromkeys(self.buffers)  # None for an output that the case does not have
        for name in buffers:
            bits = expected.outputs[name]
            poisoned = np.frombuffer(bytes([case.poison]) * bits.nbytes, bits.dtype).reshape(bits.shape)
            arguments[name] = from_numpy(poisoned, self.arrays, self.device)
        try:
            result = self.function(**arguments)
        except (TypeError, AttributeError) as error:
            if self.arrays == "numpy" or type(error) not in (TypeError, AttributeError):
                raise
            hint = f"it was given {self.arrays} arrays; arrays='numpy' gives NumPy arrays to a function that needs them"
            raise type(error)(f"{error}; {hint}") from error
        self._check_inputs(inputs, arguments)
        if self.buffers:
            return {name: arguments[name] for name in buffers}
        return self._named(result, [name for name in self.outputs if name in expected.outputs])

    def _check_inputs(self, inputs: Inputs, arguments: Mapping[str, Any]) -> None:
        """Whether the inputs are as they were given, bit by bit.

        Raises:
            Malformed: one was changed.
        """
        if self.arrays == "jax":
            return  # no function can write to a JAX array
        for name in self.parameters:
            value = inputs.get(name)
            if value is None or name in self.changes:
                continue
            now, before = as_patterns(to_numpy(arguments[name], name)), as_patterns(np.ascontiguousarray(value))
            allowed = f"a kernel may change an input only if it is registered with changes=({name!r},)"
            if now.shape != before.shape:
                raise Malformed(name, f"the kernel gave its input the shape {list(now.shape)}; {allowed}")
            places = np.flatnonzero(now != before)
            if places.size:
                first = np.unravel_index(int(places[0]), before.shape)
                place, digits = ", ".join(str(int(axis)) for axis in first), 2 * before.dtype.itemsize
                bits = f"given 0x{int(before[first]):0{digits}X}, afterwards 0x{int(now[first]):0{digits}X}"
                count = f"{places.size} of {before.size} elements changed"
                raise Malformed(name, f"the kernel changed its input {name}[{place}]: {bits}; {count}; {allowed}")

    def _named(self, result: Any, wanted: list[str]) -> dict[str, Any]:
        if isinstance(result, Mapping):
            found = dict(result)
        elif isinstance(result, (tuple, list)):
            names = self.outputs if len(result) == len(self.outputs) else tuple(wanted)
            if len(result) != len(names):
                needed = f"{len(names)} of them: {', '.join(self.outputs)}"
                raise ArgumentError("kernel", f"{len(result)} values returned", needed)
            found = dict(zip(names, result, strict=True))
        else:
            found = {wanted[0]: result} if len(wanted) == 1 else {}
        lacking = [name for name in wanted if name not in found]
        if lacking:
            returned = describe(sorted(found)) if found else type(result).__name__
            needed = f"{', '.join(wanted)}: a tuple of arrays, or a mapping"
            raise ArgumentError("kernel", f"{returned} returned", needed)
        return {name: found[name] for name in wanted}

    def _patterns(self, name: str, value: object, case: Case, expected: Expectation) -> NDArray[Any]:
        """An output as bit patterns of the expected form.

        Raises:
            Malformed: another shape or another type of elements.
        """
        bits = expected.outputs[name]
        array = to_numpy(value, name)
        element = self.family.contract.element(name, case)
        integers = array.dtype.kind in "iu" and array.dtype.itemsize == bits.dtype.itemsize
        if not integers and array.dtype.name != element:
            kinds = f"{element}, or its bits as uint{8 * bits.itemsize}" if element else f"int{8 * bits.itemsize}"
            raise Malformed(name, f"the element types differ: kernel {array.dtype}; the contract has {kinds}")
        if name == "scales" and array.size == bits.size:
            array = array.reshape(bits.shape)  # a buffer in a layout: its axes mean nothing
        if array.shape != bits.shape:
            said = f"the shapes differ: kernel {list(array.shape)} reference {list(bits.shape)}"
            if any(array.shape == other.shape for other in expected.outputs.values()):
                said += f"; outputs are returned in the order {', '.join(self.outputs)}"
            raise Malformed(name, said)
        return as_patterns(array).view(bits.dtype)

    def leaves_out(self, output: str) -> bool:
        """Whether the kernel was registered without this output."""
        return output not in self.outputs

    def ignored(self, case: Case, inputs: Inputs, expected: Expectation) -> Masks:
        """Elements that nobody writes, in arrays that the kernel allocates, and what its policy leaves undefined."""
        masks: dict[str, NDArray[Any]] = {}
        if not self.buffers:
            # An array that the kernel allocates has no poison in it: what depends on the poison is what nobody writes.
            other = case.data.having(poison=case.poison ^ 0xFF)
            made = ruled_problem(self.rule, other)[1] if self.rule else other.family.expect(other, inputs)
            masks = {name: value != made.outputs[name] for name, value in expected.outputs.items()}
        if self.rule is not None:
            for name, mask in undefined(self.rule, case, inputs).items():
                masks[name] = masks.get(name, False) | mask
        return {name: mask for name, mask in masks.items() if mask.any() and name in self.outputs}

    def explain(self, case: Case, inputs: Inputs, outputs: Outputs) -> tuple[str | None, tuple[str, ...]]:
        """For a quantizing kernel: the policy that gives its bytes."""
        if case.family.name != "mxfp8_quantize" or {"codes", "scales"} - set(outputs):
            return None, ()
        x, codes, scales = (np.ascontiguousarray(each) for each in (inputs["x"], outputs["codes"], outputs["scales"]))
        return explain_difference(self._rule_of(case), case.layout, x, codes, scales)

    def _rule_of(self, case: Case) -> PolicyRule:
        return self.rule or rule_named(f"{case.mode}/{case.edge}", "mxfp8")

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str:
        """The arrays, what the kernel says of itself, and its contract."""
        parts = [f"{self.arrays} arrays on {self.device}", self.made_from]
        parts += [f"contract: {self.policy}"] if self.policy else []
        if case.family.name == "mxfp8_quantize":
            parts.append(declared_difference(self._rule_of(case), np.ascontiguousarray(inputs["x"])) or "")
        return "; ".join(filter(None, parts))

    def sources(self) -> tuple[str, ...]:
        """FILE::FUNCTION of the function and of those that it wraps or encloses, and the further files.

        Of an instance that can be called these are the files of its class and of the class's bases.

        Of modules of the project that these import, the whole files: what is in them decides the result too.
        """
        named: list[str] = []
        for function, whole in functions_of(self.function) or [(self.function, False)]:
            if (file := self._file(function)) is not None:
                text = (self.root / file).read_text(encoding="utf-8")
                name = statement_name(text, function.__code__.co_firstlineno) if whole else None
                named.append(f"{file}::{name}" if name else file)
        return tuple(dict.fromkeys((*named, *self._imported(named), *self.files)))

    def _imported(self, sources: Sequence[str]) -> Iterator[str]:
        """The files below `root` that sources import, directly or not; those that are imported by now."""
        pending, seen = list(sources), {source.partition("::")[0] for source in sources}
        while pending:
            file, _, name = pending.pop().partition("::")
            module = getattr(sys.modules.get(self.function.__module__), "__package__", None) if name else None
            for imported in imported_modules(self.root / file, name, module):
                found = self._file_of_module(imported)
                if found is not None and found not in seen:
                    seen.add(found)
                    pending.append(found)
                    yield found

    def _file_of_module(self, name: str) -> str | None:
        """A module's file below `root`, None of one that is not imported, or of a package's."""
        file = getattr(sys.modules.get(name), "__file__", None)
        # Of refmoe the report names the version: it is what holds the kernel, and no part of it.
        own = name == "refmoe" or name.startswith("refmoe.")
        return None if file is None or own else self._below(Path(file).resolve())

    def source_sha256(self) -> str | None:
        """The hash of the function, of what it calls in its own module, and of the further files.

        Raises:
            OSError: a file cannot be read.
        """
        sources = self.sources()
        return sha256_of(source_files(sources, self.root)) if sources else None

    def compiler(self) -> None:
        """None: refmoe does not know who compiles it; `made_of` may say."""

    def _file(self, function: Any) -> str | None:
        """The file below `root` of a function or a class; None of a package's, and of what no file has."""
        try:
            file = Path(inspect.getsourcefile(function) or "").resolve()
        except (TypeError, OSError):
            return None
        return self._below(file)

    def _below(self, file: Path) -> str | None:
        """A file's name below `root`; None of a package's, of refmoe's own, and of one elsewhere."""
        installed = "site-packages" in file.parts or Path(__file__).parent in file.parents
        below = file.is_file() and file.is_relative_to(self.root.resolve())
        return file.relative_to(self.root.resolve()).as_posix() if below and not installed else None


def _placeholder(argument: str) -> str:
    return argument.upper()


def _expression(value: object, argument: str) -> str:
    """A value as Python writes it; a function by its name, a word in capitals for one that has none."""
    if not callable(value):
        return repr(value)
    name = getattr(value, "__name__", "")
    return name if name.isidentifier() else _placeholder(argument)


def _described(function: Any) -> str:
    """A function without a name in words: where it is written."""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"the {type(function).__name__} that was given"
    return f"the lambda at {Path(code.co_filename).name}:{code.co_firstlineno}"


def _capability() -> str:
    """The GPU's compute capability as an arch, "" if torch sees none."""
    try:
        import torch

        major, minor = torch.cuda.get_device_capability()
    except (ImportError, AssertionError, RuntimeError):
        return ""
    return f"sm_{major}{minor}"


def kernel(
    family: str | Family,
    *,
    policy: str | None = None,
    dtypes: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] | None = None,
    arrays: str = "torch",
    device: str = "cpu",
    name: str | None = None,
    missing: Callable[[], str | None] | None = None,
    refuses: Callable[[Case], str | None] | None = None,
    changes: tuple[str, ...] = (),
    made_of: str = "",
    sources: Sequence[str] = (),
    **options: str,
) -> Callable[[Callable[..., Any]], UserKernel]:
    """Register a function as a kernel of a family: a decorator.

    The function is called by keyword. Its parameters are named after inputs and settings of the family's contract. A
    function that writes into buffers has parameters named after outputs, too. Any other function returns the outputs in
    the contract's order, or a mapping by name. An option that it takes as a setting is not fixed by the contract.

    Args:
        family: a family, its name, or a part of its name that no other family has: "quantize" is mxfp8_quantize.
        policy: for mxfp8_quantize, a name that `refmoe policy` knows, such as "ocp" or "torchao_floor@0.18"; it stands
            for mode and edge. For a family with an option `policy`, that option.
        dtypes: the dtypes of the family that the function takes. If left out: all, but "mxfp8" only if the function
            takes input_sf.
        outputs: the outputs of the family that the function computes; all if left out.
        arrays: the arrays that the function is given: "torch", "numpy" or "jax". The default is "torch" on every
            machine, so that a contract means the same everywhere. Where the package is not installed, the cases are
            SKIPPED.
        device: where these arrays lie, "cpu" or "cuda". Where there is no GPU, the cases are SKIPPED.
        name: the kernel's name in reports; the function's name if left out.
        missing: a function that says why the kernel cannot run on this machine, or returns None. The cases are then
            SKIPPED with that reason.
        refuses: a function from a case to the reason why the kernel refuses it, or to None. Any other refusal fails.
        changes: the inputs that the function may write to, such as ("x",). A kernel that changes another one fails.
        made_of: what the kernel is made of, such as a package's version, for the report.
        sources: further files that decide the kernel's result, below the project's folder. They are in its hash.
        options: the options of the family that the kernel has one value of: `mode`, `edge`, `layout`, `variant`, `out`.
            An option that is left out has its default.

    Raises:
        ArgumentError: a family, option, dtype or parameter that there is not; the message says what there is.
    """
    chosen = family if isinstance(family, Family) else family_called(family)
    for argument, value, allowed in (("arrays", arrays, tuple(ARRAY_KINDS)), ("device", device, _DEVICES)):
        if value not in allowed:
            raise ArgumentError(argument, describe(value), one_of(allowed))
    if arrays == "numpy" and device == "cuda":
        raise ArgumentError("device", "cuda with arrays='numpy'", "arrays='torch' or 'jax': NumPy's lie on the CPU")

    spoken = {"policy": policy, "outputs": outputs, "name": name, "missing": missing, "refuses": refuses}
    spoken["changes"] = tuple(changes) or None
    given = {argument: value for argument, value in spoken.items() if value is not None} | options
    given |= {
        argument: value for argument, value in (("arrays", arrays), ("device", device)) if value != _USUAL[argument]
    }

    def register(function: Callable[..., Any]) -> UserKernel:
        parameters, required = _checked_parameters(function, chosen)
        rule, asked = _policy(chosen, policy, options)
        made = UserKernel(
            family=chosen,
            function=function,
            label=name or str(getattr(function, "__name__", type(function).__name__)),
            parameters=parameters,
            required=required,
            fixed=_fixed(chosen, asked, parameters, rule),
            rule=rule,
            outputs=_checked_outputs(outputs, chosen),
            dtypes=_checked_dtypes(dtypes, chosen, parameters),
            arrays=arrays,
            device=device,
            absent=missing or (lambda: None),
            refused=refuses or (lambda case: None),
            made_from=made_of,
            files=tuple(sources),
            changes=_some_of("changes", changes, _inputs_among(parameters, chosen)) if changes else (),
            given=MappingProxyType(given),
        )
        written = made.buffers
        if written and set(written) != set(made.outputs):
            left = ", ".join(sorted(set(made.outputs) - set(written)))
            raise ArgumentError("kernel", f"buffers for {', '.join(written)} and none for {left}", "all, or none")
        if written and arrays == "jax":
            raise ArgumentError("kernel", "output buffers with arrays='jax'", "outputs returned: JAX never writes")
        return made

    return register


def _checked_parameters(function: object, family: Family) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's parameters, and of those without a default."""
    if not callable(function):
        raise ArgumentError("kernel", describe(function), "a function")
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise ArgumentError("kernel", f"{function!r} without a signature", "a Python function around it") from error
    contract = family.contract
    known = (*contract.inputs, *contract.settings, *contract.outputs)
    for parameter in found:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ArgumentError("kernel", f"the parameter {parameter}", "parameters that can be given by keyword")
        if parameter.name not in known and parameter.default is parameter.empty:
            raise ArgumentError(
                "kernel",
                f"the parameter {parameter.name}",
                f"of {family.name}: the inputs {', '.join(contract.inputs)}; "
                f"the settings {', '.join(contract.settings)}; or buffers for {', '.join(contract.outputs)}",
            )
    taken = [parameter for parameter in found if parameter.name in known]
    if not any(parameter.name in contract.inputs for parameter in taken):
        raise ArgumentError("kernel", "no parameter that is an input", f"some of {', '.join(contract.inputs)}")
    required = tuple(parameter.name for parameter in taken if parameter.default is parameter.empty)
    return tuple(parameter.name for parameter in taken), required


def _inputs_among(parameters: tuple[str, ...], family: Family) -> tuple[str, ...]:
    return tuple(name for name in parameters if name in family.contract.inputs)


def _checked_outputs(outputs: Sequence[str] | None, family: Family) -> tuple[str, ...]:
    every = tuple(family.contract.outputs)
    chosen = every if outputs is None else _some_of("outputs", outputs, every)
    return tuple(each for each in every if each in chosen)


def _checked_dtypes(dtypes: Sequence[str] | None, family: Family, parameters: tuple[str, ...]) -> tuple[str, ...]:
    if dtypes is None:
        return tuple(each for each in family.dtypes if each != "mxfp8" or "input_sf" in parameters)
    return _some_of("dtypes", dtypes, family.dtypes)


def _some_of(argument: str, asked: Sequence[str], every: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(asked, str) or not asked or any(each not in every for each in asked):
        raise ArgumentError(argument, describe(asked), f"a tuple of some of {', '.join(every)}")
    return tuple(asked)


def _policy(
    family: Family, policy: str | None, asked: Mapping[str, str]
) -> tuple[PolicyRule | None, Mapping[str, str]]:
    """The rule of a policy that the family's own modes and edges do not name, if it is one; and the options."""
    quantizes = family.name == "mxfp8_quantize"
    if policy is not None and any(option.name == "policy" for option in family.options):
        return None, {**asked, "policy": policy}
    if policy is not None and not quantizes:
        found = f"{policy} for {family.name}"
        raise ArgumentError("policy", found, "mode and edge: whole policies are of mxfp8_quantize")
    if policy is not None and ("mode" in asked or "edge" in asked):
        raise ArgumentError("policy", f"{policy} beside a mode or an edge", "either")
    if not quantizes or (policy is None and not {"mode", "edge"} & set(asked)):
        return None, asked
    try:
        rule = rule_named(policy or f"{asked.get('mode', 'rceil')}/{asked.get('edge', 'exact')}", "mxfp8")
    except ArgumentError as error:
        # It names `policies`, which nobody gave here.
        argument = "policy" if policy is not None else " and ".join(name for name in ("mode", "edge") if name in asked)
        raise ArgumentError(argument, error.found, error.needed) from None
    mode, _, edge = rule.name.partition("/")
    rest = {option: value for option, value in asked.items() if option not in ("mode", "edge")}
    own = mode in family.option("mode").words and edge in family.option("edge").words
    return (None, {**rest, "mode": mode, "edge": edge}) if own else (rule, rest)


def _fixed(
    family: Family, asked: Mapping[str, str], parameters: tuple[str, ...], rule: PolicyRule | None
) -> Mapping[str, Any]:
    """The options that the contract fixes: those asked for, and defaults of those that the function does not take."""
    allowed = {option.name: option for option in family.options if option.fixed}
    # A setting may have another name than its option: out_dtype is the option `out`.
    taken = {family.contract.settings.get(parameter) for parameter in parameters}
    for name, value in asked.items():
        if name not in allowed:
            raise ArgumentError(name, describe(value), f"nothing: {family.name} has no {name}")
        if name in taken:
            raise ArgumentError(name, f"{value!r} for a function that takes {name}", "one of the two")
    fixed = {
        name: option.checked(asked.get(name, option.default)) for name, option in allowed.items() if name not in taken
    }
    if rule is not None:
        fixed |= {"mode": "rceil", "edge": "exact"}  # inputs are made without them; the rule is what is expected
    return MappingProxyType(fixed)
