"""Value types and fx mechanics; no policy."""
