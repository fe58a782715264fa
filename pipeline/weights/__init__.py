"""Downloads and descriptions of published weights."""
