"""Why a pattern does not match."""
