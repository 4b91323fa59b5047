"""Tests; README.md says what is where and how they are run."""
