"""Engines that share compiled statements: compiling takes half the time of a new ledger, and each test has one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine


class SharedStatements(dict[Any, Any]):
    """Compiled statements that all engines of one kind of database share.

    SQLAlchemy's keys begin with the engine's dialect object. So they would be equal for no two engines, and keep each
    engine's dialect and statements in memory after the engine is gone.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a statement."""
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: Any, statement: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), statement)


_compiled = SharedStatements()


def create_sharing_engine(*args: Any, **kwargs: Any) -> Engine:
    """Create an engine that shares the compiled statements of those before it."""
    return create_engine(*args, **kwargs).execution_options(compiled_cache=_compiled)
