"""Learning from clients that hold rows: blocks of one model, averaged by a server."""
