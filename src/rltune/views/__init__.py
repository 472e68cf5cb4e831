"""How a person sees a sweep: terminal, tables, figures, HTML. Decides nothing."""
