"""Knowledge of human languages: words, stop words, stems, and the full-text index that searches use.

A word list or a pattern with words of a language belongs here. Search works in every language that Unicode has letters
for. Stop words, and the phrases of pages without content, are English and Chinese; stems are English.
"""
