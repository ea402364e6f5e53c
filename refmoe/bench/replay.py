"""Recorded launches, run by whichever refmoe is imported: what `refmoe.bench.against` starts in each checkout.

This text runs by itself, in the folder of a checkout that may be years old: it asks for nothing of refmoe but
`refmoe.ptx.Module.parse`, `Buffer`, `DeviceMemory` and `launch`. Its argument is a file that `against` wrote. It
answers each line on its standard input, the name of a launch, by a line of JSON: `cpu_s`, `lane_instructions`, and
`sha256` of the bytes that the launch left in its buffers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import time
from typing import Any

import numpy as np

from refmoe import ptx


def buffer(described: dict[str, Any], arrays: Any) -> Any:
    """A buffer over bytes of its own."""
    array = np.array(arrays[described["array"]])
    initialised = described["initialised"] if described["initialised"] else np.zeros(array.shape, bool)
    return ptx.Buffer(array, described["name"], initialised=initialised, writable=described["writable"])


def arguments(launch: dict[str, Any], arrays: Any) -> list[Any]:
    """The arguments of a launch."""
    return [
        bytes.fromhex(each["bytes"])
        if "bytes" in each
        else each["number"]
        if "number" in each
        else buffer(each, arrays)
        for each in launch["arguments"]
    ]


def options(launch: dict[str, Any], arrays: Any) -> tuple[dict[str, Any], list[Any]]:
    """What `ptx.launch` is given beside the arguments, and the buffers at addresses of their own."""
    known = inspect.signature(ptx.launch).parameters
    given = {name: value for name, value in launch["options"].items() if name in known}
    if not launch["memory"]:
        return given, []
    memory, placed = ptx.DeviceMemory(), []
    for each in launch["memory"]:
        placed.append(buffer(each, arrays))
        address = memory.place(placed[-1])
        if address != each["address"]:
            # Pointers in other buffers say where it has to be.
            raise SystemExit(f"{each['name']} is placed at {address:#x}, and was recorded at {each['address']:#x}")
    return {**given, "memory": memory}, placed


def run(launch: dict[str, Any], module: Any, arrays: Any) -> dict[str, Any]:
    """One launch: what `against` wants to know of it. CPU time, because others may load the machine."""
    args = arguments(launch, arrays)
    more, placed = options(launch, arrays)
    start = time.process_time()
    result = ptx.launch(module, launch["entry"], launch["grid"], launch["block"], args, launch["shared_bytes"], **more)
    seconds = time.process_time() - start
    digest = hashlib.sha256()
    for each in (*args, *placed):
        if isinstance(each, ptx.Buffer) and each.writable:
            digest.update(each.array.tobytes())
    return {"cpu_s": seconds, "lane_instructions": result.lane_instructions, "sha256": digest.hexdigest()}


def main() -> None:
    """Answer line after line."""
    arrays = np.load(sys.argv[1])
    launches = {each["name"]: each for each in json.loads(str(arrays["launches"]))}
    modules = {name: ptx.Module.parse(str(arrays[each["text"]])) for name, each in launches.items()}
    print(json.dumps({"module": ptx.__file__}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps(run(launches[name], modules[name], arrays)), flush=True)


if __name__ == "__main__":
    main()
