"""Commands that check and tidy settings, machine and artifacts."""
