"""Tests of the producer layer against a scripted broker."""
