"""The kind `sglang` from start to end, by a stand-in for its server: SGLang's command line and pages, made after its
own code (0.5.23), over the simulated engine."""
