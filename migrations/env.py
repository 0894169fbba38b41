"""Alembic's entry: runs the migrations on the engine that `tuner.store.migrate` hands over."""

from alembic import context

from tuner.store import access_models, batch_models  # noqa: F401  # their tables join Base
from tuner.store.models import Base

with context.config.attributes["engine"].begin() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
