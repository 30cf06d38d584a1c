"""What a pass is: a frozen dataclass whose typed fields are its options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from torch_mlir import ir


@dataclass(frozen=True)
class ModulePass(ABC):
    """A transformation or check of one module, in place.

    A subclass is a frozen dataclass. Its fields are the pass's options: `bool`, `int`, `float`, `str` or
    `tuple[str, ...]`, each with a default unless it must be given; underscores are hyphens on the command line. Each
    field has an entry under ``Options:`` in the docstring. The docstring's first line is the summary in
    ``--list-passes``; the whole of it is the pass's entry in the pass reference.

    Attributes:
        name: the flag, such as ``hp-fsdp``.
        requires: levels it takes; empty for any.
        leaves: the level it leaves, or empty when it keeps the module's.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    leaves: ClassVar[str] = ""

    @abstractmethod
    def run(self, module: ir.Operation) -> None:
        """Transform `module` (a `builtin.module` op) in place.

        Raises:
            IRError: the module is refused; it is left as it was wherever the pass can check before it changes.
        """


@dataclass(frozen=True)
class PipelinePass(ABC):
    """A pass that stands for a pipeline: it is replaced by the passes it asks for before anything runs.

    A subclass is a frozen dataclass like a `ModulePass`, its fields are its options.

    Attributes:
        name: the flag, such as ``hp-plan``.
    """

    name: ClassVar[str]

    @abstractmethod
    def expand(self) -> str:
        """Return the textual pipeline it stands for.

        Raises:
            HpirError: there is none, such as for a file that cannot be read.
        """


AnyPass: TypeAlias = ModulePass | PipelinePass
