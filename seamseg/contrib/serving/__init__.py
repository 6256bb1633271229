"""An HTTP server for a trained model: batching of concurrent requests, limits, metrics, a page to try it."""
