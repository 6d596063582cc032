"""The page, in a real browser. A package: its browser lives as long as its tests, no longer."""
