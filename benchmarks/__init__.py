"""Benchmarks: ratios within one run on one machine, against real servers."""
