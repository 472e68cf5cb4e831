"""Show a sweep to a person: in the terminal, as tables, figures and HTML. Decides nothing."""
