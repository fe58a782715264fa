"""Commands that caption images of the user's own."""
