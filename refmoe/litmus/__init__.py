"""An oracle for races and weak outcomes: small PTX programs as data, and what PTX's memory model says of them.

It shares nothing with the executor: only `refmoe.litmus.run` imports it, to hold it against the oracle.
"""

from __future__ import annotations
