"""One step each. A step never imports the schema: it means the tables of its own time."""
