"""A lying engine beside good ones, in front of the real router: randomly drawn requests and promises that must hold."""
