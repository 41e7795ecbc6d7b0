"""Contracts for final answers: how an answer is written, found in a reply, checked, closed and graded."""
