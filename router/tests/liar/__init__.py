"""An engine that lies, beside good ones, before the real router: drawn requests, and promises that none may break."""
