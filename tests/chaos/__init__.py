"""Chaos: every process, disk, clock and link of a whole system, struck at random beside a real training (README.md)."""
