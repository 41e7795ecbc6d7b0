"""The Model Context Protocol: the client, its logins and offers, and the server that offers tools."""
