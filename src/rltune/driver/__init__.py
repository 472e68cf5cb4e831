"""The pipeline of a sweep, from the request to the champion."""
