"""Scripts that write the files of tests/golden with real frameworks; run by a person, never by a test."""
