"""Statements that all engines share: compiling them takes half the time of a new ledger, and each test has one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine


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


_create_all, _schemas = MetaData.create_all, dict[MetaData, list[str]]()


def create_all_once(tables: MetaData, bind: Any, **options: Any) -> None:
    """Create tables in an empty file of SQLite by the statements of the first such file, which are compiled once."""
    read = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    is_file = isinstance(bind, Connection) and bind.dialect.name == "sqlite"
    if not is_file or bind.exec_driver_sql(read).first():
        _create_all(tables, bind, **options)
    elif tables in _schemas:
        for statement in _schemas[tables]:
            bind.exec_driver_sql(statement)
    else:
        _create_all(tables, bind, **options)
        _schemas[tables] = [row[0] for row in bind.exec_driver_sql(read)]
