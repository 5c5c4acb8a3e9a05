"""What coding agents are given: a server of tools (Model Context Protocol) with small, structured answers."""
