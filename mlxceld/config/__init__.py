"""The one table of settings, where its values come from, and the places of the platform."""
