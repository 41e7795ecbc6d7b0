"""Evaluate agents on datasets: trials, scoring, statistics, reports."""
