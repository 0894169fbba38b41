"""The simulator, evaluated with measured schedules and fitted to them."""
