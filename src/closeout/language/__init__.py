"""All that Closeout knows of human languages: words and phrases, and the full-text index that searches use.

A word list or a pattern with words of a language belongs here, and nowhere else. Search works in every language that
Unicode has letters for. Stop words are English and Chinese; stems are English.
"""
