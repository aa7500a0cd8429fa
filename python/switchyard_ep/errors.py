"""What calls raise. Every exception of the library is a SwitchyardError, of the class of its code; one that comes from a
fault in a kernel carries the record of it."""

from __future__ import annotations

from typing import Optional

from . import _core


class SwitchyardError(RuntimeError):
    """An error of the library.

    code is its kind in words, such as 'deadline exceeded'. fault is the FaultRecord of a step that a kernel stopped,
    else None; phase, waiting_rank, late_rank, expert and elapsed (seconds) are its fields, None without one.
    """

    code = "internal"

    def __init__(self, message: str = "", fault: Optional[_core.FaultRecord] = None):
        super().__init__(message)
        self.fault = fault

    @property
    def phase(self) -> Optional[str]:
        return self.fault.phase if self.fault else None

    @property
    def waiting_rank(self) -> Optional[int]:
        return self.fault.waiting_rank if self.fault else None

    @property
    def late_rank(self) -> Optional[int]:
        return self.fault.late_rank if self.fault else None

    @property
    def expert(self) -> Optional[int]:
        return self.fault.expert if self.fault else None

    @property
    def elapsed(self) -> Optional[float]:
        return self.fault.elapsed_ns / 1e9 if self.fault else None


class InvalidArgument(SwitchyardError, ValueError):
    """An argument is outside its limits."""

    code = "invalid argument"


class FailedPrecondition(SwitchyardError):
    """The call came at the wrong time, such as after a fault and before reset()."""

    code = "failed precondition"


class ResourceExhausted(SwitchyardError):
    """Memory, rows or blocks ran out."""

    code = "resource exhausted"


class DeadlineExceeded(SwitchyardError):
    """A peer did not deliver in time."""

    code = "deadline exceeded"


class Deadlock(SwitchyardError):
    """The emulator found that no thread can ever go on."""

    code = "deadlock"


class Unavailable(SwitchyardError):
    """This machine or this build cannot do it, or a peer has ended."""

    code = "unavailable"


class Internal(SwitchyardError):
    """A defect, or an error of the CUDA runtime."""

    code = "internal"


_CLASS_OF_CODE = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        FailedPrecondition,
        ResourceExhausted,
        DeadlineExceeded,
        Deadlock,
        Unavailable,
        Internal,
    )
}


def _make(code: str, message: str, fault: Optional[_core.FaultRecord]) -> SwitchyardError:
    return _CLASS_OF_CODE.get(code, Internal)(message, fault)


_core._set_exception_factory(_make)
