"""Alembic's entry point: runs the migrations on the engine from `tuner.store.admin.migrate`."""

from alembic import context

from tuner.store.tables import (
    batch_models,  # noqa: F401  # their tables join Base
)
from tuner.store.tables.models import Base

with context.config.attributes["engine"].begin() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
