"""Kernels whose warpgroups change how many registers they own, and whether one of them waits for ever on an H200."""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {directives}
{{
 .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<4>;
 .shared .align 4 .b32 flag;
 ld.param.u64 %d1, [out];
 mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 7;
 setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [flag], 0; bar.sync 0;
{roles}
DONE:
 @%p1 st.global.u32 [%d1], 1;
 ret;
}}
"""


@dataclass(frozen=True)
class RegisterRoles:
    """A kernel of one block.

    Attributes:
        directives: of the entry.
        roles: what each warpgroup does.
        waits: whether one waits for registers that nobody gives back.
    """

    directives: str
    roles: tuple[str, ...]
    waits: bool

    @property
    def threads(self) -> int:
        """Of the block."""
        return 128 * len(self.roles)

    def text(self) -> str:
        """The module; thread 0 writes 1 to a word of global memory at the end."""
        branches = (
            f" setp.ne.u32 %p3, %r2, {number}; @%p3 bra NEXT{number};\n {role}\n bra DONE;\nNEXT{number}:"
            for number, role in enumerate(self.roles)
        )
        return _HEAD.format(directives=self.directives, roles="\n".join(branches))


def _dec(count: int) -> str:
    return f"setmaxnreg.dec.sync.aligned.u32 {count};"


def _inc(count: int) -> str:
    return f"setmaxnreg.inc.sync.aligned.u32 {count};"


def _until_set(label: str) -> str:
    return f"{label}: ld.volatile.shared.u32 %r5, [flag]; setp.ne.u32 %p4, %r5, 1; @%p4 bra {label};"


_SETS = "st.volatile.shared.u32 [flag], 1;"
_STAYS = "mov.u32 %r5, 1;"
#: 512 threads, of which each has 128 registers.
_QUARTER = ".maxntid 512, 1, 1 .minnctapersm 1"
_THIRD = ".maxntid 384, 1, 1 .minnctapersm 1"
_TOO_MANY = _dec(24), _dec(24), _inc(240), _inc(240)
_ALL = _dec(24), _dec(24), _inc(232), _inc(232)

CASES = {
    "528 of 512": RegisterRoles(_QUARTER, _TOO_MANY, True),
    "512 of 512": RegisterRoles(_QUARTER, _ALL, False),
    # 65,536 / 384 is 170; a thread has a multiple of 8.
    "504 of 504": RegisterRoles(_THIRD, (_dec(24), _inc(240), _inc(240)), False),
    "512 of 504": RegisterRoles(_THIRD, (_dec(32), _inc(240), _inc(240)), True),
    "488 of 504": RegisterRoles(_THIRD, (_dec(24), _inc(232), _inc(232)), False),
    "264 of 256, two blocks": RegisterRoles(".maxntid 256, 1, 1 .minnctapersm 2", (_dec(24), _inc(240)), True),
    "264 of more, one block": RegisterRoles(".maxntid 256, 1, 1 .minnctapersm 1", (_dec(24), _inc(240)), False),
    "fewer threads than the bound": RegisterRoles(_QUARTER, (_dec(24), _inc(240), _inc(240)), True),
    "the exact number of threads": RegisterRoles(".reqntid 512, 1, 1 .minnctapersm 1", _TOO_MANY, True),
    # What an assembler does not know it ignores.
    "no number of blocks": RegisterRoles(".maxntid 512, 1, 1", _TOO_MANY, False),
    "no number of blocks, exact threads": RegisterRoles(".reqntid 512, 1, 1", _TOO_MANY, False),
    "stated": RegisterRoles(".maxnreg 128", _ALL, False),
    "stated, too many": RegisterRoles(".maxnreg 128", _TOO_MANY, True),
    "stated and no number of blocks": RegisterRoles(".maxntid 512, 1, 1 .maxnreg 128", _TOO_MANY, True),
    "stated, no multiple of 8": RegisterRoles(".maxnreg 125", _ALL, False),
    # A warp that exits keeps what it has.
    "the others exit": RegisterRoles(_QUARTER, ("exit;", "exit;", _inc(240), _inc(240)), True),
    "one exits": RegisterRoles(_QUARTER, ("exit;", _until_set("A"), _until_set("B"), _inc(136) + _SETS), True),
    "nobody gives back": RegisterRoles(_QUARTER, (_STAYS, _STAYS, _STAYS, _inc(136)), True),
    "given back late": RegisterRoles(
        _QUARTER, (_until_set("A") + _dec(24), _dec(24), _inc(200), _SETS + _inc(232)), False
    ),
    "one after the other": RegisterRoles(_QUARTER, (_dec(24), _dec(24), _inc(240) + _dec(24), _inc(240)), False),
}
