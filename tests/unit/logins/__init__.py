"""Tests of logins by tokens."""
