"""What starts FreeRide's programs for tests, demo and benchmarks. Needs Python's own library alone, but for
`rig.events` (README.md)."""
