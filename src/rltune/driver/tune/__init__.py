"""Everything that Ray Tune calls back."""
