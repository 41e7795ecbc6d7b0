"""Knowledge of human languages: words, stop words, stems, phrases, and the full-text index that searches use.

A word list or a pattern with words of a language belongs here. Search works in every language that Unicode has letters
for. Stop words and the phrases that quote a call are English and Chinese; stems are English.
"""
