"""Floor 2-3. What must survive kill -9: schema and named statements."""
