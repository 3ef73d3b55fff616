"""The op table: every spelling of an op, its kind, and what is known of the kind."""
