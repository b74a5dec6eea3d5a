"""The HTTP server: an aiohttp application over an EngineClient."""
