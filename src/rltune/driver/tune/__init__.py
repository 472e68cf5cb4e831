"""The searcher, scheduler and callbacks that Ray Tune calls."""
