"""Test the kind `sglang` from start to end with a stand-in for its server: SGLang's command line and pages, modelled on
its code (0.5.23), over the simulated engine.
"""
