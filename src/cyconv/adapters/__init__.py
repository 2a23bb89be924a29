"""Thin skins that let other frameworks call cyconv. Each one is imported on use only."""
